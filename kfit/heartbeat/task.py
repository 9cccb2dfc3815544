"""Writes the heartbeat file of a task. Each store takes a fraction of a µs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from kfit.heartbeat import layout
from kfit.heartbeat.errors import TaskError, write_error
from kfit.heartbeat.layout import (
    BEATS,
    BUSY,
    DEPTH,
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
from kfit.heartbeat.sampler import Sampler

# A century in seconds: as nanoseconds, it still fits into a slot.
_LONGEST_LIMIT = 100 * 365 * 86400.0

# The attribute that marks a recorded error, since an error may leave several nested calls.
_NOTED = "_kfit_noted"

_opened: dict[str, Heartbeat] = {}
"""The heartbeat of this process, by its file."""


class Heartbeat:
    """The heartbeat of this task, which reports the task's progress and phase to the supervisor.

    A task can count as hung only within `call`. There, any progress counts: a `beat` between two
    steps, a batch that was drawn (`moved`), a phase that begins or ends. Only the thread that
    trains may use a heartbeat, except for `moved`, `meet` and `met`, which any thread may call.

    Args:
        path: The file to write to; if None, what is written is kept in memory and never read.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it is not a heartbeat file of a supervisor.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        content = bytearray(layout.SIZE) if path is None else layout.map_file(path)
        self.slots, self._text = layout.slots_of(content)
        self._outer: list[tuple[int, int]] = []
        self._sampler: Sampler | None = None
        self.thread = threading.main_thread().ident or 0

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Heartbeat:
        """Returns the heartbeat that the supervisor of this task reads.

        It also registers the stack dump for the supervisor (`register_stack_dump`), and a hook
        that records the error that ends the process. The first process of a task that calls
        this owns the heartbeat. In the processes that it starts, and without a supervisor, the
        result is a heartbeat that is never read.

        Args:
            environ: The environment variables to read.

        Returns:
            The heartbeat; the same one for every call in the process that owns it.
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
            warnings.warn(
                f"`{VARIABLE}` is {path!r}, which is no heartbeat file of a supervisor that runs "
                f"({error}); this task trains without one. Start it by `kfit run`, or unset the "
                "variable.",
                RuntimeWarning,
                stacklevel=2,
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

        Calls may be nested. An error that leaves a call is recorded for the supervisor.

        Args:
            phase: The phase in which the call begins.
            limit: Seconds that the task may be in that phase without progress; None for the usual
                limits.
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
    def paused(self) -> Iterator[None]:
        """Context in which the task counts as outside of the innermost call.

        It is used while a generator such as `predict_iter` has yielded a value to the user's code.
        """
        phase, limit = self.slots[PHASE], self.slots[LIMIT_NS]
        self._leave()
        try:
            yield
        finally:
            self._enter(phase, limit / 1e9 or None)

    def _enter(self, phase: int, limit: float | None) -> None:
        slots = self.slots
        if not self._outer:
            self.thread = threading.get_ident()
        self._outer.append((slots[PHASE], slots[LIMIT_NS]))
        self.set(phase, _limit_ns(limit))
        slots[DEPTH] = len(self._outer)
        if self._path is not None and self._sampler is None:
            self._sampler = Sampler(self, slots[SAMPLE_NS] / 1e9)
            self._sampler.start()

    def _leave(self) -> None:
        phase, limit = self._outer.pop()
        self.slots[DEPTH] = len(self._outer)
        self.set(phase, limit)

    def set(self, phase: int, limit_ns: int) -> None:
        """Records the phase in which the task is from now on, and its limit.

        Args:
            phase: A `Phase`, or the number of a hook.
            limit_ns: Nanoseconds that the task may be in that phase without progress; 0 for the
                usual limits.
        """
        slots = self.slots
        slots[TIME_NS] = time.monotonic_ns()
        slots[LIMIT_NS] = limit_ns
        slots[PHASE] = phase

    def at(self, phase: int) -> None:
        """Records the phase in which the task is from now on; the limit stays as it is."""
        slots = self.slots
        slots[TIME_NS] = time.monotonic_ns()
        slots[PHASE] = phase

    def phase(self, phase: int, limit: float | None = None) -> _Within:
        """Context in which the task is in `phase`; afterwards it is in its earlier phase again.

        Args:
            phase: A `Phase`, or the number of a hook.
            limit: Seconds that the task may be in that phase without progress; None for the usual
                limits.

        Raises:
            ValueError: If `limit` is not a positive number.
        """
        return _Within(self, phase, _limit_ns(limit))

    def hook(self, name: str) -> _Within:
        """Context in which the task is in the phase of the callbacks' hook `name`."""
        return _Within(self, hook(name), 0)

    def beat(self, step: int) -> None:
        """Records that the task is at a boundary between two steps.

        Call it after each graph call that took steps. In an evaluation, pass the same `step` each
        time. The supervisor learns from the intervals how long the task usually takes.

        Args:
            step: The number of training steps so far, including those before a resume.
        """
        slots = self.slots
        slots[TIME_NS] = time.monotonic_ns()
        slots[STEP] = step
        slots[BEATS] += 1

    def moved(self) -> int:
        """Records progress other than a step, such as a batch drawn; returns the time now in ns."""
        now = time.monotonic_ns()
        self.slots[TIME_NS] = now
        return now

    def trains_with(self, workers: int, *, marks_meetings: bool) -> None:
        """Records how many tasks train together.

        Args:
            workers: The number of these tasks, including those under other supervisors.
            marks_meetings: Whether `meet` is called wherever a step waits for the other tasks.
        """
        self.slots[WORKERS] = workers
        self.slots[MARKS_MEETINGS] = marks_meetings

    def meet(self) -> None:
        """Records that this task begins to wait for the other tasks within a step."""
        self.slots[MEETING_NS] = time.monotonic_ns()

    def met(self) -> None:
        """Records that the wait which began with `meet` has ended; this counts as progress."""
        self.slots[TIME_NS] = time.monotonic_ns()
        self.slots[MEETING_NS] = 0

    def note_error(self, error: BaseException) -> None:
        """Records the error that this task fails with, unless it or its cause was recorded already.

        KeyboardInterrupt, SystemExit and GeneratorExit are not recorded.
        """
        if self._path is None or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            return
        if any(getattr(each, _NOTED, False) for each in _chain(error)):
            return
        with contextlib.suppress(AttributeError):  # the class has `__slots__`
            setattr(error, _NOTED, True)
        write_error(self._path, TaskError.of(error))

    def stall(self) -> tuple[int, int, int]:
        """Returns the time now, the phase, and the time of the last progress; the times are in ns.

        The beginning of a wait for other tasks (`meet`) counts as progress here.
        """
        slots = self.slots
        return time.monotonic_ns(), slots[PHASE], max(slots[TIME_NS], slots[MEETING_NS])

    def note_place(self, began: int, place: str, in_user_code: bool, busy: float) -> None:
        """Records what the sampler found while the task made no progress.

        Args:
            began: The time in ns of the last progress.
            place: The file and line of the user's code that is running; empty if none is.
            in_user_code: Whether the user's code is running.
            busy: The average number of cores that the process has used since the last progress.
        """
        slots = self.slots
        text = place.encode()[-MOST_OF_PLACE:]
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
            return before(kind, error, traceback)

        sys.excepthook = note


