"""Finds the processes of one life of a training, by a mark in their environment."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from kfit.heartbeat import VARIABLE as HEARTBEAT
from kfit.heartbeat.layout import BEATS, PHASE, STEP, slots_of
from kfit.heartbeat.phases import Phase

MARK = "KFIT_SOAK"
"""The environment variable whose value marks all processes of one life."""

_NO_TASKS = ("sidecar", "reaper.py")
"""Parts of the commands of kfit's own helpers, which have the environment of a task, too."""

_OF_RAY = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of a Ray of this host that notice its end by themselves, half a minute later or so."""


@dataclass(frozen=True)
class TaskProcess:
    """A process that trains or serves.

    Attributes:
        name: Its name in kfit's messages, such as "worker 0".
        generation: The number of the attempt of `kfit run` to which it belongs.
        ports: The ports of all tasks of its cluster.
        heartbeat: The path of its heartbeat file.
        process: The process itself.
    """

    name: str
    generation: int
    ports: frozenset[int]
    heartbeat: str
    process: psutil.Process

    def progress(self) -> tuple[int, int]:
        """How many graph calls it has finished, and at which step; zeros before the first one."""
        slots = self._slots()
        return (slots[BEATS], slots[STEP]) if slots and slots[BEATS] else (0, 0)

    def is_joining(self) -> bool:
        """Whether it joins its cluster now."""
        slots = self._slots()
        return slots is not None and slots[PHASE] == Phase.JOINING

    def _slots(self) -> memoryview | None:
        try:
            return slots_of(bytearray(Path(self.heartbeat).read_bytes()))[0]
        except (OSError, IndexError, ValueError):
            return None  # it has ended, and its file was removed

    def signal(self, signum: int) -> None:
        """Sends it a signal, unless it has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.send_signal(signum)


def processes_of(mark: str) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """The processes that have a mark and have not ended, with their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environ = process.environ()
            if environ.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process, environ


def tasks_of(mark: str) -> list[TaskProcess]:
    """The tasks of a life that run now, in the order of their names."""
    found = []
    for process, environ in processes_of(mark):
        with contextlib.suppress(psutil.Error, OSError, KeyError, ValueError):
            command = " ".join(process.cmdline())
            if any(word in command for word in _NO_TASKS):
                continue
            # Each task is the first process of a session; what it starts itself is no task.
            if os.getsid(process.pid) != process.pid:
                continue
            config = json.loads(environ["TF_CONFIG"])
            addresses = [each for group in config["cluster"].values() for each in group]
            # A task with a supervisor of its own has the number of the run's attempt here.
            beside = environ.get("KFIT_BESIDE", "").rpartition(":")[2]
            found.append(
                TaskProcess(
                    name=f"{config['task']['type']} {config['task']['index']}",
                    generation=int(beside or environ["KFIT_GENERATION"]),
                    ports=frozenset(int(each.rpartition(":")[2]) for each in addresses),
                    heartbeat=environ[HEARTBEAT],
                    process=process,
                )
            )
    return sorted(found, key=lambda task: task.name)


def are_gone(mark: str, seconds: float) -> bool:
    """Waits until no process with a mark is left; False if there still is one at the deadline.

    Ray's own are not kfit's to end.
    """
    deadline = time.monotonic() + seconds
    while any(not _is_of_ray(process) for process, _ in processes_of(mark)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_of_ray(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(_OF_RAY)
    except psutil.NoSuchProcess:
        return True  # it has just ended


def open_ports(ports: Iterable[int]) -> list[int]:
    """Those ports of this host on which a process listens."""
    found = []
    for port in ports:
        with socket.socket() as caller:
            caller.settimeout(1.0)
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                found.append(port)
    return found
