"""A thread of a task that finds out what the task is doing while the task makes no progress.

The findings go to the supervisor (`kfit run`), which decides whether the task hangs. Once a second
the thread checks whether the task has made progress. If so, it does nothing. If not, there is a
*stall*, which lasts until the next progress. In a stall the thread records the place (file and
line) in the user's code, whether that code is running, and how much CPU time the process uses. It
also detects two kinds of progress that nothing else reports. Tracing a step has advanced if the
call stack differs from all call stacks seen before. Saving or restoring has advanced if the process
has read or written bytes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple, Protocol

from kfit.heartbeat.phases import Phase

_LIBRARIES = frozenset({"absl", "keras", "kfit", "tensorflow", "tf_keras", "wrapt"})
# The module of the outermost frame in a thread of TensorFlow's that runs Python code of a graph.
_CODE_OF_GRAPHS = "tensorflow.python.ops.script_ops"
# Modules of kfit from which the user's code is called.
_CALLERS = ("kfit.training.call", "kfit.training.loops", "kfit.trainer", "kfit.inputs")
_PATH_PARTS = 3
# The sampler itself, or the printing of a line, reads and writes fewer bytes than this.
_FEW_BYTES = 16_384
_MOST_STACKS = 100_000


class Sample(NamedTuple):
    """What a task was found doing when it made no progress.

    Attributes:
        place: The file and line of the user's code that is running; empty if none is.
        in_user_code: Whether the user's code is running.
    """

    place: str
    in_user_code: bool


class Sampled(Protocol):
    """The interface of a task's heartbeat that `Sampler` needs; `Heartbeat` implements it.

    By its heartbeat, a task reports to its supervisor (`kfit run`) what it is doing.
    """

    thread: int
    """The ID of the thread that trains."""

    def stall(self) -> tuple[int, int, int]:
        """Returns the time now, the task's phase (a number), and the time of its last progress.

        Both times are in ns. `Sampler` calls it to find out whether the task makes progress.
        """

    def note_place(self, began: int, place: str, in_user_code: bool, busy: float) -> None:
        """Records what the task was found doing while it made no progress.

        Args:
            began: The time of the task's last progress, in ns.
            place: The file and line of the user's code that is running; empty if none is.
            in_user_code: Whether the user's code is running.
            busy: The average number of cores that the process has used since the last progress.
        """

    def moved(self) -> int:
        """Records that the task has made progress, and returns the time now in ns.

        `Sampler` calls it if it has itself found the progress, such as in a long trace of a step.
        """


class Sampler(threading.Thread):
    """A thread that records what its task is doing while the task makes no progress.

    It finds this out from the call stacks of the task's Python threads. The task's supervisor
    (`kfit run`) uses the records to decide whether the task hangs, and to say where.

    Args:
        heartbeat: The `Heartbeat` of the task, to which the records are written.
        interval: Seconds between two looks at the task.
    """

    def __init__(self, heartbeat: Sampled, interval: float) -> None:
        super().__init__(name="kfit-heartbeat", daemon=True)
        self._heartbeat = heartbeat
        self._interval = interval
        self._stacks: set[int] = set()
        self._began = 0
        self._seen = (0.0, 0.0)
        self._bytes = 0

    def run(self) -> None:
        """Calls `look` once in each interval, as long as the process runs."""
        while True:
            time.sleep(self._interval)
            self.look()

    def look(self) -> None:
        """Records what the task is doing, unless it has made progress within the last interval."""
        now, phase, began = self._heartbeat.stall()
        if now - began < self._interval * 1e9:
            return
        if began != self._began:
            self._begin(began)
        frames = frames_of_threads()
        main = frames.pop(self._heartbeat.thread, None)
        in_hook = phase >= Phase.HOOK
        sample = Sample(place_of_hook(main), True) if in_hook else sample_of(main, frames)
        elapsed = time.monotonic() - self._seen[0]
        # At the first sample of a stall, the CPU use in the stall is not known yet.
        is_new = elapsed < self._interval / 2
        busy = 1.0 if is_new else (time.process_time() - self._seen[1]) / elapsed
        self._heartbeat.note_place(began, sample.place, sample.in_user_code, busy)
        if self._has_moved(phase, main):
            # This progress ends the stall. But `_begin` is not called for the next one, so that
            # the call stacks seen so far still count as known.
            self._began = self._heartbeat.moved()

    def _begin(self, began: int) -> None:
        """Resets the measurements, since the task has just been found to make no progress.

        Args:
            began: The time of the task's last progress, in ns.
        """
        self._began = began
        self._seen = time.monotonic(), time.process_time()
        self._stacks.clear()
        self._bytes = _bytes_moved()

    def _has_moved(self, phase: int, main: FrameType | None) -> bool:
        if phase in (Phase.SAVING, Phase.RESTORING):
            before, self._bytes = self._bytes, _bytes_moved()
            if self._bytes - before > _FEW_BYTES:
                return True
        may_trace = phase in (Phase.TRACING, Phase.WORK, Phase.SAVING, Phase.RESTORING)
        if not may_trace or len(self._stacks) > _MOST_STACKS:
            return False
        known = len(self._stacks)
        self._stacks.add(hash(tuple((frame.f_code, frame.f_lasti) for frame in _outwards(main))))
        return 0 < known < len(self._stacks)


def frames_of_threads() -> dict[int, FrameType]:
    """Returns the innermost frame of each thread, by the ID of the thread.

    Python 3.11 up to 3.11.8 makes these frames while it holds a lock of the interpreter, and may
    collect garbage meanwhile. If a finalizer then lets another thread run, and that thread needs
    the lock, for example to start a thread, all threads wait forever
    (https://github.com/python/cpython/issues/106883). So no garbage is collected meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001  documented, in spite of its name
    finally:
        if collects:
            gc.enable()


def sample_of(main: FrameType | None, others: dict[int, FrameType]) -> Sample:
    """Finds out whether the user's code is running, and where, from the stacks of all threads.

    Args:
        main: The innermost frame of the thread that trains; None if there is no such thread.
        others: The innermost frames of all other threads, by the ID of the thread.
    """
    own = _in_user_code(main)
    if own is not None:
        return Sample(own, True)
    for frame in others.values():
        stack = list(_outwards(frame))
        if _module(stack[-1]) != _CODE_OF_GRAPHS:
            continue
        place = _in_user_code(frame)
        if place is not None:
            return Sample(place, True)
        if any(_module(each).startswith("kfit.inputs") for each in stack):
            return Sample("", True)  # the user's data is made by other processes or threads
    return Sample("", False)


def _in_user_code(frame: FrameType | None) -> str | None:
    """Returns the file and line of the user's code in a call stack, if that code is running.

    The result is None if the stack contains no user's code, or if this code has called TensorFlow,
    Keras or kfit and waits for it. Other packages that the user's code calls count as a part of it.

    Args:
        frame: The innermost frame of the stack.
    """
    for each in _outwards(frame):
        top = _module(each).partition(".")[0]
        if top in _LIBRARIES:
            return None
        if not _is_installed(each, top):
            return _place(each)
    return None


def place_of_hook(frame: FrameType | None) -> str:
    """Returns the file and line of the user's code that a hook of callbacks is running.

    The innermost line of the user's code counts, even if it has called TensorFlow, Keras or kfit
    and waits for it. If the hook contains no user's code, the innermost line of all is returned.

    Args:
        frame: The innermost frame of the thread in which the hook runs.
    """
    innermost = ""
    for each in _outwards(frame):
        module = _module(each)
        top = module.partition(".")[0]
        if module.startswith(_CALLERS):
            return innermost
        if top not in _LIBRARIES and not _is_installed(each, top):
            return _place(each)
        innermost = innermost or _place(each)
    return innermost


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_installed(frame: FrameType, top: str) -> bool:
    """Returns whether code belongs to Python's standard library or to an installed package.

    Other code counts as the user's code.

    Args:
        frame: A frame in which the code runs.
        top: The name of the top-level package or module of the code.
    """
    path = frame.f_code.co_filename
    if "site-packages" in path or "dist-packages" in path or path.startswith("<frozen"):
        return True
    return top in sys.stdlib_module_names and top != "__main__"


def _place(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    with contextlib.suppress(FileNotFoundError):  # the current folder was removed
        path = os.path.relpath(path)
    parts = path.split(os.sep)
    if ".." in parts or len(parts) > _PATH_PARTS:
        path = os.sep.join(parts[-_PATH_PARTS:]).lstrip("./")
    return f"{path}:{frame.f_lineno}"


def _bytes_moved() -> int:
    """Returns the number of bytes that this process has read and written so far.

    While a task saves, a growing number shows progress. The result is 0 if the system does not
    count the bytes.
    """
    try:
        with open("/proc/self/io") as counts:
            lines = dict(line.split(": ") for line in counts.read().splitlines())
        return int(lines["rchar"]) + int(lines["wchar"])
    except (OSError, KeyError, ValueError):
        return 0
