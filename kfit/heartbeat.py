"""A task's sign of life, and how its supervisor reads it.

A task that `kfit run` started finds the path of a small file in KFIT_HEARTBEAT. The task maps it
and writes there at each step; the supervisor maps it too and looks when it pleases. Nobody waits
for anybody: a task that is stopped, stuck or cut off is found by what it does *not* write.

Every value is one aligned 8-byte store of its own, so none is ever read half-written. What a change
needs is stored before what announces it, and read after it; the reader looks twice besides.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

VARIABLE = "KFIT_HEARTBEAT"
"""The environment variable with the path of the task's heartbeat file."""

UNHURRIED_LIMIT = 1800.0
"""Seconds that `unhurried` gives unless told otherwise: more than any graph takes to compile."""

# Read in this order, written in the other.
_PID, _UNHURRIED_SINCE, _UNHURRIED_LIMIT, _BEATS, _STEP, _TIME = range(6)
_SIZE = 6 * 8
# How often a reader looks again at a task that is writing this very moment.
_MOST_LOOKS = 10
# A century: nanoseconds of it fit into a slot.
_LONGEST_LIMIT = 100 * 365 * 86400.0
# In the place of the time since which the task is unhurried, which is never negative.
_FINISHED = -1


class Heartbeat:
    """Tells the supervisor how far this task has come. For one thread: the one that trains.

    A beat costs less than a microsecond, with a supervisor or without one.

    Args:
        slots: Where to write; nowhere that anybody reads if not given.
    """

    def __init__(self, slots: memoryview | None = None) -> None:
        self._slots = memoryview(bytearray(_SIZE)).cast("q") if slots is None else slots

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Heartbeat:
        """Returns the heartbeat that the supervisor of this task reads.

        Also lets the supervisor ask for this process's stacks (`register_stack_dump`). The first
        process of a task that calls this owns the heartbeat; in the processes that it starts, and
        where nobody supervises, the heartbeat is written to nowhere.

        Args:
            environ: The environment variables to look at.

        Returns:
            The heartbeat. The same file for every call, so the count of beats goes on.
        """
        path = environ.get(VARIABLE)
        if not path:
            return cls()
        try:
            slots = memoryview(_map(path)).cast("q")
        except (OSError, ValueError) as error:
            warnings.warn(
                f"`{VARIABLE}` is {path!r}, which is no heartbeat file of a supervisor that runs "
                f"({error}); this task trains without one. Start it by `kfit run`, or unset the "
                "variable.",
                RuntimeWarning,
                stacklevel=2,
            )
            return cls()
        if slots[_PID] not in (0, os.getpid()):
            return cls()
        register_stack_dump()
        slots[_PID] = os.getpid()
        return cls(slots)

    def beat(self, step: int) -> None:
        """Says that the task has got on: it is at a boundary between two steps.

        To be called after every execution of training steps, and as well after those of an
        evaluation, with the same `step` then: from the first few beats on, a task that does not
        beat for long counts as hung.

        Args:
            step: Training steps taken in all, those before a resume included.
        """
        slots = self._slots
        slots[_TIME] = time.monotonic_ns()
        slots[_STEP] = step
        slots[_BEATS] += 1
        if slots[_UNHURRIED_SINCE] == _FINISHED:
            slots[_UNHURRIED_SINCE] = 0

    @contextlib.contextmanager
    def unhurried(self, limit: float = UNHURRIED_LIMIT) -> Iterator[None]:
        """Within it no beats are expected: a graph is traced, a snapshot read, a peer awaited.

        After it the clock starts anew. Within another one the more generous of the two counts,
        and the other starts anew after the inner one.

        Args:
            limit: Seconds after which the task counts as hung all the same, even when it has
                never beaten. Half an hour by default, so that nothing hangs for ever.

        Raises:
            ValueError: `limit` is not a positive number.
        """
        if not 0 < limit < _LONGEST_LIMIT:
            raise ValueError(f"`limit` is {limit!r}; expected a positive number of seconds")
        slots = self._slots
        now, granted = time.monotonic_ns(), int(limit * 1e9)
        outer_since, outer_limit = slots[_UNHURRIED_SINCE], slots[_UNHURRIED_LIMIT]
        is_inner = outer_since > 0
        if is_inner and outer_since + outer_limit >= now + granted:
            yield
            return
        slots[_UNHURRIED_LIMIT] = granted
        slots[_UNHURRIED_SINCE] = now
        try:
            yield
        finally:
            now = time.monotonic_ns()
            slots[_TIME] = now
            slots[_UNHURRIED_SINCE] = now if is_inner else outer_since
            slots[_UNHURRIED_LIMIT] = outer_limit

    def finish(self) -> None:
        """Says that no more beats come: what follows the training is not judged.

        A later `beat` takes it back.
        """
        self._slots[_UNHURRIED_SINCE] = _FINISHED


@dataclass(frozen=True)
class Pulse:
    """What a heartbeat file held at one look.

    Attributes:
        pid: The process that beats; 0 when none has opened the heartbeat yet.
        beats: How many beats there were.
        step: The step of the last one.
        time: When that was, or when the task last ceased to be unhurried; in seconds, by
            `time.monotonic()`, as all times here.
        unhurried_since: When the task became unhurried; None when it is not.
        unhurried_limit: For how many seconds it may be, when it is.
        finished: Whether it has said that no more beats come.
    """

    pid: int = 0
    beats: int = 0
    step: int = 0
    time: float = 0.0
    unhurried_since: float | None = None
    unhurried_limit: float = UNHURRIED_LIMIT
    finished: bool = False


class HeartbeatReader:
    """The supervisor's end of a heartbeat: makes the file, then reads it.

    Args:
        path: The file to make, in a folder that nobody else may enter.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "xb") as file:
            # Written, not only made long: on a full disk the task's first store would kill it.
            file.write(bytes(_SIZE))
        self._mapped = _map(path)
        self._slots = memoryview(self._mapped).cast("q")
        self._slots[_UNHURRIED_LIMIT] = int(UNHURRIED_LIMIT * 1e9)

    def read(self) -> Pulse:
        """Returns what the task last wrote, be it alive or dead."""
        values = self._slots.tolist()
        for _ in range(_MOST_LOOKS):
            before, values = values, self._slots.tolist()
            if values == before:
                break
        pid, since, limit, beats, step, when = values
        return Pulse(
            pid=pid,
            beats=beats,
            step=step,
            time=when / 1e9,
            unhurried_since=since / 1e9 if since > 0 else None,
            unhurried_limit=limit / 1e9,
            finished=since == _FINISHED,
        )

    def close(self) -> None:
        """Lets go of the file, which stays."""
        self._slots.release()
        self._mapped.close()


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


def _map(path: str) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), _SIZE)
