"""Runs state machines of hypothesis: the same few examples daily, and others each time if many."""

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(make: Callable[[], RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Runs a state machine, and fails if one of its invariants does.

    Args:
        make: Makes the machine; called for each example.
        examples: The number of examples. Below 1,000 they are the same in every run.
        steps: The most steps of an example.
    """
    run_state_machine_as_test(
        make,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=examples < 1000,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
