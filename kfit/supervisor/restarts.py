"""Decides whether and when the tasks of a run are restarted, without using processes or a clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

REACHED = "KFIT_REACHED"
"""The environment variable that tells a task which step each earlier attempt has reached."""
_SHORTEST, _LONGEST = 0.25, 30.0
# The delay is made longer by a random part, at most this fraction of it. So hosts that fail
# together do not restart together every time.
_JITTER = 0.25


class Restarts:
    """The rule that decides after each failure whether the tasks of a run are started again.

    The budget limits failures in a row without progress. An attempt has made progress if it has
    taken steps beyond the furthest step of all earlier attempts; then the count starts again at 0.
    So a run of weeks survives any number of failures, while a run that fails at the same step each
    time soon ends. A preemption is not the program's fault, and is not counted if there was
    progress before it.

    Args:
        budget: The maximum number of restarts in a row without progress; 0 for no restart at all.
        chance: A function that returns random numbers from 0 to 1, by which delays are varied.

    Attributes:
        budget: The value of the argument.
        failures: The present count of failures in a row.
        reached: For each attempt that has failed, the last training step that it reached.
    """

    def __init__(self, budget: int, chance: Callable[[], float] = random.random) -> None:
        self.budget = budget
        self.failures = 0
        self.reached: list[int] = []
        self._chance = chance
        self._furthest = 0

    def after(self, reached: int, *, preempted: bool) -> float | None:
        """Counts a failure, and decides whether and when the tasks are started again.

        Args:
            reached: The last training step that the failed attempt reached; 0 if it took none.
            preempted: Whether the attempt ended because a task was preempted (told to stop by the
                platform).

        Returns:
            The seconds to wait before the tasks are started again; None if they are not started
            again.
        """
        self.reached.append(reached)
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
        # The exponent is limited as well, since 2.0 ** 1024 raises OverflowError.
        doubled = _SHORTEST * 2.0 ** min(max(0, self.failures - 1), 16)
        return min(_LONGEST, doubled) * (1 + _JITTER * self._chance())


def told(reached: Sequence[int]) -> str:
    """Returns the value of `REACHED`, by which a task learns how many steps were lost.

    Args:
        reached: `Restarts.reached`.
    """
    return ",".join(map(str, reached))


def heard(text: str) -> tuple[int, ...]:
    """Returns what `told` has told: the last step that each earlier attempt has reached."""
    return tuple(int(part) for part in text.split(",") if part)
