"""What a task reports to its supervisor: its progress, its phase, and the error it failed with.

A task is a process that trains. The supervisor is the process that starts the tasks, watches them
and restarts them (`kfit run`). It gives each task the path of a small file, the task's heartbeat,
in the environment variable KFIT_HEARTBEAT. The task maps the file into memory and writes to it as
it runs. The supervisor maps the file, too, and reads it whenever it wants. Neither waits for the
other. If the task no longer writes, the supervisor concludes that it is suspended, or hangs.

    phases.py    what a task can be doing: a step, reading data, a hook, waiting for its peers ...
    layout.py    the format of the file, and how the supervisor reads it
    task.py      how the task writes it
    reached.py   how far a program has come: a `fit`, and a step of it
    counted_fits.py  the numbers of the `fit`s of a process
    clock.py     how long a thread was in each phase, for the report of a `fit`
    sampler.py   a thread of the task that finds out what the task is doing if it makes no progress
    errors.py    the error that a task failed with, and whether a peer's failure caused it
    summaries.py  the one line of an error's message that says what went wrong
    stop_notes.py  what was saved when a signal stopped the task
    terminal.py  the width of the terminal that shows the output, and what it shows of a line
    tracebacks.py  what a user sees of an error or a warning: lines of the program, and not of kfit
    unprinted.py  the traceback that a task does not print, for the log
"""

from __future__ import annotations

from kfit.heartbeat.errors import TaskError, read_error
from kfit.heartbeat.layout import VARIABLE, HeartbeatReader, Pulse
from kfit.heartbeat.phases import Phase
from kfit.heartbeat.reached import Reached
from kfit.heartbeat.task import Heartbeat, register_stack_dump

__all__ = [
    "VARIABLE",
    "Heartbeat",
    "HeartbeatReader",
    "Phase",
    "Pulse",
    "Reached",
    "TaskError",
    "read_error",
    "register_stack_dump",
]
