"""The task's end of a heartbeat: what it tells as it goes. A store costs a fraction of a µs."""

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

# A century: nanoseconds of it fit into a slot.
_LONGEST_LIMIT = 100 * 365 * 86400.0

# Marks an error that was noted, which may leave several calls one after the other.
_NOTED = "_kfit_noted"

_opened: dict[str, Heartbeat] = {}
"""The heartbeat of this process, by its file."""


class Heartbeat:
    """Tells the supervisor that this task gets on, and where it is.

    A task is judged within `call` alone. There any progress counts: a `beat` at the boundary of
    steps, a batch that was drawn (`moved`), a phase that begins or ends. For one thread, the one
    that trains; `moved`, `meet` and `met` may be called by others.

    Args:
        path: The file to write to; nowhere that anybody reads if not given.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is none of a supervisor.
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

        Also lets the supervisor ask for this process's stacks (`register_stack_dump`), and notes
        the error that ends the process. The first process of a task that calls this owns the
        heartbeat; in the processes that it starts, and where nobody supervises, the heartbeat is
        written to nowhere.

        Args:
            environ: The environment variables to look at.

        Returns:
            The heartbeat, the same one for every call.
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
        """Within it the task is judged: a call of `fit`, `evaluate` or `predict` is under way.

        Calls may be nested. An error that leaves one is noted for the supervisor.

        Args:
            phase: Where the task is at first.
            limit: Seconds that it may be there.
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
        """Within it the innermost call is not under way: a generator has yielded to its user."""
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
        """Notes where the task is, in a call that has begun.

        Args:
            phase: One of `Phase`.
            limit_ns: For how long it may be there without a sign of life, in ns; 0 for the rule.
        """
        slots = self.slots
        slots[TIME_NS] = time.monotonic_ns()
        slots[LIMIT_NS] = limit_ns
        slots[PHASE] = phase

    def at(self, phase: int) -> None:
        """Says where the task is from now on, until it says something else."""
        slots = self.slots
        slots[TIME_NS] = time.monotonic_ns()
        slots[PHASE] = phase

    def phase(self, phase: int, limit: float | None = None) -> _Within:
        """Within it the task is there, and after it where it was before.

        Args:
            phase: Where.
            limit: Seconds that it may be there; None for what is usual.

        Raises:
            ValueError: `limit` is not a positive number.
        """
        return _Within(self, phase, _limit_ns(limit))

    def hook(self, name: str) -> _Within:
        """Within it the callbacks' hook `name` runs."""
        return _Within(self, hook(name), 0)

    def beat(self, step: int) -> None:
        """Says that the task is at a boundary between two steps.

        To be called after every execution of training steps, and as well after those of an
        evaluation, with the same `step` then: the intervals tell the task's rhythm.

        Args:
            step: Training steps taken in all, those before a resume included.
        """
        slots = self.slots
        slots[TIME_NS] = time.monotonic_ns()
        slots[STEP] = step
        slots[BEATS] += 1

    def moved(self) -> int:
        """Says that the task got on by something that is no step; returns the time."""
        now = time.monotonic_ns()
        self.slots[TIME_NS] = now
        return now

    def trains_with(self, workers: int, *, marks_meetings: bool) -> None:
        """Says how many tasks train together.

        Args:
            workers: How many; the ones under another supervisor as well.
            marks_meetings: Whether `meet` is called wherever a step waits for them.
        """
        self.slots[WORKERS] = workers
        self.slots[MARKS_MEETINGS] = marks_meetings

    def meet(self) -> None:
        """Says that this task waits for its peers in the middle of a step."""
        self.slots[MEETING_NS] = time.monotonic_ns()

    def met(self) -> None:
        """Says that a peer has answered; which is progress."""
        self.slots[TIME_NS] = time.monotonic_ns()
        self.slots[MEETING_NS] = 0

    def note_error(self, error: BaseException) -> None:
        """Notes what this task fails with, unless it comes from what was noted already."""
        if self._path is None or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            return
        if any(getattr(each, _NOTED, False) for each in _chain(error)):
            return
        with contextlib.suppress(AttributeError):  # of a class with slots
            setattr(error, _NOTED, True)
        write_error(self._path, TaskError.of(error))

    def stall(self) -> tuple[int, int, int]:
        """Returns the time, the phase and when the task last got on, in nanoseconds."""
        slots = self.slots
        return time.monotonic_ns(), slots[PHASE], max(slots[TIME_NS], slots[MEETING_NS])

    def note_place(self, began: int, place: str, in_user_code: bool, busy: float) -> None:
        """Notes what the sampler found in the stall that began then."""
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
    """A stretch of a task's time, as a context manager that costs little."""

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
    """An error, and those that it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def register_stack_dump() -> bool:
    """Has SIGUSR2 write the stacks of all threads to stderr, even while the GIL is held.

    The supervisor sends it before it kills a task that hangs. A handler of the user's own stays.

    Returns:
        Whether the signal does that now.
    """
    if not hasattr(faulthandler, "register"):
        return False
    if signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, signal.SIG_IGN):
        return False
    # By its number: in a notebook `sys.stderr` is no file.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True, chain=False)
    return True
