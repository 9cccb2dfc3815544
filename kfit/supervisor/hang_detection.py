"""Hang detection: a task that makes no progress in a call of `fit`, `evaluate` or `predict`.

What counts is progress, not whether the process exists: one that sleeps, waits for a lock or was
stopped still exists. The limit depends on where the task is. Where the user's code cannot be the
reason, it is 10 seconds (or five times the task's own rhythm). Where it can be, a message is
printed after 10 seconds, and the limit is a minute, or half an hour while a hook or the input
computes. This module starts and ends nothing, and gets the time as an argument.
"""

from __future__ import annotations

import signal
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kfit.heartbeat import Phase, Pulse

_TIMES_THE_MEDIAN = 5.0
# A hook that once took 40 seconds may take that long again, so limits grow with the longest time.
_TIMES_THE_LONGEST = 5.0
_SAID_TIMES_THE_LONGEST = 1.5
# With fewer beats than this, a task's rhythm is unknown.
_FIRST_BEATS = 4
# Intervals whose median is the rhythm: only the latest, as training may become slower or faster.
_REMEMBERED = 101
# Tasks that are at the same step beat within this many seconds of each other.
_TOGETHER = 1.0
# A task is no culprit if its limit is more than this many times that of the first one to hang.
_ALIKE = 1.5
# If a look is later than this (in seconds), the supervisor itself was suspended, not the tasks.
_ABSENCE = 2.0
# A process that uses at least this much of a core computes; one that waits uses almost nothing.
_COMPUTES = 0.1
# Phases other than hooks in which the user's code may compute for any time.
_AT_WORK = (Phase.INPUT, Phase.READING_STEP)


@dataclass(frozen=True)
class Limits:
    """Limits in seconds without progress, after which a task counts as hung.

    Attributes:
        idle: Where nothing outside of kfit can be the reason; also the time after which a message
            reports that a task makes no progress.
        user: Where the user's code or data can be the reason.
        long: Where the task cannot report progress: compiling, or waiting for tasks it cannot see.
        margin: How much earlier than at its limit a hang may be found. Since heartbeats are read
            only twice a second, it is then found by the limit.
    """

    idle: float = 10.0
    user: float = 60.0
    long: float = 1800.0
    margin: float = 1.0

    def times(self, factor: float) -> Limits:
        """Returns a copy with all limits multiplied by a factor."""
        return Limits(*(factor * each for each in (self.idle, self.user, self.long, self.margin)))


@dataclass(frozen=True)
class Hang:
    """Tasks that hang.

    Attributes:
        culprits: The tasks that the others wait for, as far as can be told; else all `stalled`.
        stalled: All tasks without progress. Synchronous workers stall together.
        seconds: How long the culprits have made no progress.
        stopped: Whether the culprits were stopped by a signal, such as SIGSTOP.
        doing: What the first culprit was doing; empty if unknown.
        option: The name of the option that changes the limit, for messages.
    """

    culprits: tuple[str, ...]
    stalled: tuple[str, ...]
    seconds: float
    stopped: bool = False
    doing: str = ""
    option: str = ""

    @property
    def name(self) -> str:
        """The first of the culprits."""
        return self.culprits[0]

    @property
    def exit_code(self) -> int:
        """The exit code of a killed task, since tasks that hang are killed."""
        return 128 + signal.SIGKILL

    @property
    def is_preemption(self) -> bool:
        """Always False: a hang is not a preemption."""
        return False

    @property
    def hint(self) -> str:
        """Advice for the user, to be appended to the message."""
        return f" ({self.option} changes how long that may be)" if self.option else ""

    def __str__(self) -> str:
        names = ", ".join(self.culprits)
        if self.stopped:
            return f"{names} hung: stopped by a signal (SIGSTOP) for {self.seconds:.0f} s"
        together = " together" if len(self.culprits) > 1 else ""
        doing = f", {self.doing}" if self.doing else ""
        return f"{names} hung{together}: no progress for {self.seconds:.0f} s{doing}"


@dataclass
class _Rhythm:
    """The heartbeats of one task over time.

    Attributes:
        pulse: The latest heartbeat.
        intervals: The latest times between two beats, in seconds.
        median: Their median.
        longest: For each phase, the longest time without progress from which the task recovered.
        stalled_for: Seconds since its last progress, at the last look.
        stopped_since: When it was found stopped by a signal; None if it is not stopped.
        said_of: The `since` of the stall that a message has reported; None if there was none.
    """

    pulse: Pulse = field(default_factory=Pulse)
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    median: float = 0.0
    longest: dict[int, float] = field(default_factory=dict)
    stalled_for: float = 0.0
    stopped_since: float | None = None
    said_of: float | None = None

    def take(self, pulse: Pulse, now: float, last_look: float) -> None:
        """Updates the state with a new heartbeat."""
        before, self.pulse = self.pulse, pulse
        if (before.phase, before.time) != (pulse.phase, pulse.time):
            # The look before has measured how long the task was there.
            if self.stalled_for > self.longest.get(before.phase, 0.0):
                self.longest[before.phase] = self.stalled_for
            self.stalled_for = 0.0
        else:
            self.stalled_for = now - pulse.time
        beats = pulse.beats - before.beats
        if beats and before.in_call and pulse.in_call:
            since = before.time if before.beats else last_look
            self.intervals.append(max(0.0, pulse.time - since) / beats)
            self.median = statistics.median(self.intervals)

    @property
    def waits(self) -> bool:
        """Whether the task waits for its peers, as far as its heartbeat tells."""
        pulse = self.pulse
        if self.stopped_since is not None or pulse.phase >= Phase.HOOK:
            return False
        if pulse.phase == Phase.PEERS or pulse.meeting_since is not None:
            return True
        in_step = pulse.phase == Phase.STEP and not pulse.in_user_code
        return in_step and pulse.workers > 1 and not pulse.marks_meetings

    @property
    def since(self) -> float:
        """The start of the current stall: the last progress, or the start of a wait or a stop."""
        if self.stopped_since is not None:
            return self.stopped_since
        return max(self.pulse.time, self.pulse.meeting_since or 0.0)