class _Within:
    """A context manager that sets the phase, and afterwards restores the earlier one.

    It is a class since a generator would be slower.
    """

    __slots__ = ("_before", "_heartbeat", "_limit", "_phase")

    def __init__(self, heartbeat: Heartbeat, phase: int, limit_ns: int) -> None:
        self._heartbeat = heartbeat
        self._phase = phase
        self._limit = limit_ns

    def __enter__(self) -> None:
        slots = self._heartbeat.slots
        self._before = slots[PHASE], slots[LIMIT_NS]
        self._heartbeat.set(self._phase, self._limit)

    def __exit__(self, *_: object) -> None:
        phase, limit = self._before
        self._heartbeat.set(phase, limit)


def _limit_ns(limit: float | None) -> int:
    if limit is None:
        return 0
    if not 0 < limit < _LONGEST_LIMIT:
        raise ValueError(f"`limit` is {limit!r}; expected a positive number of seconds")
    return int(limit * 1e9)


def _chain(error: BaseException | None) -> list[BaseException]:
    """Lists an error and the errors that it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def register_stack_dump() -> bool:
    """Makes SIGUSR2 write the stacks of all threads to stderr, even while the GIL is held.

    The supervisor sends this signal before it kills a task that hangs. If the program has set a
    handler for SIGUSR2, the handler stays.

    Returns:
        Whether the signal writes the stacks now.
    """
    if not hasattr(faulthandler, "register"):
        return False
    if signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    # 2 is the file descriptor of stderr; in a notebook `sys.stderr` is not a file.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True, chain=False)
    return True
