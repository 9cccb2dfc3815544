"""The clock of a thread: how long the thread was in each phase of a `fit`.

`Heartbeat` tells the clock each change of the phase, whether there is a supervisor or not. If
phases are nested, the time counts for the innermost one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kfit.heartbeat.phases import HOOKS, Phase

SIZE = Phase.HOOK + len(HOOKS)
"""The number of times in a ledger: one for each phase, and one for each hook of callbacks."""

VALIDATION = Phase.HOOK - 1
"""The place in a ledger of the time of validations, which is no phase for the supervisor."""

BUILDING = Phase.HOOK - 2
"""The place in a ledger of the time in which a `fit` is prepared."""


class _Outer(NamedTuple):
    """What `Clock.open` interrupts: a ledger and its phase, and when and how it was interrupted."""

    ledger: list[int]
    phase: int
    opened: int
    charged: int


class Clock:
    """A clock that adds up the time that a thread spends in each phase, in a ledger.

    A ledger is a list of times in ns, by the number of the phase. A `fit` has a ledger of its own,
    and so has each of its validations, and each call of kfit that a callback makes. When an inner
    ledger is closed, all its time is added to one place of the outer ledger.
    """

    def __init__(self) -> None:
        self._ledger = [0] * SIZE
        self._outer: list[_Outer] = []
        self._phase = int(Phase.OUTSIDE)
        self._since = time.monotonic_ns()

    @property
    def in_hook(self) -> bool:
        """Whether the thread is in a hook of a callback."""
        return self._phase >= Phase.HOOK

    def time_in(self, phase: int) -> int:
        """Returns the time in ns in a phase which the thread has left, in the present ledger."""
        return self._ledger[phase]

    def change(self, phase: int) -> int:
        """Records that the thread is in another phase from now on.

        Args:
            phase: A `Phase`, or the number of a hook of callbacks.

        Returns:
            The phase until now.
        """
        now = time.monotonic_ns()
        before = self._phase
        self._ledger[before] += now - self._since
        self._since = now
        self._phase = phase
        return before

    def move(self, seconds: float, to: int, source: int | None = None) -> None:
        """Counts time for another phase than the one that the thread was in.

        Args:
            seconds: The time to move.
            to: The phase for which the time counts.
            source: The phase for which it has counted so far; None for the present phase.
        """
        moved = int(seconds * 1e9)
        self._ledger[self._phase if source is None else source] -= moved
        self._ledger[to] += moved

    def open(self, charged: int | None = None) -> list[int]:
        """Opens a ledger, in which the time counts until `close` is called, and returns it.

        Args:
            charged: The place of the outer ledger to which all this time is added at the end; None
                for the present phase.
        """
        phase = self.change(Phase.WORK)
        place = phase if charged is None else charged
        self._outer.append(_Outer(self._ledger, phase, self._since, place))
        self._ledger = [0] * SIZE
        return self._ledger

    def close(self) -> None:
        """Closes the ledger that was opened last, and goes on in the outer one."""
        self.change(Phase.OUTSIDE)
        self._ledger, self._phase, opened, charged = self._outer.pop()
        self._ledger[charged] += self._since - opened

    @contextmanager
    def ledger(self, charged: int | None = None) -> Iterator[list[int]]:
        """Context in which the time counts in a ledger of its own; see `open`."""
        opened = self.open(charged)
        try:
            yield opened
        finally:
            self.close()

    def times(self, ledger: list[int]) -> list[int]:
        """Returns the times of a ledger until now, in ns by phase.

        Args:
            ledger: A ledger that `open` has returned. It may be open or closed, and inner ledgers
                may be open.
        """
        self.change(self._phase)
        times = list(ledger)
        for outer in self._outer:
            if outer.ledger is ledger:
                times[outer.charged] += self._since - outer.opened
        return times


_threads = threading.local()


def clock_of_thread() -> Clock:
    """Returns the clock of the thread that calls the function."""
    try:
        clock: Clock = _threads.clock
    except AttributeError:
        clock = _threads.clock = Clock()
    return clock
