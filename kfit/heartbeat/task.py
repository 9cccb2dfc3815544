"""Writes the heartbeat file, by which a task reports to its supervisor what it is doing.

A task is a process that trains, and the supervisor is the process that watches it (`kfit run`).
Each write to the file takes a fraction of a µs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from kfit.heartbeat import layout
from kfit.heartbeat.clock import clock_of_thread
from kfit.heartbeat.counted_fits import CountedFits
from kfit.heartbeat.errors import TaskError, chain, is_marked, mark, read_error, write_error
from kfit.heartbeat.layout import (
    BEATS,
    BUSY,
    DEPTH,
    FIT,
    IN_USER_CODE,
    LIMIT_NS,
    MARKS_MEETINGS,
    MEETING_NS,
    MOST_OF_PLACE,
    PHASE,
    PID,
    PLACE_SIZE,
    PLACE_VERSION,
    SAMPLE_NS,
    SAMPLED_NS,
    STEP,
    TIME_NS,
    VARIABLE,
    WORKERS,
)
from kfit.heartbeat.phases import Phase, hook
from kfit.heartbeat.reached import Reached
from kfit.heartbeat.sampler import Sampler
from kfit.heartbeat.signal_handlers import Disposition
from kfit.heartbeat.stop_notes import write_stop_note
from kfit.heartbeat.tracebacks import of_user, warn_user
from kfit.heartbeat.unconfirmed_ends import write_end
from kfit.heartbeat.unprinted import in_short

# A century in seconds: as nanoseconds, it still fits into a slot.
_LONGEST_LIMIT = 100 * 365 * 86400.0

# The attribute that marks a recorded error, since an error may leave several nested calls.
_NOTED = "_kfit_noted"

_opened: dict[str, Heartbeat] = {}
"""The heartbeat of this process, by the path of its file."""


class Heartbeat:
    """The means by which a task, a process that trains, reports what it is doing to its supervisor.

    The supervisor (`kfit run`) watches the task, and restarts it if it hangs. The task can count as
    hung only within the context `call`, that is in `fit` and the like. It hangs if it makes no
    progress for too long. Progress is the end of a graph call of steps (`beat`), a batch that was
    read (`moved`), and each start or end of a phase.

    Several threads may be in calls of `fit` and the like at once. What the first of them does is
    reported, and when its last call ends, what the next one does. So the task hangs only if no
    thread makes progress: that of any thread counts.

    Args:
        path: The file to write to, which the supervisor has created. With None, nothing is
            reported: what is written is only kept in memory.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If the file was not created by a supervisor.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        content = bytearray(layout.SIZE) if path is None else layout.map_file(path)
        self.slots, self._text = layout.slots_of(content)
        self._own = _OfThread()
        self._lock = threading.RLock()
        self._in_calls: list[_Doing] = []
        self._sampler: Sampler | None = None
        self._fits = CountedFits()
        self.thread = threading.main_thread().ident or 0

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Heartbeat:
        """Returns the heartbeat by which this task reports to its supervisor (`kfit run`).

        Under a supervisor, every call in this process returns the same heartbeat. The result is a
        heartbeat that nobody reads if there is no supervisor, if the process was started by the
        task, or (with a warning) if the file cannot be used.

        The first call under a supervisor also makes the process record the error that ends it, and
        print the stacks of its threads when the supervisor asks for them (`register_stack_dump`).

        Args:
            environ: The environment variables. KFIT_HEARTBEAT contains the path of the file to
                write to.
        """
        path = environ.get(VARIABLE)
        if not path:
            return cls()
        known = _opened.get(path)
        if known is not None and known.slots[PID] == os.getpid():
            return known
        try:
            heartbeat = cls(path)
        except (OSError, ValueError) as error:
            warn_user(
                f"`{VARIABLE}` is {path!r}, which is no heartbeat file of a supervisor that runs "
                f"({error}); this task trains without one. Start it by `kfit run`, or unset the "
                "variable.",
                RuntimeWarning,
            )
            return cls()
        if heartbeat.slots[PID] not in (0, os.getpid()):
            return cls()
        register_stack_dump()
        heartbeat._note_what_ends_the_process()
        heartbeat.slots[PID] = os.getpid()
        _opened[path] = heartbeat
        return heartbeat

    @contextlib.contextmanager
    def call(self, phase: int = Phase.WORK, limit: float | None = None) -> Iterator[None]:
        """Context of a call of `fit`, `evaluate` or `predict`, in which the task can count as hung.

        Calls may be nested. If an error leaves the context, the error is recorded for the
        supervisor.

        Args:
            phase: What the task is doing at first, as a `Phase`.
            limit: Seconds that the task may then be without progress before it counts as hung; None
                for the supervisor's usual limits.
        """
        self._enter(phase, limit)
        try:
            yield
        except BaseException as error:
            self.note_error(error)
            raise
        finally:
            self._leave()

    @contextlib.contextmanager
    def fit(self) -> Iterator[None]:
        """Context of a training `fit`, which is counted: progress is its number and its step.

        If a hook of another `fit` has called it, it is a part of that one. The context is entered
        within `call`.
        """
        with self._fits.counted() as has_number:
            if has_number:
                self._report_step(0)
            yield

    @property
    def fit_number(self) -> int:
        """The number of the present `fit` in the program, from 0, as far as it is known."""
        return self._fits.number

    def set_fit_number(self, number: int) -> None:
        """Sets the number of the present `fit` in the program, since more is known of it.

        Called before its first step. If a hook of another `fit` has called it, nothing is done.

        Args:
            number: The number, from 0.
        """
        if self._fits.depth == 1 and number != self._fits.number:
            self._fits.set_number(number)
            self._report_step(0)

    def reached(self, step: int) -> Reached:
        """Returns a place in the present `fit`, for messages.

        Without a supervisor, or in a `fit` that a hook of another one has called, the `fit` is not
        named.

        Args:
            step: The number of its steps.
        """
        is_named = self._path is not None and self._fits.depth == 1
        return Reached(self._fits.number if is_named else 0, step)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which the task counts as outside of the innermost call of kfit.

        It is used while a generator such as `predict_iter` has yielded a value to the user's code.
        That code may take any time, so the task cannot count as hung there, unless it is also in an
        outer call.
        """
        phase, limit = self.state
        self._leave()
        try:
            yield
        finally:
            self._enter(phase, limit / 1e9 or None)

    @property
    def state(self) -> tuple[int, int]:
        """What this thread is doing, and its limit in ns, as for `set`."""
        return self._own.doing.state

    def _enter(self, phase: int, limit: float | None) -> None:
        clock, doing = clock_of_thread(), self._own.doing
        # The time of a call that a hook makes is time of the hook.
        opens = clock.in_hook
        if opens:
            clock.open()
        doing.outer.append((doing.state, clock.change(phase), opens))
        with self._lock:
            self.set(phase, _limit_ns(limit))
            if len(doing.outer) == 1:
                self._in_calls.append(doing)
                self._report_first()
            if self._path is not None and self._sampler is None:
                self._sampler = Sampler(self, self.slots[SAMPLE_NS] / 1e9)
                self._sampler.start()

    def _leave(self) -> None:
        clock, doing = clock_of_thread(), self._own.doing
        state, timed, opens = doing.outer.pop()
        clock.change(timed)
        if opens:
            clock.close()
        with self._lock:
            if not doing.outer:
                self._in_calls.remove(doing)
                self._report_first()
            self.set(*state)

    def _report_first(self) -> None:
        """Reports what the first thread does that is in a call, if there is one."""
        self.slots[DEPTH] = len(self._in_calls)
        if self._in_calls:
            first = self._in_calls[0]
            self.thread = first.thread
            self.slots[PHASE], self.slots[LIMIT_NS] = first.state

    def _is_reported(self, doing: _Doing) -> bool:
        return not self._in_calls or self._in_calls[0] is doing

    def set(self, phase: int, limit_ns: int) -> None:
        """Records what this thread is doing from now on, and how long it may make no progress then.

        Args:
            phase: A `Phase`, or the number of a hook of callbacks.
            limit_ns: The time in ns without progress after which the task counts as hung; 0 for the
                supervisor's usual limits.
        """
        slots, doing = self.slots, self._own.doing
        with self._lock:
            doing.state = phase, limit_ns
            slots[TIME_NS] = time.monotonic_ns()
            if self._is_reported(doing):
                slots[LIMIT_NS] = limit_ns
                slots[PHASE] = phase

    def phase(
        self, phase: int, limit: float | None = None, *, counted: int | None = None
    ) -> _Within:
        """Context in which the task reports that it is in a certain phase, such as saving.

        After the context, the task is in its earlier phase again.

        Args:
            phase: A `Phase`, or the number of a hook of callbacks.
            limit: Seconds that the task may be in this phase without progress before it counts as
                hung; None for the supervisor's usual limits.
            counted: The phase for which the clock of the thread counts the time; None for `phase`.

        Raises:
            ValueError: If `limit` is not a positive number.
        """
        return _Within(self, phase, _limit_ns(limit), phase if counted is None else counted)

    def hook(self, name: str) -> _Within:
        """Context in which the task reports that it is in a hook of callbacks.

        After the context, the task is in its earlier phase again.

        Args:
            name: The name of the hook, such as `"on_epoch_end"`.
        """
        phase = hook(name)
        return _Within(self, phase, 0, phase)

    def beat(self, step: int, *, trains: bool = True) -> None:
        """Records progress: a graph call of one or several steps has ended.

        From the times between these records, the supervisor learns how long steps usually take.
        So those of a thread beside the one that is reported count as other progress.

        The step is that of the outermost `fit`. What a hook of it calls, such as `evaluate` or
        another `fit`, does not change it.

        Args:
            step: The number of training steps so far, including those before a resume. In an
                evaluation it is the same number each time: that of the snapshot that is evaluated,
                or 0.
            trains: Whether it is a graph call of `fit`.
        """
        slots, depth = self.slots, self._fits.depth
        slots[TIME_NS] = time.monotonic_ns()
        if self._is_reported(self._own.doing):
            if depth <= 1 if trains else not depth and step:
                self._report_step(step)
            slots[BEATS] += 1

    def _report_step(self, step: int) -> None:
        """Reports a step of this thread's `fit`, if this thread is the one that is reported."""
        slots, number = self.slots, self._fits.number
        if not self._is_reported(self._own.doing):
            return
        if self._fits.depth and slots[FIT] != number:
            slots[STEP] = 0  # before: a step must not be taken for one of a later `fit`
            slots[FIT] = number
        slots[STEP] = step

    def moved(self) -> int:
        """Records progress other than the end of a step, such as a batch that was read.

        Returns:
            The time now, in ns.
        """
        now = time.monotonic_ns()
        self.slots[TIME_NS] = now
        return now

    def trains_with(self, workers: int, *, marks_meetings: bool) -> None:
        """Records how many tasks (processes) train together.

        The supervisor needs this number to tell a task that hangs from tasks that wait for that
        task.

        Args:
            workers: The number of these tasks, including those that other supervisors watch.
            marks_meetings: Whether `meet` is called wherever a step waits for the other tasks.
        """
        self.slots[WORKERS] = workers
        self.slots[MARKS_MEETINGS] = marks_meetings

    def meet(self) -> None:
        """Records that this task begins to wait for the other tasks (processes) within a step.

        So the supervisor can tell a task that only waits from a task that hangs. `met` ends the
        wait.
        """
        self.slots[MEETING_NS] = time.monotonic_ns()

    def met(self) -> None:
        """Records that this task no longer waits for the other tasks (see `meet`).

        The end of the wait counts as progress.
        """
        self.slots[TIME_NS] = time.monotonic_ns()
        self.slots[MEETING_NS] = 0

    def note_error(self, error: BaseException) -> None:
        """Records the error that this task fails with, for its supervisor (`kfit run`) to report.

        An error that was recorded before, or that was raised from a recorded one, is not recorded
        again; but if its message has more to say since, such as the name that was meant, so has the
        record. KeyboardInterrupt, SystemExit and GeneratorExit are not recorded at all.
        """
        if self._path is None or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            return
        noted = next((each for each in chain(error) if is_marked(each, _NOTED)), None)
        new = TaskError.of(error if noted is None else noted)
        if noted is not None:
            before = vars(noted)[_NOTED]
            new = replace(new, time=before.time)
            if new == before or read_error(self._path) != before:
                return
        mark(error if noted is None else noted, _NOTED, new)
        write_error(self._path, new)

    def in_short(self, error: BaseException, shown: TracebackType | None) -> str | None:
        """Returns what this task prints in place of the traceback of an error (see `unprinted.py`).

        Args:
            error: The error.
            shown: The part of its traceback that is for the user.

        Returns:
            A line; empty if nothing is to be printed. None if the traceback is to be printed, as
            always without a supervisor.
        """
        return None if self._path is None else in_short(self._path, error, shown)

    def note_stop(self, text: str) -> bool:
        """Records what was saved when a signal stopped this task, for its supervisor to report.

        Args:
            text: What was saved, in words.

        Returns:
            Whether there is a supervisor. If not, the caller must tell the user.
        """
        if self._path is None:
            return False
        write_stop_note(self._path, text)
        return True

    def note_end(self, marker: str) -> bool:
        """Records that this task has trained and ends, for its supervisor to confirm.

        Args:
            marker: The path of the file to be deleted when all tasks of the run have succeeded (see
                `unconfirmed_ends.py`).

        Returns:
            Whether it is recorded. If not, there is no supervisor, and the caller must confirm the
            end.

        Raises:
            OSError: If there is a supervisor, but the end cannot be recorded. It must stay
                unconfirmed then, since another task may still fail.
        """
        return self._path is not None and write_end(self._path, marker)

    def stall(self) -> tuple[int, int, int]:
        """Returns the time now, the task's phase (a number), and the time of its last progress.

        Both times are in ns. The start of a wait for other tasks (`meet`) counts as progress here.
        The thread `Sampler` calls it to find out whether the task makes progress.
        """
        slots = self.slots
        return time.monotonic_ns(), slots[PHASE], max(slots[TIME_NS], slots[MEETING_NS])

    def note_place(self, began: int, place: str, in_user_code: bool, busy: float) -> None:
        """Records what the thread `Sampler` has found the task doing while it made no progress.

        Args:
            began: The time of the task's last progress, in ns.
            place: The file and line of the user's code that is running; empty if none is.
            in_user_code: Whether the user's code is running.
            busy: The average number of cores that the process has used since the last progress.
        """
        slots = self.slots
        text = place.encode(errors="replace")[-MOST_OF_PLACE:]  # a path need not be UTF-8
        slots[PLACE_VERSION] += 1
        self._text[: len(text)] = text
        slots[PLACE_SIZE] = len(text)
        slots[PLACE_VERSION] += 1
        slots[BUSY] = int(busy * 1000)
        slots[IN_USER_CODE] = in_user_code
        slots[SAMPLED_NS] = began

    def _note_what_ends_the_process(self) -> None:
        before = sys.excepthook

        def note(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> Any:
            self.note_error(error)
            shown = of_user(error, traceback)
            line = self.in_short(error, shown)
            if line is None:
                return before(kind, error.with_traceback(shown), shown)
            if line:
                print(line, file=sys.stderr, flush=True)
            return None

        sys.excepthook = note


class _Doing:
    """What a thread is doing, and what it was doing before each call of kfit that it is in.

    Attributes:
        thread: The ID of the thread.
        state: The phase, and the limit in ns without progress, as for `Heartbeat.set`.
        outer: For each call, the innermost last: the state before, the phase of the clock before,
            and whether the call has opened a ledger of the clock.
    """

    __slots__ = ("outer", "state", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.state = (int(Phase.OUTSIDE), 0)
        self.outer: list[tuple[tuple[int, int], int, bool]] = []


class _OfThread(threading.local):
    """What the thread that reads `doing` is doing, for each heartbeat."""

    def __init__(self) -> None:
        self.doing = _Doing()


class _Within:
    """A context manager that reports a phase of the task, and afterwards its earlier phase.

    `Heartbeat.phase` and `Heartbeat.hook` return it. It is a class, since a generator would be
    slower. The clock of the thread learns of the phase, too (`clock.py`).
    """

    __slots__ = ("_before", "_counted", "_heartbeat", "_limit", "_phase", "_timed")

    def __init__(self, heartbeat: Heartbeat, phase: int, limit_ns: int, counted: int) -> None:
        self._heartbeat = heartbeat
        self._phase = phase
        self._limit = limit_ns
        self._counted = counted

    def __enter__(self) -> None:
        self._before = self._heartbeat.state
        self._timed = clock_of_thread().change(self._counted)
        self._heartbeat.set(self._phase, self._limit)

    def __exit__(self, *_: object) -> None:
        # A generator may be resumed by another thread than the one that has begun it.
        clock_of_thread().change(self._timed)
        self._heartbeat.set(*self._before)


def _limit_ns(limit: float | None) -> int:
    if limit is None:
        return 0
    if not 0 < limit < _LONGEST_LIMIT:
        raise ValueError(f"`limit` is {limit!r}; expected a positive number of seconds")
    return int(limit * 1e9)


def register_stack_dump() -> None:
    """Makes the signal SIGUSR2 print the stacks of all threads to stderr.

    This works even while a thread holds the GIL. The supervisor (`kfit run`) sends this signal to a
    task that hangs, before it kills the task. If the program has its own handler for SIGUSR2, also
    one of `faulthandler`, that handler stays.
    """
    before = Disposition.of(signal.SIGUSR2)
    is_taken = before.is_in_c or before.handler not in (signal.SIG_DFL, signal.SIG_IGN)
    if hasattr(faulthandler, "register") and not is_taken:
        # 2 is the file descriptor of stderr; in a notebook `sys.stderr` is not a file.
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True, chain=False)
