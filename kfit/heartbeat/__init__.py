"""What a task tells its supervisor: that it gets on, where it is, and what it failed with.

A task that `kfit run` started finds the path of a small file in KFIT_HEARTBEAT. The task maps it
and writes there as it goes; the supervisor maps it too and looks when it pleases. Nobody waits for
anybody: a task that is stopped, stuck or cut off is found by what it does *not* write.

    phases.py    where a task can be: in a step, reading data, in a hook, waiting for its peers ...
    layout.py    the file, and how the supervisor reads it
    task.py      how the task writes it
    sampler.py   a thread of the task that looks what a task is doing which does not get on
    errors.py    the error that a task failed with, and whether a peer's failure is behind it
"""

from __future__ import annotations

from kfit.heartbeat.errors import TaskError, read_error
from kfit.heartbeat.layout import VARIABLE, HeartbeatReader, Pulse
from kfit.heartbeat.phases import Phase
from kfit.heartbeat.task import Heartbeat, register_stack_dump

__all__ = [
    "VARIABLE",
    "Heartbeat",
    "HeartbeatReader",
    "Phase",
    "Pulse",
    "TaskError",
    "read_error",
    "register_stack_dump",
]
