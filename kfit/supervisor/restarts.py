"""The rule of restarts: how many, and after how long. It knows no processes and no clock."""

from __future__ import annotations

import random
from collections.abc import Callable

_SHORTEST, _LONGEST = 0.25, 30.0
# Hosts that fail together must not come back together, time after time.
_JITTER = 0.25


class Restarts:
    """Decides after each failure whether the tasks are started again.

    The budget is for failures in a row. A generation that has taken steps beyond the furthest step
    of all earlier ones has made progress, and the count begins anew: a run of weeks survives any
    number of failures, while one that dies at the same step each time soon ends. A preemption is no
    fault of the program: it costs nothing, unless it came before there was any progress.

    Args:
        budget: How many restarts in a row without progress; 0 never restarts.
        chance: Returns random numbers from 0 to 1.
    """

    def __init__(self, budget: int, chance: Callable[[], float] = random.random) -> None:
        self.budget = budget
        self.failures = 0
        self._chance = chance
        self._furthest = 0

    def after(self, reached: int, *, preempted: bool) -> float | None:
        """Takes in that a generation has failed.

        Args:
            reached: The furthest step of the generation; 0 when it took none.
            preempted: Whether it ended because a task was preempted.

        Returns:
            The seconds to wait before the next generation starts, or None when there is none.
        """
        if self.budget == 0:
            return None
        progress = reached > self._furthest
        self._furthest = max(reached, self._furthest)
        if progress:
            self.failures = 0
        if not (preempted and progress):
            self.failures += 1
        if self.failures > self.budget:
            return None
        # The exponent is bounded as well: 2.0 ** 1024 is an error.
        doubled = _SHORTEST * 2.0 ** min(max(0, self.failures - 1), 16)
        return min(_LONGEST, doubled) * (1 + _JITTER * self._chance())
