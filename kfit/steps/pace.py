"""Chooses how many steps are taken in one graph call."""

from __future__ import annotations

import time


class Pace:
    """The rule by which the number of steps of the next execution is chosen.

    An execution is one graph call of several steps. Python code runs only between executions. An
    execution should last at most a fraction of a second, so that the progress bar moves, and a
    request to stop is noticed soon. Within this limit an execution takes as many steps as possible,
    so that Python costs almost no time.

    Args:
        fixed: The number of steps of every execution, or None to adapt the number to the measured
            time. It is also an attribute, which may be set between two epochs.
        seconds: How long an execution should last, if the number is not fixed.
    """

    def __init__(self, fixed: int | None, seconds: float) -> None:
        self.fixed = fixed
        self._seconds = seconds
        self._steps = 1
        self._begun = 0.0

    def steps_from(self, step: int) -> int:
        """Returns how many steps an execution should take that begins at step `step` of an epoch.

        An execution is one graph call of several steps. If the number k of steps is fixed,
        executions end at the multiples of k. So an execution has fewer steps if training resumes
        between two multiples.
        """
        return self._steps if self.fixed is None else self.fixed - step % self.fixed

    def first_step_of_execution(self, step: int) -> int:
        """Returns the first step of the group of steps to which `step` belongs.

        Hooks for batches are called before the first and after the last step of each group. If the
        number k of steps per execution (graph call) is fixed, a group is k steps of the epoch, as
        in Keras, and the result is the multiple of k at or before `step`. kfit may take the steps
        of a group in several executions, for example to save training in between; no hook for
        batches is called between these. If the number is not fixed, each execution is a group, and
        the result is `step` itself.

        Args:
            step: The index of a step in the epoch, from 0.
        """
        return step if self.fixed is None else step - step % self.fixed

    def begin(self) -> None:
        """Starts the clock; must be called when an execution (a call of several steps) begins."""
        self._begun = time.perf_counter()

    def end(self, steps: int, *, one_by_one: bool = False) -> None:
        """Chooses the number of steps of the next execution by the time since `begin` was called.

        Must be called when an execution (a graph call of several steps) has ended. The number is
        chosen so that the next execution lasts about the `seconds` that the object was made with,
        but it is at most 8 times the number that was chosen last. If the number is fixed, or
        `steps` is 0, nothing changes.

        Args:
            steps: The number of steps that were taken in the execution that has ended.
            one_by_one: Whether the next execution takes one step, however short it may be.
        """
        seconds = time.perf_counter() - self._begun
        if self.fixed is None and steps:
            wanted = int(steps * self._seconds / max(seconds, 1e-9))
            self._steps = 1 if one_by_one else max(1, min(wanted, 8 * self._steps))
