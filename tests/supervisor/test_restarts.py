import pytest

from kfit.heartbeat import Reached
from kfit.supervisor.restarts import Restarts, heard, told


def restarts(budget: int, chance: float = 0.0) -> Restarts:
    return Restarts(budget, lambda: chance)


def test_no_budget_no_restart() -> None:
    assert restarts(0).after(Reached(0, 10), preempted=False) is None
    assert restarts(0).after(Reached(0, 10), preempted=True) is None


def test_a_crash_loop_ends_after_the_budget() -> None:
    rule = restarts(3)
    # The first generation made progress; it is the ones after it that are no better.
    assert [rule.after(Reached(0, 5), preempted=False) for _ in range(4)] == [0.25, 0.5, 1.0, None]


def test_without_any_step_the_budget_is_all_there_is() -> None:
    rule = restarts(2)
    assert [rule.after(Reached(0, 0), preempted=False) for _ in range(3)] == [0.25, 0.5, None]


def test_progress_refills_the_budget() -> None:
    rule = restarts(1)
    for step in range(1, 100):
        assert rule.after(Reached(0, step), preempted=False) == 0.25
    assert rule.after(Reached(0, 99), preempted=False) is None


def test_only_steps_beyond_the_furthest_of_all_count() -> None:
    rule = restarts(2)
    assert rule.after(Reached(0, 50), preempted=False) == 0.25
    assert rule.after(Reached(0, 20), preempted=False) == 0.5
    assert rule.after(Reached(0, 40), preempted=False) is None


def test_a_later_fit_is_beyond_all_steps_of_an_earlier_one() -> None:
    rule = restarts(2)
    assert rule.after(Reached(0, 100), preempted=False) == 0.25
    assert rule.after(Reached(1, 3), preempted=False) == 0.25  # the count has started again
    assert rule.after(Reached(0, 200), preempted=False) == 0.5
    assert rule.after(Reached(1, 3), preempted=False) is None


def test_the_same_error_at_the_same_step_of_a_later_fit_is_another_one() -> None:
    rule = restarts(10)
    for fit in range(3):
        assert rule.after(Reached(fit, 5), preempted=False, error="ValueError: x") == 0.25
    assert rule.after(Reached(2, 5), preempted=False, error="ValueError: x") is None
    assert rule.is_repeated


def test_a_task_hears_what_it_is_told() -> None:
    assert told([]) == ""
    assert heard("") == ()
    places = Reached(0, 100), Reached(1, 3)
    assert told(places) == "0:100,1:3"
    assert heard(told(places)) == places


def test_a_preemption_with_progress_costs_nothing() -> None:
    rule = restarts(1)
    for step in range(1, 50):
        assert rule.after(Reached(0, step), preempted=True) == 0.25
        assert rule.failures == 0
    assert rule.after(Reached(0, 49), preempted=True) == 0.25
    assert rule.after(Reached(0, 49), preempted=True) is None


def test_the_same_error_twice_without_progress_is_the_last() -> None:
    rule = restarts(10)
    assert rule.after(Reached(0, 5), preempted=False, error="ValueError: x") == 0.25
    assert rule.after(Reached(0, 5), preempted=False, error="ValueError: x") is None
    assert rule.is_repeated


def test_an_error_that_may_not_come_again_is_no_reason_to_give_up() -> None:
    rule = restarts(10)
    failures = [(5, "x"), (6, "x"), (6, "y"), (4, "y"), (4, ""), (4, ""), (4, "y"), (3, "y")]
    for reached, error in failures:
        assert rule.after(Reached(0, reached), preempted=False, error=error) is not None
        assert not rule.is_repeated


def test_the_back_off_doubles_up_to_a_cap_with_jitter() -> None:
    rule = restarts(2000)
    waits = [rule.after(Reached(0, 0), preempted=False) for _ in range(2000)]
    assert waits[:4] == [0.25, 0.5, 1.0, 2.0]
    assert waits[-1] == 30.0
    assert restarts(1, chance=1.0).after(Reached(0, 0), preempted=False) == pytest.approx(0.3125)
