"""The format of a heartbeat file, and the supervisor's reader of it.

By a heartbeat file, a task (a process that trains) tells its supervisor (`kfit run`) what it is
doing. The file consists of *slots*, integers of 8 bytes, and one text.

Each slot is aligned and is written by one store, so a reader never sees half of a value. Where one
slot says that others are valid, the others are written first. The reader repeats until two reads
are equal.

The text is the *place*: the file and the line of the user's code that is running. While the text is
being written, the slot `PLACE_VERSION` is odd.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from kfit.heartbeat.phases import Phase, in_words
from kfit.heartbeat.reached import Reached

VARIABLE = "KFIT_HEARTBEAT"
"""The environment variable with the path of the task's heartbeat file."""

SAMPLE_INTERVAL = 1.0
"""Seconds between two looks of the thread that finds out what a task without progress is doing."""

(
    PID,
    SAMPLE_NS,
    WORKERS,
    MARKS_MEETINGS,
    DEPTH,
    LIMIT_NS,
    MEETING_NS,
    BEATS,
    STEP,
    TIME_NS,
    PHASE,
    IN_USER_CODE,
    BUSY,
    PLACE_SIZE,
    PLACE_VERSION,
    SAMPLED_NS,
    FIT,
) = range(17)
_SLOTS = 17
_PLACE = _SLOTS * 8
MOST_OF_PLACE = 256
"""The greatest size of the place's text, in bytes."""
SIZE = _PLACE + MOST_OF_PLACE
# How often a reader tries again while the task is writing.
_MOST_LOOKS = 10


@dataclass(frozen=True)
class Pulse:
    """What a task has last reported to its supervisor (`kfit run`), read from the heartbeat file.

    The supervisor uses it to decide whether the task hangs. Times are in seconds, as of
    `time.monotonic()`.

    Attributes:
        pid: The ID of the process that writes the reports; 0 before a process has begun to.
        beats: How many graph calls the task has finished so far, in training, evaluation and
            prediction.
        step: The number of training steps of the present `fit` that had been taken when its last
            graph call ended; in an evaluation outside of `fit`, that of the evaluated snapshot.
        time: When the task last made progress, or began to do something else (`phase`).
        in_call: Whether the task is in a call of kfit, such as `fit`. Outside of calls the task
            cannot count as hung.
        phase: What the task is doing: a `Phase`; or, while a callback's method such as
            `on_epoch_end` runs, the number that `phases.hook` returns for this method.
        limit: Seconds that the task may be in this phase without progress; None for the
            supervisor's usual limits.
        meeting_since: When the task began to wait for other tasks within a step; None if it does
            not wait.
        workers: How many tasks train together; 0 if that is unknown.
        marks_meetings: Whether the task sets `meeting_since` whenever it waits within a step. If
            False, `meeting_since` may be None although the task waits.
        in_user_code: Whether the user's code was found running while the task made no progress.
        busy: The average number of cores that the process has used since its last progress.
        place: The file and line of the user's code that is running; empty if unknown.
        fit: The number of the training `fit` in the program, from 0: of the present one, or of the
            last one.
    """

    pid: int = 0
    beats: int = 0
    step: int = 0
    time: float = 0.0
    in_call: bool = False
    phase: int = Phase.OUTSIDE
    limit: float | None = None
    meeting_since: float | None = None
    workers: int = 0
    marks_meetings: bool = False
    in_user_code: bool = False
    busy: float = 0.0
    place: str = ""
    fit: int = 0

    @property
    def reached(self) -> Reached:
        """How far the task has come."""
        return Reached(self.fit, self.step)

    @property
    def doing(self) -> str:
        """What the task is doing and where in the user's code, in words that can follow "it is".

        Messages about a task that makes no progress contain this text.
        """
        waits = self.meeting_since is not None and self.phase < Phase.HOOK
        phase = Phase.PEERS if waits else self.phase
        words = in_words(phase, in_user_code=self.in_user_code)
        return f"{words} ({self.place})" if self.place and phase != Phase.PEERS else words


class HeartbeatReader:
    """The supervisor's reader of the file by which a task reports what it is doing.

    The supervisor is the process that watches the task (`kfit run`). The reader also creates the
    file, before the task starts.

    Args:
        path: The file to create, in a folder that no other user may enter.
        sample_interval: How often the task looks at what it is doing while it makes no progress, in
            seconds. The task reads this number from the file.
    """

    def __init__(self, path: str, sample_interval: float = SAMPLE_INTERVAL) -> None:
        self.path = path
        with open(path, "xb") as file:
            # The file is filled with zeros, not only extended: if the disk is full, this raises an
            # error, while a store to a page without disk space would kill the task.
            file.write(bytes(SIZE))
        self._mapped = map_file(path)
        self._bytes = memoryview(self._mapped)
        self._slots = self._bytes[:_PLACE].cast("q")
        self._slots[SAMPLE_NS] = int(sample_interval * 1e9)

    def read(self) -> Pulse:
        """Returns what the task has last reported. The task may have ended since then."""
        values, place = self._slots.tolist(), b""
        for _ in range(_MOST_LOOKS):
            before, values = values, self._slots.tolist()
            place = bytes(self._bytes[_PLACE : _PLACE + max(0, values[PLACE_SIZE])])
            if values == before == self._slots.tolist() and values[PLACE_VERSION] % 2 == 0:
                break
        else:
            place = b""
        meeting, limit = values[MEETING_NS], values[LIMIT_NS]
        # A sample that was taken before the last progress is out of date.
        is_sampled = values[SAMPLED_NS] == max(values[TIME_NS], meeting) > 0
        return Pulse(
            pid=values[PID],
            beats=values[BEATS],
            step=values[STEP],
            time=values[TIME_NS] / 1e9,
            in_call=values[DEPTH] > 0,
            phase=values[PHASE],
            limit=limit / 1e9 if limit else None,
            meeting_since=meeting / 1e9 if meeting else None,
            workers=values[WORKERS],
            marks_meetings=bool(values[MARKS_MEETINGS]),
            in_user_code=is_sampled and bool(values[IN_USER_CODE]),
            busy=values[BUSY] / 1000 if is_sampled else 0.0,
            place=place.decode(errors="replace") if is_sampled else "",
            fit=values[FIT],
        )

    def close(self) -> None:
        """Releases the memory of the file. The file itself is not removed."""
        self._slots.release()
        self._bytes.release()
        self._mapped.close()


def map_file(path: str) -> mmap.mmap:
    """Maps a heartbeat file into memory: the file by which a task reports to its supervisor.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If the file is too short to be a heartbeat file.
    """
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), SIZE)


def slots_of(mapped: mmap.mmap | bytearray) -> tuple[memoryview, memoryview]:
    """Splits the memory of a heartbeat file into its two parts.

    By such a file, a task reports to its supervisor (`kfit run`) what it is doing.

    Returns:
        The values, as 64-bit integers, and the bytes of the text, which names the line of the
        user's code that is running. Both are views, through which the memory can be written.
    """
    view = memoryview(mapped)
    return view[:_PLACE].cast("q"), view[_PLACE:]
