"""Measures how long a step of an epoch takes, for the progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable


class StepClock:
    """A measurement of the steps of one epoch, evaluation or prediction.

    The first graph call of steps is left out as soon as there is a second one: it may trace and
    compile the step. An epoch may begin in its middle, if training resumes there.

    Args:
        clock: A function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.begin(0)

    def begin(self, step: int) -> None:
        """Starts the measurement.

        Args:
            step: How many steps of the epoch were taken before.
        """
        self._first = self._start = self._last = (step, self._clock())

    def took(self, step: int) -> None:
        """Records that steps have been taken.

        Args:
            step: How many steps of the epoch have been taken in total.
        """
        self._last = (step, self._clock())
        if self._first == self._start:
            self._first = self._last

    @property
    def seconds_per_step(self) -> float:
        """The time of a step in seconds; 0 before the first one."""
        for step, moment in (self._first, self._start):
            if self._last[0] > step:
                return (self._last[1] - moment) / (self._last[0] - step)
        return 0.0
