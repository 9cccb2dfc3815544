import pytest

from kfit.supervisor.restarts import Restarts


def restarts(budget: int, chance: float = 0.0) -> Restarts:
    return Restarts(budget, lambda: chance)


def test_no_budget_no_restart() -> None:
    assert restarts(0).after(10, preempted=False) is None
    assert restarts(0).after(10, preempted=True) is None


def test_a_crash_loop_ends_after_the_budget() -> None:
    rule = restarts(3)
    # The first generation made progress; it is the ones after it that are no better.
    assert [rule.after(5, preempted=False) for _ in range(4)] == [0.25, 0.5, 1.0, None]


def test_without_any_step_the_budget_is_all_there_is() -> None:
    rule = restarts(2)
    assert [rule.after(0, preempted=False) for _ in range(3)] == [0.25, 0.5, None]


def test_progress_refills_the_budget() -> None:
    rule = restarts(1)
    for step in range(1, 100):
        assert rule.after(step, preempted=False) == 0.25
    assert rule.after(99, preempted=False) is None


def test_only_steps_beyond_the_furthest_of_all_count() -> None:
    rule = restarts(2)
    assert rule.after(50, preempted=False) == 0.25
    assert rule.after(20, preempted=False) == 0.5
    assert rule.after(40, preempted=False) is None


def test_a_preemption_with_progress_costs_nothing() -> None:
    rule = restarts(1)
    for step in range(1, 50):
        assert rule.after(step, preempted=True) == 0.25
        assert rule.failures == 0
    assert rule.after(49, preempted=True) == 0.25
    assert rule.after(49, preempted=True) is None


def test_the_same_error_twice_without_progress_is_the_last() -> None:
    rule = restarts(10)
    assert rule.after(5, preempted=False, error="ValueError: x") == 0.25
    assert rule.after(5, preempted=False, error="ValueError: x") is None
    assert rule.is_repeated


def test_an_error_that_may_not_come_again_is_no_reason_to_give_up() -> None:
    rule = restarts(10)
    failures = [(5, "x"), (6, "x"), (6, "y"), (4, "y"), (4, ""), (4, ""), (4, "y"), (3, "y")]
    for reached, error in failures:
        assert rule.after(reached, preempted=False, error=error) is not None
        assert not rule.is_repeated


def test_the_back_off_doubles_up_to_a_cap_with_jitter() -> None:
    rule = restarts(2000)
    waits = [rule.after(0, preempted=False) for _ in range(2000)]
    assert waits[:4] == [0.25, 0.5, 1.0, 2.0]
    assert waits[-1] == 30.0
    assert restarts(1, chance=1.0).after(0, preempted=False) == pytest.approx(0.3125)
