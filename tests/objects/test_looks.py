"""A large container is read once while it holds the same, and every change of it is seen."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kfit.objects import Attributes, looks, values

MANY = 2000
WORDS = {f"word {index}": index for index in range(MANY)}


class Reads:
    """Code that names a vocabulary, and holds one."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def look_up(self, word: str) -> int:
        return WORDS[word]


def in_place(items: list[Any], index: int, value: Any) -> list[Any]:
    items[index] = value
    return items


CHANGES: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (lambda: list(range(MANY)), lambda held: in_place(held, 1500, -1)),
    (lambda: list(range(MANY)), lambda held: in_place(held, 1, True)),
    (lambda: [0.0] * MANY, lambda held: in_place(held, 7, -0.0)),
    (lambda: list(range(MANY)), lambda held: held.append(1)),
    (lambda: list(range(MANY)), lambda held: held.reverse()),
    (lambda: [np.float32(0)] * MANY, lambda held: in_place(held, 9, np.float32(1))),
    (lambda: dict.fromkeys(range(MANY), 0.5), lambda held: held.update({3: 0.25})),
    (lambda: dict.fromkeys(range(MANY), 0.5), lambda held: held.pop(5)),
    (lambda: set(range(MANY)), lambda held: held.remove(5)),
    (lambda: deque(range(MANY), maxlen=MANY), lambda held: held.append(5)),
    (lambda: {"to": dict(WORDS), "of": [[1], (2, [3])]}, lambda held: held["to"].clear()),
    (lambda: {"to": dict(WORDS), "of": [[1], (2, [3])]}, lambda held: held["of"][1][1].append(4)),
    (lambda: ("a" * MANY, [1]), lambda held: held[1].append(2)),
    (lambda: [[index] for index in range(MANY)], lambda held: held[900].append(1)),
    (lambda: [(index, "a") for index in range(MANY)], lambda held: in_place(held, 8, (8, "b"))),
    (lambda: [np.zeros(3), *range(MANY)], lambda held: in_place(held[0], 1, 1.0)),
]


@pytest.mark.parametrize(("make", "change"), CHANGES)
def test_every_change_is_seen(make: Callable[[], Any], change: Callable[[Any], Any]) -> None:
    reads = Reads(make())
    attributes = Attributes(reads)

    def kept() -> list[Any]:
        return [values.decode(e["value"]) for e in attributes.state_dict() if e["path"] == ["held"]]

    attributes.state_dict()
    change(reads.held)
    assert repr(kept()) == repr([reads.held])
    assert repr(kept()) == repr([reads.held])
    reads.held = make()
    again = kept()
    assert again in ([], [reads.held])  # an order of numbers is kept in any case


@pytest.mark.parametrize(
    "held",
    [
        [1.5] * MANY,
        dict(WORDS),
        {"to": dict(WORDS), "of": [list(WORDS)]},
        tuple(WORDS),
        "a" * MANY,
        [(word, 1) for word in WORDS],
        [np.float64(1)] * MANY,
    ],
)
def test_what_is_the_same_is_not_read_again(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(held)
    attributes = Attributes(reads)
    read: list[int] = []
    for name in ("mark_of", "is_exact", "size_of"):
        original = getattr(looks, name)

        def note(value: Any, *args: Any, original: Any = original) -> Any:
            if value is held or value is WORDS:
                read.append(1)
            return original(value, *args)

        monkeypatch.setattr(looks, name, note)
    with attributes.one_look():
        assert (attributes.unsaved(), attributes.state_dict()) == ([], [])
    assert not read
    monkeypatch.setitem(WORDS, "late", 1)
    assert [entry["path"][-1] for entry in attributes.state_dict()] == ["WORDS"]
    assert len(read) == 3
