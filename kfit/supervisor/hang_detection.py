"""Detects hangs: finds tasks that make no progress in a call of `fit`, `evaluate` or `predict`.

It is not enough that the process of a task exists: a process that waits for a lock forever, or was
suspended, exists, too. So each task reports to a file what it is doing, and when it last made
progress. This report is the task's heartbeat (`Pulse`). A beat is the part of the report that says
that one more graph call has ended.

A task hangs if it makes no progress for longer than a limit, which depends on what it is doing:

- Half an hour, if the task may need long: while it prepares or compiles a step, or joins the
  cluster; while a hook of a callback or the input pipeline computes; or while it waits for a task
  that does not wait itself.
- 10 seconds, if the task is suspended by a signal, if all tasks wait for each other, or if the task
  is in a graph call in which neither the user's code nor the CPU is at work.
- A minute otherwise.

The last two limits are longer if the task has needed longer before. For example, a graph call may
take five times as long as usual. Only the limit of a suspended task stays the same. If a limit is
longer than 10 seconds, a message is printed first, usually after 10 seconds. `Hangs._limit_of` has
all cases.

This module starts and ends no process, and gets the time as an argument, so that tests need not
wait.
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
# With fewer beats than this, the usual interval between a task's beats is unknown.
_FIRST_BEATS = 4
# The median is taken of so many intervals, the latest ones: training may become slower or faster.
_REMEMBERED = 101
# Tasks that are at the same step beat within this many seconds of each other.
_TOGETHER = 1.0
# A task is no culprit if its limit is more than this many times that of the first one to hang.
_ALIKE = 1.5
# If more seconds than this lie between two looks, the supervisor itself was suspended.
_ABSENCE = 2.0
# A process that uses at least this much of a core computes; one that waits uses almost nothing.
_COMPUTES = 0.1
# Phases other than hooks in which the user's code may compute for any time.
_AT_WORK = (Phase.INPUT, Phase.READING_STEP)


@dataclass(frozen=True)
class Limits:
    """Limits in seconds: a task that makes no progress for longer than its limit counts as hung.

    Attributes:
        idle: The limit if nothing outside of kfit can be the reason. It is also the time after
            which a message reports that a task makes no progress.
        user: The limit if the user's code or data can be the reason.
        long: The limit if a task may need long and cannot report progress: while it prepares or
            compiles steps, joins the cluster or skips data, or while a hook or the input computes.
            Also the limit while the task waits for other tasks, if these do not wait themselves, or
            if this supervisor cannot read their heartbeats.
        margin: Seconds that are subtracted from `idle` and `user`. Heartbeats are read only twice a
            second, so a hang may be noticed half a second late. With the margin it is noticed
            before `idle` or `user` seconds have passed.
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
    """The finding that some tasks hang, and why.

    Attributes:
        culprits: The tasks for which the others wait, as far as that can be found out.
        stalled: All tasks without progress, including the culprits. Workers that train together
            also stall together.
        seconds: How long the culprits have made no progress.
        stopped: Whether a signal such as SIGSTOP has suspended the culprits.
        doing: What the first culprit was doing, in words; empty if unknown.
        option: The name of the option by which the user can change the limit, for messages.
    """

    culprits: tuple[str, ...]
    stalled: tuple[str, ...]
    seconds: float
    stopped: bool = False
    doing: str = ""
    option: str = ""

    @property
    def name(self) -> str:
        """The name of the first culprit: the task that is reported as the one that failed."""
        return self.culprits[0]

    @property
    def exit_code(self) -> int:
        """The exit code of a killed task, since tasks that hang are killed."""
        return 128 + signal.SIGKILL

    @property
    def is_preemption(self) -> bool:
        """Always False: tasks that hang were not preempted (told to stop by the platform)."""
        return False

    @property
    def hint(self) -> str:
        """Advice for the user, which is appended to the error message; may be empty."""
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
    """What is known about the progress of one task over time.

    Attributes:
        pulse: The latest heartbeat that was read: the task's report of its progress.
        intervals: The latest intervals between two beats, in seconds. A beat is the report that a
            graph call has ended.
        unmeasured: The number of beats that are in no interval, since the task was not to blame for
            a part of the time before them.
        median: The median of `intervals`.
        longest: For each phase (what the task was doing), the longest time without progress, in
            seconds, after which the task went on.
        stalled_for: Seconds from the last progress of the task until the latest heartbeat was read.
        stopped_since: The time when the task was found suspended by a signal; None if it is not.
        said_of: The start (`since`) of the last time without progress that was reported to the
            user; None if none was reported.
    """

    pulse: Pulse = field(default_factory=Pulse)
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    unmeasured: int = 0
    median: float = 0.0
    longest: dict[int, float] = field(default_factory=dict)
    stalled_for: float = 0.0
    stopped_since: float | None = None
    said_of: float | None = None

    def take(self, pulse: Pulse, now: float, last_look: float, counts_from: float) -> None:
        """Updates the record by a heartbeat (the task's report of its progress) that was just read.

        Args:
            pulse: The heartbeat.
            now: The present time.
            last_look: The time when the previous heartbeat was read.
            counts_from: The time before which the task is not to blame for a lack of progress, such
                as the end of a time in which the whole host was suspended. That time tells nothing
                about how long the task usually takes.
        """
        before, self.pulse = self.pulse, pulse
        if (before.phase, before.time) != (pulse.phase, pulse.time):
            # The stall is over. The previous call of `take` has measured how long it was.
            if self.stalled_for > self.longest.get(before.phase, 0.0):
                self.longest[before.phase] = self.stalled_for
            self.stalled_for = 0.0
        else:
            self.stalled_for = now - max(pulse.time, counts_from)
        beats = pulse.beats - before.beats
        if beats and before.in_call and pulse.in_call:
            since = before.time if before.beats else last_look
            if since < counts_from:
                self.unmeasured += beats
                return
            self.intervals.append(max(0.0, pulse.time - since) / beats)
            self.median = statistics.median(self.intervals)

    @property
    def waits(self) -> bool:
        """Whether the task is waiting for other tasks, as far as its heartbeat shows.

        Such a task is not to blame if it makes no progress.
        """
        pulse = self.pulse
        if self.stopped_since is not None or pulse.phase >= Phase.HOOK:
            return False
        if pulse.phase == Phase.PEERS or pulse.meeting_since is not None:
            return True
        in_step = pulse.phase == Phase.STEP and not pulse.in_user_code
        return in_step and pulse.workers > 1 and not pulse.marks_meetings

    @property
    def since(self) -> float:
        """The time at which the present period without progress began, by `time.monotonic()`.

        Usually this is the time of the last progress. If the task has begun to wait for other tasks
        after that, it is the beginning of the wait. If the task is suspended by a signal, it is the
        time when that was found.
        """
        if self.stopped_since is not None:
            return self.stopped_since
        return max(self.pulse.time, self.pulse.meeting_since or 0.0)


