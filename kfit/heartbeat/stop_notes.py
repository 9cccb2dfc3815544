"""What was saved when a signal stopped a task, recorded for the task's supervisor to report."""

from __future__ import annotations

import contextlib

ON_ANOTHER = "on another worker "
"""How a note begins if the task has got no signal itself, but another one has."""
_LONGEST = 1000


def stop_note_path(heartbeat: str) -> str:
    """Returns the path of the file for the note.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
    """
    return f"{heartbeat}.stopped"


def write_stop_note(heartbeat: str, text: str) -> None:
    """Writes what was saved; nothing if the supervisor has ended and removed the folder."""
    with (
        contextlib.suppress(OSError),
        open(stop_note_path(heartbeat), "w", encoding="utf-8") as file,
    ):
        file.write(text[:_LONGEST])


def read_stop_note(heartbeat: str) -> str:
    """Returns what was saved, in words; empty if the task has recorded nothing."""
    try:
        with open(stop_note_path(heartbeat), encoding="utf-8") as file:
            return file.read(_LONGEST)
    except (OSError, ValueError):
        return ""
