"""Decides whether and when the tasks of a run are restarted, without using processes or a clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kfit.heartbeat.reached import Reached

REACHED = "KFIT_REACHED"
"""The environment variable that tells a task how far each earlier attempt has come."""
_SHORTEST, _LONGEST = 0.25, 30.0
# The delay is made longer by a random part, at most this fraction of it. So hosts that fail
# together do not restart together every time.
_JITTER = 0.25


class Restarts:
    """The rule that decides after each failure whether the tasks of a run are started again.

    The budget limits failures in a row without progress. An attempt has made progress if it has
    come beyond the furthest place of all earlier attempts, to a further step or to a later `fit` of
    the program; then the count starts again at 0.
    So a run of weeks survives any number of failures, while a run that fails at the same step each
    time soon ends. A preemption is not the program's fault, and is not counted if there was
    progress before it.

    If two attempts in a row end by the same error at the same step, and the second one has made no
    progress, a third would end so, too, and the tasks are not started again. That is only decided
    of errors that a task has raised by itself, not of kills or lost peers.

    Args:
        budget: The maximum number of restarts in a row without progress; 0 for no restart at all.
        chance: A function that returns random numbers from 0 to 1, by which delays are varied.

    Attributes:
        budget: The value of the argument.
        failures: The present count of failures in a row.
        reached: For each attempt that has failed, the last training step that it reached, and of
            which `fit`.
        is_repeated: Whether the last two attempts ended by the same error without progress.
    """

    def __init__(self, budget: int, chance: Callable[[], float] = random.random) -> None:
        self.budget = budget
        self.failures = 0
        self.reached: list[Reached] = []
        self.is_repeated = False
        self._chance = chance
        self._error = ""
        self._furthest = Reached()

    def after(self, reached: Reached, *, preempted: bool, error: str = "") -> float | None:
        """Counts a failure, and decides whether and when the tasks are started again.

        Args:
            reached: The last training step that the failed attempt reached, and of which `fit`.
            preempted: Whether the attempt ended because a task was preempted (told to stop by the
                platform).
            error: The class and the message of the error that a task has raised by itself; empty if
                the attempt ended in another way.

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
        is_same = bool(error) and error == self._error and self.reached[-2:] == [reached] * 2
        self._error = error
        self.is_repeated = is_same and not progress
        if self.is_repeated or self.failures > self.budget:
            return None
        # The exponent is limited as well, since 2.0 ** 1024 raises OverflowError.
        doubled = _SHORTEST * 2.0 ** min(max(0, self.failures - 1), 16)
        return min(_LONGEST, doubled) * (1 + _JITTER * self._chance())


def told(reached: Sequence[Reached]) -> str:
    """Returns the value of `REACHED`, by which a task learns how many steps were lost.

    Args:
        reached: `Restarts.reached`.
    """
    return ",".join(f"{each.fit}:{each.step}" for each in reached)


def heard(text: str) -> tuple[Reached, ...]:
    """Returns what `told` has told: how far each earlier attempt has come."""
    parts = (part.split(":") for part in text.split(",") if part)
    return tuple(Reached(int(fit), int(step)) for fit, step in parts)
