"""What is of one process alone, and what is none of it."""

import io
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfit.objects.handles import is_handle, is_open_to_looks, place_in


class Gone:
    """A stand-in for an object that is gone, as `weakref.proxy` makes them."""

    @property
    def __class__(self) -> Any:
        raise ReferenceError("it is gone")


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), threading.RLock(), threading.Thread(), logging.getLogger("a"), io.StringIO],
    ids=["lock", "reentrant_lock", "thread", "logger", "class_that_closes"],
)
def test_what_a_process_made_for_itself(value: Any) -> None:
    assert is_handle(value() if isinstance(value, type) else value)


def test_what_can_be_closed_is_one_unless_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\ntwo\n")
    with ThreadPoolExecutor() as pool, (tmp_path / "text").open() as read:
        assert is_handle(pool)
        assert is_handle(weakref.ref(pool))
        assert is_handle(read)  # from its beginning, as after a restart
        assert read.readline() == "one\n"
        assert place_in(read) == 4
        assert not is_handle(read)
        next(read)
        assert place_in(read) == "unknown"
    assert place_in(read) == 0
    with (tmp_path / "written").open("w") as written:
        written.write("one")
        assert is_handle(written)


def test_a_pipe_does_not_tell_how_far_it_was_read() -> None:
    out, into = os.pipe()
    with open(out, "rb", buffering=0) as reading, open(into, "wb"):
        assert place_in(reading) == "unknown"


def test_what_is_none() -> None:
    assert not any(map(is_handle, (numbers(), np.zeros(2), 1, "text", [1], object())))
    assert is_open_to_looks(object())
    assert not is_open_to_looks(Gone())
