"""Measures how long a step of an epoch takes, for the progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable

from kfit.heartbeat import Phase
from kfit.heartbeat.clock import clock_of_thread


class StepClock:
    """A measurement of the steps of one epoch, evaluation or prediction.

    Graph calls of steps that were traced are left out as soon as there is another one, and so is
    the first call, which fills buffers. An epoch may begin in its middle, if training resumes
    there.

    Args:
        clock: A function that returns the time in seconds.
        tracing: A function that returns how long steps were traced so far, in any unit.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        tracing: Callable[[], float] = lambda: clock_of_thread().time_in(Phase.TRACING),
    ) -> None:
        self._clock, self._tracing = clock, tracing
        self.begin(0)

    def begin(self, step: int) -> None:
        """Starts the measurement.

        Args:
            step: How many steps of the epoch were taken before.
        """
        self._last = self._start = (step, self._clock())
        # Where the steps would have begun without the calls that were traced, and without the
        # first call as well.
        self._untraced = self._later = self._start
        self._traced = self._tracing()
        self._is_first = True

    def took(self, step: int) -> None:
        """Records that steps have been taken.

        Args:
            step: How many steps of the epoch have been taken in total.
        """
        now, traced = self._clock(), self._tracing()
        if self._is_first or traced != self._traced:
            steps, seconds = step - self._last[0], now - self._last[1]
            self._later = (self._later[0] + steps, self._later[1] + seconds)
            if traced != self._traced:
                self._untraced = (self._untraced[0] + steps, self._untraced[1] + seconds)
            self._traced, self._is_first = traced, False
        self._last = (step, now)

    @property
    def seconds_per_step(self) -> float:
        """The time of a step in seconds; 0 before the first one."""
        for step, moment in (self._later, self._untraced, self._start):
            if self._last[0] > step:
                return (self._last[1] - moment) / (self._last[0] - step)
        return 0.0

    @property
    def is_without_tracing(self) -> bool:
        """Whether no tracing is in the time of a step."""
        return self._last[0] > self._untraced[0]
