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


def test_a_call_that_was_traced_does_not_count_beside_others() -> None:
    now, tracing = [0.0], [0.0]
    clock = StepClock(lambda: now[0], lambda: tracing[0])

    def took(step: int, seconds: float, traced: float = 0.0) -> tuple[float, bool]:
        now[0] += seconds
        tracing[0] += traced
        clock.took(step)
        return clock.seconds_per_step, clock.is_without_tracing

    clock.begin(0)
    assert not clock.is_without_tracing
    assert took(2, 10.0, traced=9.0) == (5.0, False)
    assert took(4, 1.0) == (0.5, True)
    assert took(5, 20.0, traced=19.0) == (0.5, True)  # the smaller last batch
    clock.begin(0)
    assert took(4, 2.0) == (0.5, True)
