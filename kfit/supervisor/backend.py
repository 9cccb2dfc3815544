"""Starts the tasks of a run: on this host, unless the caller passes another `Backend`.

A `Backend` hides from the supervisor whether tasks run on this host or are started by the scheduler
of a cluster. A run may need several attempts; the tasks of one attempt are called a generation.
They start and end together, and a restart is the next generation. After a run, a backend leaves no
process or file behind.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from kfit.heartbeat import Pulse
from kfit.heartbeat.aside import ASIDE, PREFIX
from kfit.heartbeat.layout import SAMPLE_INTERVAL
from kfit.supervisor.heartbeat_files import HeartbeatFiles, heartbeat_root
from kfit.supervisor.output import Output
from kfit.supervisor.policy import Tasks
from kfit.supervisor.process_group import Generation, TaskCommand, TaskExit, TaskStartError
from kfit.supervisor.reaper import Reaper
from kfit.supervisor.signals import exit_codes_kept
from kfit.supervisor.task_logs import TaskLogs

Plan = Callable[[], Sequence[TaskCommand]]
"""A function that returns the commands of one generation of tasks, with ports that are free now."""


class WatchedTasks(Tasks, Protocol):
    """The tasks of one attempt of a run, as the supervisor uses them to detect hangs."""

    def pulses(self) -> dict[str, Pulse]:
        """Returns the latest heartbeat (report of progress) of each running task, by its name."""

    def stopped(self) -> list[str]:
        """Returns the names of the tasks that a signal such as SIGSTOP has suspended."""


_Identified = Callable[[Mapping[str, str]], dict[str, str]]

Start = Callable[[int, _Identified], WatchedTasks]
"""A function that starts the tasks of one generation, and returns the started tasks.

Its first argument is the number of the generation. Its second argument is a function that gets the
environment variables of a task, and returns them together with those of the run, such as KFIT_RUN.
"""


class Backend(ABC):
    """An interface for starting the tasks (processes) of a run, on this host or elsewhere.

    `LocalBackend` implements the interface for this host, and `RayBackend` for Ray.
    """

    @abstractmethod
    def opened(
        self, output: Output, on_exit: Callable[[TaskExit], None]
    ) -> AbstractContextManager[Start]:
        """Context of a run: prepares what all attempts need, and cleans up when the run ends.

        Args:
            output: The object that prints the lines that the tasks write.
            on_exit: A function that must be called for each task that has ended, possibly from
                another thread.

        Returns:
            A context manager. It yields a function that starts the tasks of one attempt (`Start`).
        """


class LocalBackend(Backend):
    """A backend that starts tasks as processes on this host.

    Args:
        plan: A function that returns the commands to run. It is called for each attempt of the run,
            since each attempt needs free ports.
        prefix: Whether to print each task's name before its lines. If not, the tasks have the stdin
            of this process.
        folder: A folder to be removed, with its files, if this process is killed. If this process
            ends in another way, the caller must remove the folder. None for no folder.
        sample_interval: Seconds between two looks of a task at its own state, such as its use of
            CPUs.
        logs: The folder in which the output of each task is logged; None for no logs.
        tell_processes: Whether to print the process id of each task at the start of each attempt.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        prefix: bool = True,
        folder: str | None = None,
        sample_interval: float = SAMPLE_INTERVAL,
        logs: TaskLogs | None = None,
        tell_processes: bool = False,
    ) -> None:
        self._plan = plan
        self._tell_processes = tell_processes
        self._logs = logs
        self._sample_interval = sample_interval
        self._prefix = prefix
        self._folders = [] if folder is None else [folder]

    @contextmanager
    def opened(
        self, output: Output, on_exit: Callable[[TaskExit], None]
    ) -> Iterator[Callable[[int, _Identified], Generation]]:
        """Context of a run on this host, which prepares what all attempts of the run need.

        All attempts share a folder for heartbeat files, in which the tasks report their progress.
        They also share the reaper, a process that kills the tasks if this process is killed. When
        the run ends, the folder is removed and the reaper ends. A second folder, for what tasks
        other than the chief write and nobody keeps, is removed, too.

        Args:
            output: The object that prints the lines that the tasks write.
            on_exit: A function that is called for each task that has ended, from another thread.

        Yields:
            A function that starts the tasks of one attempt (`Start`).
        """
        with (
            exit_codes_kept(),
            tempfile.TemporaryDirectory(
                prefix="kfit-", dir=heartbeat_root(), ignore_cleanup_errors=True
            ) as folder,
            _folder_aside() as aside,
            Reaper(folder, *aside.values(), *self._folders) as reaper,
        ):

            def start(number: int, identified: _Identified) -> Generation:
                commands = [
                    replace(command, env={**identified(command.env), **aside})
                    for command in self._plan()
                ]
                names = [command.name for command in commands]
                try:
                    heartbeats = HeartbeatFiles(folder, number, names, self._sample_interval)
                except OSError as error:
                    raise TaskStartError(
                        f"the tasks could not be started: {folder} cannot be written: "
                        f"{error.strerror}"
                    ) from None
                generation = Generation(
                    commands,
                    output=output,
                    reaper=reaper,
                    heartbeats=heartbeats,
                    on_exit=on_exit,
                    prefix=self._prefix,
                    logs=self._logs,
                    attempt=number + 1,
                )
                try:
                    generation.start()
                except BaseException:
                    heartbeats.close()
                    raise
                if self._tell_processes and (processes := generation.processes):
                    named = [f"{name} is process {pid}" for name, pid in processes.items()]
                    output.say(", ".join(named))
                return generation

            yield start


@contextmanager
def _folder_aside() -> Iterator[dict[str, str]]:
    """Context with a folder for all tasks (see `kfit.heartbeat.aside`).

    Yields:
        The environment variable that tells the tasks of the folder; none where no temporary folder
        can be made, as on a read-only disk. Then each task does what it can.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError:
        yield {}
        return
    with made as folder:
        yield {ASIDE: folder}
