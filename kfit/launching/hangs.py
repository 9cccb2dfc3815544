"""The rule of hangs: a task that was beating and does not get on any more. Pure, but for no clock.

What counts is progress, not life: a process that sleeps, waits for a lock or was stopped is alive.
How long is too long, the task's own rhythm tells.
"""

from __future__ import annotations

import signal
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kfit.heartbeat import UNHURRIED_LIMIT, Pulse

_SHORTEST_LIMIT = 10.0
_TIMES_THE_MEDIAN = 5.0
# By the limit a hang has been found: so much earlier it is looked for, twice a second.
_MARGIN = 1.0
# Before that many beats the rhythm of a task is unknown.
_FIRST_BEATS = 4
# The median of the latest intervals: training may have slower and faster stretches.
_REMEMBERED = 101
# Tasks that beat at the same step do so within this many seconds.
_TOGETHER = 1.0
# A look that comes so late tells of the supervisor, not of the tasks: it was itself suspended.
_ABSENCE = 2.0


@dataclass(frozen=True)
class Hang:
    """That tasks do not get on any more.

    Attributes:
        culprits: Those that hold up the others, as far as can be told; otherwise all `stalled`.
        stalled: All that do not get on. Synchronous workers stall together.
        seconds: How long the culprits have not.
        stopped: Whether the culprits were stopped, as by SIGSTOP.
    """

    culprits: tuple[str, ...]
    stalled: tuple[str, ...]
    seconds: float
    stopped: bool = False

    @property
    def name(self) -> str:
        """The first of the culprits."""
        return self.culprits[0]

    @property
    def exit_code(self) -> int:
        """That of a task which is killed, as those that hang are."""
        return 128 + signal.SIGKILL

    @property
    def is_preemption(self) -> bool:
        """Never: nobody asked for it."""
        return False

    def __str__(self) -> str:
        names = ", ".join(self.culprits)
        if self.stopped:
            return f"{names} hung: stopped by a signal (SIGSTOP) for {self.seconds:.0f} s"
        together = " together" if len(self.culprits) > 1 else ""
        return f"{names} hung{together}: no progress for {self.seconds:.0f} s"


@dataclass
class _Rhythm:
    """What is known of one task from the looks so far."""

    pulse: Pulse = field(default_factory=Pulse)
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    median: float = 0.0
    stopped_since: float | None = None

    def take(self, pulse: Pulse, last_look: float) -> None:
        """Takes in a new pulse."""
        before, self.pulse = self.pulse, pulse
        beats = pulse.beats - before.beats
        if beats == 0 or before.finished or before.unhurried_since is not None:
            return
        since = before.time if before.beats else last_look
        self.intervals.append(max(0.0, pulse.time - since) / beats)
        self.median = statistics.median(self.intervals)

    def quiet_since(self) -> float | None:
        """Since when the task should have got on; None while it is not judged."""
        pulse = self.pulse
        if self.stopped_since is not None:
            return self.stopped_since
        if pulse.unhurried_since is not None:
            return pulse.unhurried_since
        return None if pulse.finished or not pulse.beats else pulse.time


class Hangs:
    """Finds the tasks of one generation that hang.

    A task is judged from its first beat until it says that it has finished. It is found to hang
    within 10 seconds, or five times the median interval between its beats if that is longer; within
    `Heartbeat.unhurried`, and before a few beats have told the median, after the limit given there,
    half an hour. A task that a signal has stopped gets nowhere, whatever it is doing: that is found
    within 10 seconds too.

    Args:
        limit: Seconds that take the place of 10 and the median; None for these.
        now: The time, by `time.monotonic()`, as in all calls.
    """

    def __init__(self, limit: float | None, now: float) -> None:
        self._limit = limit
        self._rhythms: dict[str, _Rhythm] = {}
        self._last_look = now
        self._since = now

    def start_anew(self, now: float) -> None:
        """Starts all clocks anew: until now, that a task was quiet has told nothing."""
        self._last_look = self._since = now
        for rhythm in self._rhythms.values():
            if rhythm.stopped_since is not None:
                rhythm.stopped_since = now

    def look(
        self, now: float, pulses: Mapping[str, Pulse], stopped: Collection[str] = ()
    ) -> Hang | None:
        """Looks at all tasks that run; to be called a few times a second.

        Args:
            now: The time.
            pulses: What each task has last written.
            stopped: Those that the system shows as stopped.

        Returns:
            The hang, once a task hangs.
        """
        if now - self._last_look > _ABSENCE:
            self.start_anew(now)
        for name, pulse in pulses.items():
            rhythm = self._rhythms.setdefault(name, _Rhythm())
            rhythm.take(pulse, self._last_look)
            if name not in stopped or not pulse.pid:
                rhythm.stopped_since = None
            elif rhythm.stopped_since is None:
                rhythm.stopped_since = now
        self._last_look = now
        # How far each is on its way to its limit.
        quiet = {name: self._quiet(name, now) / self._limit_of(name) for name in pulses}
        if max(quiet.values(), default=0.0) <= 1.0:
            return None
        # The others soon will have reached theirs: nobody's beats are at the very same time.
        stalled = tuple(name for name, part in quiet.items() if part > 0.5)
        culprits = self._culprits(stalled)
        seconds = max(self._quiet(name, now) for name in culprits)
        is_stopped = all(self._rhythms[name].stopped_since is not None for name in culprits)
        return Hang(culprits, stalled, seconds, is_stopped)

    def stopped(self, now: float) -> Hang | None:
        """Returns the hang of the tasks that are stopped, before its time has come.

        A task that fails meanwhile most likely failed because they did not answer: TensorFlow
        gives up such a peer after some seconds.

        Args:
            now: The time.
        """
        since = {
            name: rhythm.stopped_since
            for name, rhythm in self._rhythms.items()
            if rhythm.stopped_since is not None and now - rhythm.stopped_since > _TOGETHER
        }
        if not since:
            return None
        return Hang(tuple(since), tuple(since), now - min(since.values()), stopped=True)

    def _quiet(self, name: str, now: float) -> float:
        since = self._rhythms[name].quiet_since()
        return 0.0 if since is None else now - max(since, self._since)

    def _limit_of(self, name: str) -> float:
        rhythm = self._rhythms[name]
        pulse = rhythm.pulse
        if rhythm.stopped_since is None and pulse.unhurried_since is not None:
            return pulse.unhurried_limit
        if self._limit is not None:
            return self._limit
        if rhythm.stopped_since is not None:
            return _SHORTEST_LIMIT - _MARGIN
        if pulse.beats < _FIRST_BEATS:
            return UNHURRIED_LIMIT
        return max(_SHORTEST_LIMIT, _TIMES_THE_MEDIAN * rhythm.median) - _MARGIN

    def _culprits(self, stalled: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the stalled tasks for whom the others wait, where that can be told."""
        stopped = tuple(n for n in stalled if self._rhythms[n].stopped_since is not None)
        if stopped:
            return stopped
        pulses = {name: self._rhythms[name].pulse for name in stalled}
        lowest = min(pulse.step for pulse in pulses.values())
        behind = {name: pulse for name, pulse in pulses.items() if pulse.step == lowest}
        oldest = min(pulse.time for pulse in behind.values())
        return tuple(name for name, pulse in behind.items() if pulse.time <= oldest + _TOGETHER)
