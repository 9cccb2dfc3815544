import pytest

from kfit.training.step_clock import StepClock


def test_the_first_execution_is_left_out_as_soon_as_there_is_another() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])
    clock.begin(0)
    assert clock.seconds_per_step == 0
    now[0] = 10.0  # it was traced
    clock.took(1)
    assert clock.seconds_per_step == 10
    now[0] = 12.0
    clock.took(5)
    assert clock.seconds_per_step == pytest.approx(0.5)
    now[0] = 20.0  # validation
    assert clock.seconds_per_step == pytest.approx(0.5)


def test_steps_before_a_resume_do_not_count() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])
    clock.begin(400)
    now[0] = 1.0
    clock.took(410)
    assert clock.seconds_per_step == pytest.approx(0.1)
    now[0] = 2.0
    clock.took(430)
    assert clock.seconds_per_step == pytest.approx(0.05)
