"""Hang detection: a task that makes no progress in a call of `fit`, `evaluate` or `predict`.

What counts is progress, not life: a process that sleeps, waits for a lock or was stopped is alive.
How long is too long depends on where the task is. Where no code of the user's can be the reason, 10
seconds are (or five times the task's own rhythm); where it can be, that is only said aloud after 10
seconds, and a minute is too long; half an hour where a hook or the input computes. Pure, but for no
clock.
"""

from __future__ import annotations

import signal
import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kfit.heartbeat import Phase, Pulse

_TIMES_THE_MEDIAN = 5.0
# A hook that once took 40 seconds may take that again, and is spoken of only when it takes longer.
_TIMES_THE_LONGEST = 5.0
_SAID_TIMES_THE_LONGEST = 1.5
# Before that many beats the rhythm of a task is unknown.
_FIRST_BEATS = 4
# The median of the latest intervals: training may have slower and faster stretches.
_REMEMBERED = 101
# Tasks that beat at the same step do so within this many seconds.
_TOGETHER = 1.0
_ALIKE = 1.5
# A look that comes so late tells of the supervisor, not of the tasks: it was itself suspended.
_ABSENCE = 2.0
# A process that uses so much of a core computes; one that waits uses next to nothing.
_COMPUTES = 0.1
# Where, as in hooks, the user's code may compute for as long as it likes.
_AT_WORK = (Phase.INPUT, Phase.READING_STEP)


@dataclass(frozen=True)
class Limits:
    """How many seconds without progress are too many.

    Attributes:
        idle: Where nothing outside of kfit can be the reason; and when it is said that a task does
            not get on.
        user: Where code or data of the user's can be.
        long: Where the task cannot tell of progress: compiling, or waiting for what it cannot see.
        margin: So much earlier a hang is looked for, twice a second: by the limit it is found.
    """

    idle: float = 10.0
    user: float = 60.0
    long: float = 1800.0
    margin: float = 1.0

    def times(self, factor: float) -> Limits:
        """Returns all of them multiplied by a factor."""
        return Limits(*(factor * each for each in (self.idle, self.user, self.long, self.margin)))