class Hangs:
    """A detector of tasks that hang; each attempt of a run has a new detector.

    Only a task in a call of `fit`, `evaluate` or `predict` can hang. Tasks that wait for each other
    get a short limit once all of them wait. But while one task does something else, the tasks that
    wait for it get the longest limit. A task that is suspended by a signal makes no progress,
    whatever it was doing.

    Args:
        limit: The limit in seconds that the user has set, or None. It replaces those of `limits`,
            except while a task compiles or does other work of kfit that may need long, or waits for
            a task that does not wait itself.
        now: The present time, by `time.monotonic()`, as in all methods.
        limits: The limits that apply if `limit` is None; None for the default ones.
        option: The name of the option by which the user sets `limit`, for messages.
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
        """Restarts all clocks, so that no time before `now` counts as time without progress.

        Called if the tasks are not to blame for that time: because the supervisor itself did not
        run, or because nobody read the output of the tasks, so that they could not write.

        Args:
            now: The present time.
        """
        self._last_look = self._since = now
        for rhythm in self._rhythms.values():
            if rhythm.stopped_since is not None:
                rhythm.stopped_since = now

    def look(
        self, now: float, pulses: Mapping[str, Pulse], stopped: Collection[str] = ()
    ) -> Hang | None:
        """Checks whether a running task hangs; must be called a few times a second.

        Args:
            now: The present time.
            pulses: The latest heartbeat (report of progress) of each running task.
            stopped: The names of the tasks that a signal has suspended, according to the system.

        Returns:
            The hang if a task has passed its limit, otherwise None.
        """
        if now - self._last_look > _ABSENCE:
            self.start_anew(now)
        for name, pulse in pulses.items():
            rhythm = self._rhythms.setdefault(name, _Rhythm())
            rhythm.take(pulse, now, self._last_look, self._since)
            if name not in stopped or not pulse.pid:
                rhythm.stopped_since = None
            elif rhythm.stopped_since is None or pulse.time > rhythm.stopped_since:
                rhythm.stopped_since = now  # for the first time, or again after it went on
        self._last_look = now
        # The part of its limit that each task has used up.
        limits = {name: self._limit_of(name, pulses) for name in pulses}
        quiet = {name: self._quiet(name, now, pulses) / limits[name] for name in pulses}
        first = max(quiet, key=lambda name: quiet[name], default="")
        if not first or quiet[first] <= 1.0:
            return None
        # Tasks that hang together reach their limits soon after each other.
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
        """Returns warnings about tasks that make no progress, but have not passed their limits yet.

        A task that stops making progress is reported only once until it makes progress again.

        Args:
            now: The time that was passed to the last call of `look`.
            pulses: The heartbeats that were passed to the last call of `look`.

        Returns:
            Lines to print, which may be none.
        """
        due = [name for name in pulses if self._is_to_be_said(name, now, pulses)]
        own = [name for name in due if not self._rhythms[name].waits]
        lines = []
        for name in own or due:
            rhythm = self._rhythms[name]
            rhythm.said_of = rhythm.since
            lines.append(self._notice(name, now, pulses))
        return lines

    def stopped(self, now: float, names: Collection[str]) -> Hang | None:
        """Returns the tasks that a signal has suspended, even before they pass their limits.

        Called if another task has failed. Suspended tasks are then the most likely reason: they did
        not answer, and TensorFlow gives up a task that does not answer after some seconds.

        Args:
            now: The present time.
            names: The names of the running tasks that are suspended now, according to the system.

        Returns:
            The suspended tasks as a `Hang`; None if no task has been suspended for longer than a
            second.
        """
        since = {
            name: rhythm.stopped_since
            for name, rhythm in self._rhythms.items()
            if rhythm.stopped_since is not None and now - rhythm.stopped_since > _TOGETHER
            if name in names
        }
        if not since:
            return None
        return Hang(tuple(since), tuple(since), now - min(since.values()), stopped=True)

    def _quiet(self, name: str, now: float, pulses: Mapping[str, Pulse]) -> float:
        """Returns how many seconds a task has made no progress; 0 while it cannot count as hung."""
        rhythm = self._rhythms[name]
        is_judged = rhythm.pulse.in_call
        if rhythm.stopped_since is not None:
            # A task that is stopped in the user's own code still blocks tasks that wait for it.
            is_judged = any(each.pulse.in_call for each in self._rhythms.values())
        if not is_judged:
            return 0.0
        since = rhythm.since
        if rhythm.waits and not self._others(name, pulses):
            # All tasks wait for each other. This counts from when the last one began to wait.
            since = max(
                (self._rhythms[each].since for each in pulses if pulses[each].in_call),
                default=since,
            )
        return max(0.0, now - max(since, self._since))

    def _limit_of(self, name: str, pulses: Mapping[str, Pulse]) -> float:
        """Returns after how many seconds without progress a task counts as hung.

        The limit depends on what the task is doing.
        """
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
        if pulse.beats - rhythm.unmeasured < _FIRST_BEATS:
            return limits.long if computes and not pulse.in_user_code else user
        if computes or pulse.in_user_code or pulse.phase == Phase.READING_STEP:
            return max(user, median)
        return max(idle, median)

    def _is_to_be_said(self, name: str, now: float, pulses: Mapping[str, Pulse]) -> bool:
        rhythm = self._rhythms[name]
        if rhythm.said_of == rhythm.since:
            return False
        if rhythm.waits and any(pulses[each].in_call for each in self._others(name, pulses)):
            return False  # another task is the reason, which gets its own message if necessary
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
        """Returns the names of the tasks for which the task `name` may be waiting.

        These are all other tasks that report their progress and are not waiting themselves.
        """
        others = (each for each in pulses if each != name and pulses[each].pid)
        return [each for each in others if not self._rhythms[each].waits]

    def _known(self) -> int:
        """Returns the number of tasks whose reports of progress this supervisor has ever read.

        The number may be less than the number of workers, since the workers of other hosts have
        different supervisors.
        """
        return sum(bool(rhythm.pulse.pid) for rhythm in self._rhythms.values())

    def _culprits(self, near: tuple[str, ...]) -> tuple[str, ...]:
        """Finds the tasks that the others wait for, among those that make no progress.

        If a signal has suspended some of the tasks, these are the culprits. Otherwise the tasks
        that wait for no other task are considered, or all tasks if each one waits. Of these, the
        tasks at the earliest step of the earliest `fit` are the candidates. The culprits are the
        candidates whose last progress is the longest ago, with a tolerance of one second.

        Args:
            near: The names of the tasks that make no progress, and are near or past their limits.

        Returns:
            The names of the culprits.
        """
        stopped = tuple(n for n in near if self._rhythms[n].stopped_since is not None)
        if stopped:
            return stopped
        near = tuple(n for n in near if not self._rhythms[n].waits) or near
        pulses = {name: self._rhythms[name].pulse for name in near}
        lowest = min(pulse.reached for pulse in pulses.values())
        behind = {name: pulse for name, pulse in pulses.items() if pulse.reached == lowest}
        oldest = min(pulse.time for pulse in behind.values())
        return tuple(name for name, pulse in behind.items() if pulse.time <= oldest + _TOGETHER)
