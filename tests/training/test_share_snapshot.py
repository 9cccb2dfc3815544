"""A snapshot that only the chief has reaches the other tasks, arrays and all."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfit.checkpoint.snapshot import Snapshot
from kfit.training.share_snapshot import share_snapshot

STATE = {"logs": {"loss": 0.5}, "weights": [np.arange(6.0).reshape(2, 3)], "none": None}


def task(index: int, sent: list[bytes], *, found: bool) -> Any:
    """One of two tasks; what the chief sends is in `sent`, from where the other takes it."""

    def content(own: bytes) -> bytes:
        if index == 0:
            sent.append(own)
            return own
        return sent.pop(0)

    collectives = SimpleNamespace(any_true=lambda own: found, content=content)
    return SimpleNamespace(is_chief=index == 0, num_workers=2, host_collectives=collectives)


def test_every_task_gets_what_the_chief_has() -> None:
    sent: list[bytes] = []
    chief = share_snapshot(Snapshot({"step": 7}, STATE, "backup/7"), task(0, sent, found=True))
    other = share_snapshot(None, task(1, sent, found=True))
    for snapshot in (chief, other):
        assert snapshot is not None
        assert snapshot.about == {"step": 7}
        assert snapshot.path == "backup/7"
        assert snapshot.state["logs"] == {"loss": 0.5}
        assert snapshot.state["none"] is None
        np.testing.assert_array_equal(snapshot.state["weights"][0], STATE["weights"][0])


@pytest.mark.parametrize("index", [0, 1])
def test_without_one_nothing_is_sent(index: int) -> None:
    assert share_snapshot(None, task(index, [], found=False)) is None


def test_a_task_that_is_alone_keeps_its_own() -> None:
    snapshot = Snapshot({"step": 1}, STATE)
    assert share_snapshot(snapshot, SimpleNamespace(num_workers=1, is_chief=True)) is snapshot
