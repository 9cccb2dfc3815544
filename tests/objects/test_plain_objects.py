"""Which objects are the program's own, what they reach, and whether they have changed."""

import enum
import io
import random
import threading
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest

from kfit.objects.plain_objects import holds_only_state, is_frozen, is_own, mark_of, reached


class Kind(enum.Enum):
    ONE = 1


@dataclass(frozen=True)
class Frozen:
    rate: float = 0.5


@dataclass
class Own:
    values: list[Any] = field(default_factory=list)
    other: Any = None


@pytest.mark.parametrize(
    "value",
    [[1], "text", Kind.ONE, random.Random(1), Own, len, ValueError(), threading.Lock()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_object_of_the_program(value: Any) -> None:
    assert not is_own(value, object())
    assert is_own(Own(), object())
    assert is_own(Frozen(), object())
    assert is_frozen(Frozen())
    assert not is_frozen(Own())


def test_all_that_an_object_reaches_and_can_change() -> None:
    inner = Own([1])
    inner.other = inner
    found = reached(Own([{"inner": (inner,)}]), ())
    assert {id(inner), id(inner.values)} <= found
    assert id(Kind.ONE) not in reached(Own([Kind.ONE, "text", 1]), ())
    assert id(inner.values) not in reached(Own([inner]), {id(inner)})


def test_a_change_within_is_seen_and_what_is_foreign_may_change() -> None:
    inner = Own([1])
    value = [inner, {"array": np.zeros(3)}]
    before, without = mark_of(value, ()), mark_of(value, {id(inner)})
    assert mark_of(value, ()) == before
    inner.values.append(2)
    assert mark_of(value, ()) != before
    assert mark_of(value, {id(inner)}) == without


def test_what_has_a_state_changes_with_it() -> None:
    generator, file = np.random.default_rng(1), io.StringIO("one\ntwo")
    before = mark_of(generator, ()), mark_of(file, ())
    generator.random()
    file.read(1)
    assert mark_of(generator, ()) != before[0]
    assert mark_of(file, ()) != before[1]


def test_containers_of_state_and_others() -> None:
    layer = keras.layers.Dense(1)
    assert holds_only_state([1, {"a": (layer, random.Random(1))}])
    assert not holds_only_state([Own()])
    assert not holds_only_state({"a": [lambda: 1]})
    itself: list[Any] = []
    itself.append(itself)
    assert not holds_only_state(itself)
