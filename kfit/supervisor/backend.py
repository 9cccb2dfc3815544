"""Where the tasks of a run are started: on this host, unless the caller passes another `Backend`.

A `Backend` hides the host or the scheduler of a cluster from the supervisor. It starts one
generation of tasks after the other, and leaves no process or file behind.
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
"""Makes the commands of one generation of tasks, with ports that are free now."""


class WatchedTasks(Tasks, Protocol):
    """The tasks of one generation, with the means to detect hangs."""

    def pulses(self) -> dict[str, Pulse]:
        """Returns the latest heartbeat of each running task."""

    def stopped(self) -> list[str]:
        """Returns the names of the tasks that a signal such as SIGSTOP has stopped."""


Start = Callable[[int, Callable[[Mapping[str, str]], dict[str, str]]], WatchedTasks]
"""Starts the generation with a number; the function adds the run's variables to an environment."""


class Backend(ABC):
    """Starts the tasks of a run."""

    @abstractmethod
    def opened(
        self, output: Output, on_exit: Callable[[TaskExit], None]
    ) -> AbstractContextManager[Start]:
        """Prepares what all generations need, and cleans up at the end of a run.

        Args:
            output: Where the tasks' lines are written.
            on_exit: Called for each task that has ended, possibly from another thread.

        Returns:
            A context manager that yields the function that starts a generation.
        """


class LocalBackend(Backend):
    """Starts tasks as processes of this host.

    Args:
        plan: Makes the commands to run; called for each generation.
        prefix: As for `Generation`.
        folder: A folder of files that is removed if this process is killed. Otherwise the caller
            removes it.
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
        """Makes the folder of the heartbeats, and the reaper process."""
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
