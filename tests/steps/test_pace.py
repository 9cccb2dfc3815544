"""How many steps are taken in one graph call."""

import pytest

from kfit.steps import pace as module
from kfit.steps.pace import Pace


def test_a_fixed_number_ends_at_its_multiples() -> None:
    pace = Pace(4, 0.1)
    assert [pace.steps_from(step) for step in (0, 1, 3, 4, 6)] == [4, 3, 1, 4, 2]
    assert [pace.first_step_of_execution(step) for step in (0, 3, 4, 7)] == [0, 0, 4, 4]
    pace.begin()
    pace.end(4)
    assert pace.steps_from(0) == 4


def test_an_execution_lasts_about_as_long_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    pace, seen = Pace(None, 0.1), []
    for _ in range(5):
        seen.append(pace.steps_from(7))
        pace.begin()
        now += 0.001 * seen[-1]
        pace.end(seen[-1])
    assert seen[:3] == [1, 8, 64]
    assert seen[3:] == pytest.approx([100, 100], abs=1)
    assert pace.first_step_of_execution(7) == 7
    pace.begin()
    now += 3.0
    pace.end(100)
    assert pace.steps_from(0) == 3
    pace.end(0)  # nothing was taken
    assert pace.steps_from(0) == 3
