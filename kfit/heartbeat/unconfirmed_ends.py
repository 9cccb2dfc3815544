"""Ends of trainings that count only when all tasks of the run have succeeded.

A task that has trained and ended well may leave a file, a marker, which says that this end is not
confirmed yet: another task may still fail. It records the path of the marker for its supervisor,
which deletes the marker when all tasks have succeeded.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable

MARKER = ".kfit-ending"
"""The name of a marker. It is an empty file."""


def ends_path(heartbeat: str) -> str:
    """Returns the path of the file in which a task records the paths of its markers.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
    """
    return f"{heartbeat}.ends"


def write_end(heartbeat: str, marker: str) -> bool:
    """Records a marker, and returns whether it is recorded; False if the supervisor has ended.

    Raises:
        OSError: If it cannot be recorded though the supervisor runs, as on a full disk.
    """
    try:
        with open(ends_path(heartbeat), "a", encoding="ascii") as file:
            file.write(json.dumps(os.path.abspath(marker)) + "\n")
    except FileNotFoundError:  # the folder has gone, which its supervisor deletes at its end
        return False
    return True


def read_ends(heartbeat: str) -> list[str]:
    """Returns the paths of the markers that a task has recorded; none if the file is damaged."""
    try:
        with open(ends_path(heartbeat), encoding="ascii") as file:
            return [str(json.loads(line)) for line in file]
    except (OSError, ValueError):
        return []


def confirm(markers: Iterable[str]) -> None:
    """Deletes markers, so that the ends of their trainings count; files that are none stay.

    Args:
        markers: The paths that tasks have recorded.
    """
    for path in markers:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            is_marker = os.path.basename(path) == MARKER and stat.S_ISREG(found.st_mode)
            if is_marker and not found.st_size:
                os.unlink(path)