class Hangs:
    """Finds the tasks of one generation that hang, and reports those that may hang.

    Only a task in a call of kfit can hang. A task that waits for its peers gets the longest
    limit while one of them does something else, and a short one once all wait. A task stopped by a
    signal makes no progress, whatever its phase.

    Args:
        limit: The user's limit in seconds, which replaces `limits` except where a task compiles or
            cannot report progress; None for `limits`.
        now: The time, by `time.monotonic()`, as in all methods.
        limits: The limits to use by default.
        option: The name of the option that sets `limit`, for messages.
    """

    def __init__(
        self,
        limit: float | None,
        now: float,
        limits: Limits | None = None,
        option: str = "`--hang-timeout`",
    ) -> None:
        self._limit = limit
        self._limits = limits or Limits()
        self._option = option
        self._rhythms: dict[str, _Rhythm] = {}
        self._last_look = now
        self._since = now

    def start_anew(self, now: float) -> None:
        """Restarts all clocks: stalls before `now` do not count, since they have another reason."""
        self._last_look = self._since = now
        for rhythm in self._rhythms.values():
            if rhythm.stopped_since is not None:
                rhythm.stopped_since = now

    def look(
        self, now: float, pulses: Mapping[str, Pulse], stopped: Collection[str] = ()
    ) -> Hang | None:
        """Checks all running tasks. To be called a few times a second.

        Args:
            now: The time.
            pulses: The latest heartbeat of each running task.
            stopped: The names of the tasks that the system shows as stopped by a signal.

        Returns:
            The hang if a task has passed its limit, else None.
        """
        if now - self._last_look > _ABSENCE:
            self.start_anew(now)
        for name, pulse in pulses.items():
            rhythm = self._rhythms.setdefault(name, _Rhythm())
            rhythm.take(pulse, now, self._last_look)
            if name not in stopped or not pulse.pid:
                rhythm.stopped_since = None
            elif rhythm.stopped_since is None:
                rhythm.stopped_since = now
        self._last_look = now
        # The part of its limit that each task has used up.
        limits = {name: self._limit_of(name, pulses) for name in pulses}
        quiet = {name: self._quiet(name, now, pulses) / limits[name] for name in pulses}
        first = max(quiet, key=lambda name: quiet[name], default="")
        if not first or quiet[first] <= 1.0:
            return None
        # Tasks that hang together reach their limits one soon after the other.
        near = tuple(name for name, part in quiet.items() if part > 0.5)
        # A task with a much longer limit is not a culprit.
        alike = (name for name in near if limits[name] <= _ALIKE * limits[first])
        culprits = self._culprits(tuple(alike))
        waiting = (name for name in pulses if self._rhythms[name].waits and name not in near)
        seconds = max(self._quiet(name, now, pulses) for name in culprits)
        is_stopped = all(self._rhythms[name].stopped_since is not None for name in culprits)
        doing = self._rhythms[culprits[0]].pulse.doing
        return Hang(culprits, (*near, *waiting), seconds, is_stopped, doing, self._option)

    def notices(self, now: float, pulses: Mapping[str, Pulse]) -> list[str]:
        """Returns messages about tasks that make no progress, one for each task and stall.

        Args:
            now: The time of the last look.
            pulses: The heartbeats of the last look.
        """
        due = [name for name in pulses if self._is_to_be_said(name, now, pulses)]
        own = [name for name in due if not self._rhythms[name].waits]
        lines = []
        for name in own or due:
            rhythm = self._rhythms[name]
            rhythm.said_of = rhythm.since
            lines.append(self._notice(name, now, pulses))
        return lines

    def stopped(self, now: float) -> Hang | None:
        """Returns the hang of the tasks that are stopped, even before their limit; None if none is.

        If another task fails meanwhile, the most likely reason is that they did not answer:
        TensorFlow gives up such a peer after some seconds.

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

    def _quiet(self, name: str, now: float, pulses: Mapping[str, Pulse]) -> float:
        """Seconds without progress of a task; 0 while it cannot count as hung."""
        rhythm = self._rhythms[name]
        is_judged = rhythm.pulse.in_call
        if rhythm.stopped_since is not None:
            # A task that is stopped in the user's own code still blocks tasks that wait for it.
            is_judged = any(each.pulse.in_call for each in self._rhythms.values())
        since = rhythm.since
        if rhythm.waits and not self._others(name, pulses):
            # All tasks wait for each other, perhaps since the last one of them arrived just now.
            since = max(self._rhythms[each].since for each in pulses if pulses[each].in_call)
        return max(0.0, now - max(since, self._since)) if is_judged else 0.0

    def _limit_of(self, name: str, pulses: Mapping[str, Pulse]) -> float:
        """Seconds that a task may go without progress where it is."""
        rhythm, limits = self._rhythms[name], self._limits
        pulse = rhythm.pulse
        idle = limits.idle - limits.margin
        if rhythm.stopped_since is not None:
            return self._limit or idle
        if rhythm.waits:
            if self._others(name, pulses) or pulse.workers > self._known():
                return limits.long
            return self._limit or max(idle, _TIMES_THE_MEDIAN * rhythm.median - limits.margin)
        if pulse.limit is not None:
            return pulse.limit
        is_slow = pulse.phase in (Phase.WORK, Phase.TRACING, Phase.SKIPPING, Phase.JOINING)
        if is_slow and not pulse.in_user_code:
            return max(limits.long, self._limit or 0.0)
        if self._limit is not None:
            return self._limit
        computes = pulse.busy > _COMPUTES
        if computes and (pulse.phase in _AT_WORK or pulse.phase >= Phase.HOOK):
            return limits.long
        median = _TIMES_THE_MEDIAN * rhythm.median - limits.margin
        longest = _TIMES_THE_LONGEST * rhythm.longest.get(pulse.phase, 0.0)
        user = limits.user - limits.margin
        if pulse.phase != Phase.STEP and not is_slow:
            user = max(user, longest)
        if pulse.phase not in (Phase.STEP, Phase.READING_STEP):
            return user
        if pulse.beats < _FIRST_BEATS:
            return limits.long if computes and not pulse.in_user_code else user
        if computes or pulse.in_user_code or pulse.phase == Phase.READING_STEP:
            return max(user, median)
        return max(idle, median)

    def _is_to_be_said(self, name: str, now: float, pulses: Mapping[str, Pulse]) -> bool:
        rhythm = self._rhythms[name]
        if rhythm.said_of == rhythm.since:
            return False
        if rhythm.waits and any(pulses[each].in_call for each in self._others(name, pulses)):
            return False  # it waits for a task that has a message of its own, if necessary
        limit = self._limit_of(name, pulses)
        if limit <= self._limits.idle:
            return False  # it is ended by then, so a message would come too late
        longest = rhythm.longest.get(rhythm.pulse.phase, 0.0)
        usual = max(_TIMES_THE_MEDIAN * rhythm.median, _SAID_TIMES_THE_LONGEST * longest)
        after = min(max(self._limits.idle, usual) - self._limits.margin, 0.75 * limit)
        return self._quiet(name, now, pulses) > after

    def _notice(self, name: str, now: float, pulses: Mapping[str, Pulse]) -> str:
        rhythm = self._rhythms[name]
        doing = rhythm.pulse.doing
        outside = [each for each in self._others(name, pulses) if not pulses[each].in_call]
        if rhythm.waits and outside:
            places = [f"{each} is {pulses[each].doing}" for each in outside]
            doing = f"waiting for its peers; {', '.join(places)}"
        limit = self._limit_of(name, pulses)
        limit += self._limits.margin if limit < self._limits.long and self._limit is None else 0.0
        quiet = self._quiet(name, now, pulses)
        return (
            f"{name} has made no progress for {quiet:.0f} s: it is {doing}. It is "
            f"ended as hung after {limit:.0f} s without progress; {self._option} changes that"
        )

    def _others(self, name: str, pulses: Mapping[str, Pulse]) -> list[str]:
        """The tasks that `name` may wait for: those with a heartbeat that are not waiting."""
        others = (each for each in pulses if each != name and pulses[each].pid)
        return [each for each in others if not self._rhythms[each].waits]

    def _known(self) -> int:
        """Number of tasks whose heartbeat was ever seen; other tasks have supervisors elsewhere."""
        return sum(bool(rhythm.pulse.pid) for rhythm in self._rhythms.values())

    def _culprits(self, near: tuple[str, ...]) -> tuple[str, ...]:
        """The stalled tasks that the others wait for, as far as that can be told."""
        stopped = tuple(n for n in near if self._rhythms[n].stopped_since is not None)
        if stopped:
            return stopped
        near = tuple(n for n in near if not self._rhythms[n].waits) or near
        pulses = {name: self._rhythms[name].pulse for name in near}
        lowest = min(pulse.step for pulse in pulses.values())
        behind = {name: pulse for name, pulse in pulses.items() if pulse.step == lowest}
        oldest = min(pulse.time for pulse in behind.values())
        return tuple(name for name, pulse in behind.items() if pulse.time <= oldest + _TOGETHER)
