"""Where a program runs, and what happens to it there."""

from dataclasses import dataclass

NUM_DEVICES = 4
"""Logical devices of a process that runs programs."""


@dataclass(frozen=True)
class Place:
    """The strategy, the backup, and the event at which the program is cut off."""

    strategy: str = ""
    """The strategy as Python code; plain Keras if empty."""
    save_freq: int | str | None = None
    """Of BackupAndRestore, or None for none."""
    one_directory: bool = False
    """Whether all fits of the program share one backup."""
    cut: int | None = None
    """The event at which the program is cut off, or None."""
    kill: bool = False
    """Whether the process gets a real SIGKILL there."""
    shaken: bool = False
    """Whether the last digits of the data are others, which shows how much of a difference is
    rounding."""
