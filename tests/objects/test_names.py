"""What code names is found, kept, and given back to where it is kept."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kfit.objects import Attributes, attributes
from kfit.objects.names import names_in

RNG = np.random.default_rng(1)
LOSSES: list[float] = []
COUNT = 0
TABLE = {"stage": 1}


def draw() -> float:
    return float(RNG.random())


def closed() -> tuple[Callable[[float], None], Callable[[], int]]:
    calls = 0

    def note(loss: float) -> None:
        nonlocal calls
        calls += 1
        LOSSES.append(loss)

    return note, lambda: calls


class Counter:
    total = 0

    def __init__(self, note: Callable[[float], None]) -> None:
        self.note = functools.partial(note)

    def step(self) -> None:
        global COUNT
        COUNT += 1
        Counter.total += 1
        TABLE["stage"] += 1
        self.note(draw())


def restart() -> None:
    """Has the variables be as a new process has them."""
    global COUNT
    COUNT = Counter.total = 0
    LOSSES.clear()
    TABLE["stage"] = 1
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


def seen(calls: Callable[[], int]) -> list[Any]:
    return [COUNT, Counter.total, dict(TABLE), list(LOSSES), calls()]


def run(steps: int, state: Any = None) -> tuple[list[Any], Any]:
    restart()
    note, calls = closed()
    counter = Counter(note)
    watched = Attributes(counter)
    if state is not None:
        watched.load_state_dict(state)
    for _ in range(steps):
        counter.step()
    assert watched.unsaved() == []
    return seen(calls), watched.state_dict()


def test_names_are_found_through_functions_classes_and_partials() -> None:
    found = [name.name for name in names_in(Counter(closed()[0]))]
    assert set(found) == {"COUNT", "Counter.total", "TABLE", "RNG", "LOSSES", "closed.calls"}
    assert names_in(np.arange(3)) == []


def test_they_go_on_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = run(5)
    _, state = run(3)
    monkeypatch.setattr(attributes, "_PROCESSES", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(2, state)[0] == expected


def test_in_the_same_process_generators_go_on_and_values_stay() -> None:
    expected, _ = run(5)
    _, state = run(3)
    got, _ = run(2, state)
    assert got[0] == 2
    assert got[3] == expected[3][3:]
