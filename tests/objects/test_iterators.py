"""How far iterators have been drawn from, and that others of them come as far."""

import csv
import fractions
import itertools
import math
import queue
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from kfit.objects.iterators import advance, is_iterator, position_of, trace_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python 3.12

MAKERS: dict[str, Any] = {
    "list": lambda: iter([1, 2, 3, 4]),
    "tuple": lambda: iter((1, 2, 3, 4)),
    "text": lambda: iter("abcd"),
    "other_text": lambda: iter("äöüß"),
    "bytes": lambda: iter(b"abcd"),
    "range": lambda: iter(range(2, 9)),
    "long_range": lambda: iter(range(1 << 70, (1 << 70) + 9)),
    "keys": lambda: iter(dict.fromkeys("abcd")),
    "items": lambda: iter(dict.fromkeys("abcd").items()),
    "deque": lambda: iter(deque([1, 2, 3, 4])),
    "reversed": lambda: reversed([1, 2, 3, 4]),
    "repeat": lambda: itertools.repeat(1, 7),
    "count": lambda: itertools.count(),
    "step": lambda: itertools.count(5, -2),
    "float": lambda: itertools.count(0.0, 0.1),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "expression": lambda: (number for number in range(9)),
}


def draw(iterator: Any, most: int = 20) -> list[Any]:
    return list(itertools.islice(iterator, most))


@pytest.mark.parametrize("drawn", [0, 1, 3, 4, 8])
@pytest.mark.parametrize("kind", MAKERS)
def test_another_one_comes_as_far(kind: str, drawn: int) -> None:
    one, other = MAKERS[kind](), MAKERS[kind]()
    draw(one, drawn)
    advance(other, position_of(one))
    assert position_of(other) == position_of(one)
    assert trace_of(other) == trace_of(one)
    assert draw(other) == draw(one)


def test_none_goes_back() -> None:
    for kind in ("list", "count", "expression", "cycle"):
        behind, ahead = MAKERS[kind](), MAKERS[kind]()
        draw(behind, 1)
        draw(ahead, 4)
        with pytest.raises(ValueError, match="is not at"):
            advance(ahead, position_of(behind))
    with pytest.raises(ValueError, match="is not at"):
        advance(iter([1]), "of another kind")


def test_a_cycle_turns() -> None:
    ahead, behind = itertools.cycle("abc"), itertools.cycle("abc")
    draw(ahead, 6)
    draw(behind, 4)
    advance(ahead, position_of(behind))
    assert next(ahead) == "b"


def function() -> Iterator[int]:
    yield from range(5)


@pytest.mark.parametrize(
    "make",
    [
        function,
        lambda: (a for _ in range(2) for a in range(2)),
        lambda: zip([1, 2], [3, 4], strict=True),
        lambda: map(str, [1, 2]),
        lambda: enumerate("ab"),
        lambda: csv.reader(["a", "b"]),
        lambda: itertools.count(fractions.Fraction(1, 2)),
        lambda: iter(lambda: 1, 2),
    ],
)
def test_others_only_show_that_they_were_drawn_from(make: Any) -> None:
    iterator = make()
    assert is_iterator(iterator)
    assert position_of(iterator) is None
    before = trace_of(iterator)
    next(iterator)
    assert trace_of(iterator) != before


def test_a_generator_without_a_state_of_its_own_is_where_it_was() -> None:
    def drawing() -> Iterator[float]:
        while True:
            yield random.random()

    generator = drawing()
    next(generator)
    before = trace_of(generator)
    next(generator)
    assert trace_of(generator) == before
    generator.close()
    assert trace_of(generator) != before


def test_what_is_no_iterator_has_no_trace_but_for_a_queue() -> None:
    assert [trace_of(value) for value in (1, [1], "text", object())] == [None] * 4
    held: queue.SimpleQueue[int] = queue.SimpleQueue()
    held.put(1)
    assert trace_of(held) == 1


@pytest.mark.parametrize(
    "position", [(1 << 70, 1), (math.inf, 1), (math.nan, 1), "text", (1, 2, 3)]
)
@pytest.mark.parametrize("kind", ["count", "float", "cycle", "list", "repeat", "expression"])
def test_a_position_of_a_stranger_neither_hangs_nor_breaks(kind: str, position: Any) -> None:
    """It is read from a file."""
    with pytest.raises((ValueError, TypeError)):
        advance(MAKERS[kind](), position)
    with pytest.raises((ValueError, TypeError)):
        advance(itertools.cycle([1]), (1 << 70, -1))
