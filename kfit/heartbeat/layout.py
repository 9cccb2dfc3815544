"""The file of a heartbeat, and the supervisor's end of it.

Every value is one aligned 8-byte store of its own, so none is ever read half-written. What a change
needs is stored before what announces it; the reader looks until it has seen the same twice. The one
text, of the place in the user's code, has a number before it that is odd while it is written.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from kfit.heartbeat.phases import Phase, in_words

VARIABLE = "KFIT_HEARTBEAT"
"""The environment variable with the path of the task's heartbeat file."""

SAMPLE_INTERVAL = 1.0
"""Seconds between two looks of a task at itself."""

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
) = range(16)
_SLOTS = 16
_PLACE = _SLOTS * 8
MOST_OF_PLACE = 256
"""Bytes of the text of a place."""
SIZE = _PLACE + MOST_OF_PLACE
# How often a reader looks again at a task that is writing this very moment.
_MOST_LOOKS = 10


@dataclass(frozen=True)
class Pulse:
    """What a heartbeat file held at one look. Times are in seconds, by `time.monotonic()`.

    Attributes:
        pid: The process that beats; 0 when none has opened the heartbeat yet.
        beats: How many beats there were.
        step: The step of the last one.
        time: When the task last got on, or came to where it is.
        in_call: Whether it is in a call of kfit; else it is not judged.
        phase: Where it is, a `Phase` or that of a hook.
        limit: Seconds that it may be there, where the task itself knows; None otherwise.
        meeting_since: Since when it waits for its peers in the middle of a step; None when not.
        workers: How many tasks train together; 0 when that is unknown.
        marks_meetings: Whether `meeting_since` tells of all such waiting.
        in_user_code: Whether a look at its threads found code of the user's at work.
        busy: How many cores its process used since it last got on, on average.
        place: The file and line of the user's where it is; empty when unknown.
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

    @property
    def doing(self) -> str:
        """What the task is doing, with the place in the user's code, to be put after "it is"."""
        waits = self.meeting_since is not None and self.phase < Phase.HOOK
        phase = Phase.PEERS if waits else self.phase
        words = in_words(phase, in_user_code=self.in_user_code)
        return f"{words} ({self.place})" if self.place and phase != Phase.PEERS else words


class HeartbeatReader:
    """The supervisor's end of a heartbeat: makes the file, then reads it.

    Args:
        path: The file to make, in a folder that nobody else may enter.
        sample_interval: Seconds between two looks of the task at itself.
    """

    def __init__(self, path: str, sample_interval: float = SAMPLE_INTERVAL) -> None:
        self.path = path
        with open(path, "xb") as file:
            # Written, not only made long: on a full disk the task's first store would kill it.
            file.write(bytes(SIZE))
        self._mapped = map_file(path)
        self._bytes = memoryview(self._mapped)
        self._slots = self._bytes[:_PLACE].cast("q")
        self._slots[SAMPLE_NS] = int(sample_interval * 1e9)

    def read(self) -> Pulse:
        """Returns what the task last wrote, be it alive or dead."""
        values, place = self._slots.tolist(), b""
        for _ in range(_MOST_LOOKS):
            before, values = values, self._slots.tolist()
            place = bytes(self._bytes[_PLACE : _PLACE + max(0, values[PLACE_SIZE])])
            if values == before == self._slots.tolist() and values[PLACE_VERSION] % 2 == 0:
                break
        else:
            place = b""
        meeting, limit = values[MEETING_NS], values[LIMIT_NS]
        # What was found in an earlier stall tells nothing of this one.
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
        )

    def close(self) -> None:
        """Lets go of the file, which stays."""
        self._slots.release()
        self._bytes.release()
        self._mapped.close()


def map_file(path: str) -> mmap.mmap:
    """Maps a heartbeat file.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is too short.
    """
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), SIZE)


def slots_of(mapped: mmap.mmap | bytearray) -> tuple[memoryview, memoryview]:
    """Returns the values of a heartbeat, and the bytes of its text."""
    view = memoryview(mapped)
    return view[:_PLACE].cast("q"), view[_PLACE:]