@dataclass(frozen=True)
class Hang:
    """That tasks do not get on any more.

    Attributes:
        culprits: Those that hold up the others, as far as can be told; otherwise all `stalled`.
        stalled: All that do not get on. Synchronous workers stall together.
        seconds: How long the culprits have not.
        stopped: Whether the culprits were stopped, as by SIGSTOP.
        doing: What the first of the culprits was doing; empty when unknown.
        option: What changes the limit that was passed.
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
        """That of a task which is killed, as those that hang are."""
        return 128 + signal.SIGKILL

    @property
    def is_preemption(self) -> bool:
        """Never: nobody asked for it."""
        return False

    @property
    def hint(self) -> str:
        """What the user can do about it, to be put after it."""
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
    """What is known of one task from the looks so far."""

    pulse: Pulse = field(default_factory=Pulse)
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    median: float = 0.0
    longest: dict[int, float] = field(default_factory=dict)
    stalled_for: float = 0.0
    stopped_since: float | None = None
    said_of: float | None = None

    def take(self, pulse: Pulse, now: float, last_look: float) -> None:
        """Takes in a new pulse."""
        before, self.pulse = self.pulse, pulse
        if (before.phase, before.time) != (pulse.phase, pulse.time):
            # How long it was there is known to the look before.
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
        """Whether the task waits for its peers, as far as it can tell."""
        pulse = self.pulse
        if self.stopped_since is not None or pulse.phase >= Phase.HOOK:
            return False
        if pulse.phase == Phase.PEERS or pulse.meeting_since is not None:
            return True
        in_step = pulse.phase == Phase.STEP and not pulse.in_user_code
        return in_step and pulse.workers > 1 and not pulse.marks_meetings

    @property
    def since(self) -> float:
        """Since when the task should have got on."""
        if self.stopped_since is not None:
            return self.stopped_since
        return max(self.pulse.time, self.pulse.meeting_since or 0.0)


class Hangs:
    """Finds the tasks of one generation that hang, and says which will be found to.

    Only a task in a call of kfit is judged. Who waits for its peers shares their excuse: it hangs
    when all wait. A task that a signal has stopped gets nowhere, whatever it is doing.

    Args:
        limit: Seconds that take the place of the limits, but for compiling; None for these.
        now: The time, by `time.monotonic()`, as in all calls.
        limits: The limits.
        option: What the user changes `limit` by.
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
            rhythm.take(pulse, now, self._last_look)
            if name not in stopped or not pulse.pid:
                rhythm.stopped_since = None
            elif rhythm.stopped_since is None:
                rhythm.stopped_since = now
        self._last_look = now
        # How far each is on its way to its limit.
        limits = {name: self._limit_of(name, pulses) for name in pulses}
        quiet = {name: self._quiet(name, now, pulses) / limits[name] for name in pulses}
        first = max(quiet, key=lambda name: quiet[name], default="")
        if not first or quiet[first] <= 1.0:
            return None
        # The others soon will have reached theirs: nobody's beats are at the very same time.
        near = tuple(name for name, part in quiet.items() if part > 0.5)
        # Who may take much longer is not to blame.
        alike = (name for name in near if limits[name] <= _ALIKE * limits[first])
        culprits = self._culprits(tuple(alike))
        waiting = (name for name in pulses if self._rhythms[name].waits and name not in near)
        seconds = max(self._quiet(name, now, pulses) for name in culprits)
        is_stopped = all(self._rhythms[name].stopped_since is not None for name in culprits)
        doing = self._rhythms[culprits[0]].pulse.doing
        return Hang(culprits, (*near, *waiting), seconds, is_stopped, doing, self._option)

    def notices(self, now: float, pulses: Mapping[str, Pulse]) -> list[str]:
        """Returns what is to be said of tasks that do not get on; of each once a stall.

        Args:
            now: The time of the last look.
            pulses: Those of the last look.
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

    def _quiet(self, name: str, now: float, pulses: Mapping[str, Pulse]) -> float:
        """For how many seconds a task has not got on, where it is judged."""
        rhythm = self._rhythms[name]
        is_judged = rhythm.pulse.in_call
        if rhythm.stopped_since is not None:
            # A task that is stopped in code of the user's own harms who waits for it.
            is_judged = any(each.pulse.in_call for each in self._rhythms.values())
        since = rhythm.since
        if rhythm.waits and not self._others(name, pulses):
            # All have come to where they meet, the last one of them just now perhaps.
            since = max(self._rhythms[each].since for each in pulses if pulses[each].in_call)
        return max(0.0, now - max(since, self._since)) if is_judged else 0.0

    def _limit_of(self, name: str, pulses: Mapping[str, Pulse]) -> float:
        """Seconds that a task may take where it is."""
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
            return False  # for one that is spoken of itself, if need be
        limit = self._limit_of(name, pulses)
        if limit <= self._limits.idle:
            return False  # it is ended by then
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
        """The tasks that one which waits may wait for: those that do not wait themselves."""
        others = (each for each in pulses if each != name and pulses[each].pid)
        return [each for each in others if not self._rhythms[each].waits]

    def _known(self) -> int:
        """How many tasks with a heartbeat were ever seen; others have supervisors elsewhere."""
        return sum(bool(rhythm.pulse.pid) for rhythm in self._rhythms.values())

    def _culprits(self, near: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the stalled tasks for whom the others wait, where that can be told."""
        stopped = tuple(n for n in near if self._rhythms[n].stopped_since is not None)
        if stopped:
            return stopped
        near = tuple(n for n in near if not self._rhythms[n].waits) or near
        pulses = {name: self._rhythms[name].pulse for name in near}
        lowest = min(pulse.step for pulse in pulses.values())
        behind = {name: pulse for name, pulse in pulses.items() if pulse.step == lowest}
        oldest = min(pulse.time for pulse in behind.values())
        return tuple(name for name, pulse in behind.items() if pulse.time <= oldest + _TOGETHER)
