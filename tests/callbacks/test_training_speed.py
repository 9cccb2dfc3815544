"""The speed of training, by a clock that a test winds."""

from typing import Any

import pytest

from kfit.callbacks import training_speed as module
from kfit.callbacks.training_speed import TrainingSpeed


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: Any) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_speed(clock: Clock) -> None:
    speed = TrainingSpeed()
    speed.begin(10)
    assert speed.numbers(10, 8) == {}
    clock.now += 2.0
    assert speed.numbers(10, 8) == {}
    assert speed.numbers(14, 8) == {
        "steps_per_second": 2.0,
        "step_milliseconds": 500.0,
        "examples_per_second": 16.0,
    }
    assert "examples_per_second" not in speed.numbers(14, None)


def test_a_pause_lasts_until_it_begins_again(clock: Clock) -> None:
    speed = TrainingSpeed()
    speed.begin(0)
    clock.now += 1.0
    speed.pause()
    clock.now += 5.0
    speed.pause()
    assert speed.numbers(3, None)["steps_per_second"] == 3.0
    speed.begin(3)
    clock.now += 1.0
    assert speed.numbers(4, None)["steps_per_second"] == 1.0
