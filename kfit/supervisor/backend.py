"""Where the tasks of a run are started: on this host, unless the caller passes another `Backend`.

A `Backend` hides the host or the scheduler of a cluster from the supervisor. It starts one
generation of tasks after the other, and leaves no process or file behind. A generation is the tasks
of one attempt of a run: they start and end together, and a restart is the next generation.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from kfit.heartbeat import Pulse
from kfit.heartbeat.layout import SAMPLE_INTERVAL
from kfit.supervisor.heartbeat_files import HeartbeatFiles, heartbeat_root
from kfit.supervisor.output import Output
from kfit.supervisor.policy import Tasks
from kfit.supervisor.process_group import Generation, TaskCommand, TaskExit
from kfit.supervisor.reaper import Reaper

Plan = Callable[[], Sequence[TaskCommand]]
"""A function that makes the commands of one generation of tasks, with ports that are free now."""


class WatchedTasks(Tasks, Protocol):
    """The tasks of one generation, with the means to detect hangs."""

    def pulses(self) -> dict[str, Pulse]:
        """Returns the latest heartbeat of each running task."""

    def stopped(self) -> list[str]:
        """Returns the names of the tasks that a signal such as SIGSTOP has stopped."""


Start = Callable[[int, Callable[[Mapping[str, str]], dict[str, str]]], WatchedTasks]
"""A function that starts the generation with the given number.

Its second argument is a function that adds the environment variables of the run, such as KFIT_RUN,
to the environment of a task.
"""


class Backend(ABC):
    """An interface for starting the tasks of a run, on this host or elsewhere."""

    @abstractmethod
    def opened(
        self, output: Output, on_exit: Callable[[TaskExit], None]
    ) -> AbstractContextManager[Start]:
        """Context of a run: prepares what all generations need, and cleans up when the run ends.

        Args:
            output: The object that prints the lines of the tasks.
            on_exit: A function that is called for each task that has ended, possibly from another
                thread.

        Returns:
            A context manager that yields the function that starts a generation.
        """


class LocalBackend(Backend):
    """A backend that starts tasks as processes on this host.

    Args:
        plan: Makes the commands to run; called for each generation.
        prefix: Whether to print each task's name before its lines.
        folder: A folder that is removed, with its files, if this process is killed. If this process
            ends in another way, the caller must remove it.
        sample_interval: Seconds between two samples that a task's sampler thread takes.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        prefix: bool = True,
        folder: str | None = None,
        sample_interval: float = SAMPLE_INTERVAL,
    ) -> None:
        self._plan = plan
        self._sample_interval = sample_interval
        self._prefix = prefix
        self._folders = [] if folder is None else [folder]

    @contextmanager
    def opened(self, output: Output, on_exit: Callable[[TaskExit], None]) -> Iterator[Start]:
        """See `Backend.opened`.

        What it prepares is a folder for heartbeat files, and the reaper process, which kills the
        tasks if this process is killed.
        """
        with (
            tempfile.TemporaryDirectory(
                prefix="kfit-", dir=heartbeat_root(), ignore_cleanup_errors=True
            ) as folder,
            Reaper(folder, *self._folders) as reaper,
        ):

            def start(
                number: int, identified: Callable[[Mapping[str, str]], dict[str, str]]
            ) -> Generation:
                commands = [
                    replace(command, env=identified(command.env)) for command in self._plan()
                ]
                names = [command.name for command in commands]
                heartbeats = HeartbeatFiles(folder, number, names, self._sample_interval)
                generation = Generation(
                    commands,
                    output=output,
                    reaper=reaper,
                    heartbeats=heartbeats,
                    on_exit=on_exit,
                    prefix=self._prefix,
                )
                try:
                    generation.start()
                except BaseException:
                    heartbeats.close()
                    raise
                return generation

            yield start
