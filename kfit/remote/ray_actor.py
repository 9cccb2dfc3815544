"""The Ray actor of one worker of a launch: it starts the worker's process on its node.

The actor is called the worker's agent. The worker is a child process of the agent, not the agent
itself. So the worker gets its environment before it starts, and has signals and a heartbeat as on
any host; and the agent can report how the worker ended.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import ray

from kfit.heartbeat import Pulse, TaskError
from kfit.remote.call_files import CallFiles, ErrorRecord, Settings
from kfit.supervisor.backend import LocalBackend, WatchedTasks
from kfit.supervisor.local import free_ports, task_environment
from kfit.supervisor.output import Output
from kfit.supervisor.process_group import TaskCommand, TaskExit


@dataclass(frozen=True)
class News:
    """The report of an agent (a Ray actor) about its worker, which it returns when it is polled.

    Attributes:
        lines: The lines that the worker has printed since the last poll. Each has whether it went
            to stderr, and its text.
        pulse: The worker's heartbeat, with times of the agent's clock.
        now: The time of the agent's clock, by `time.monotonic()`.
        stopped: Whether a signal such as SIGSTOP has stopped the worker.
        end: How the worker ended; None while it runs.
    """

    lines: list[tuple[bool, str]]
    pulse: Pulse
    now: float
    stopped: bool
    end: End | None


@dataclass(frozen=True)
class End:
    """The report of an agent about the end of its worker.

    Attributes:
        returncode: The worker's exit code, or minus the number of the signal that killed it.
        tail: The last lines that the worker wrote to stderr.
        step: The last training step that the worker reported; None if it reported none.
        raised: The records of errors that its function raised; empty if it raised none.
        result: The pickled result of its function; None if there is none, as on all workers but
            the chief.
        error: The error that the worker recorded beside its heartbeat, or None.
    """

    returncode: int
    tail: list[str]
    step: int | None
    raised: list[ErrorRecord]
    result: bytes | None
    error: TaskError | None


class Agent:
    """A Ray actor that starts one worker on its node, and reports its output, heartbeat and exit.

    Args:
        name: The worker's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack = ExitStack()
        self._lines: list[tuple[bool, str]] = []
        self._exits: list[TaskExit] = []
        self._call_files: CallFiles | None = None
        self._tasks: WatchedTasks | None = None

    def host(self) -> str:
        """Returns the address of this node."""
        return str(ray.util.get_node_ip_address())

    def free_ports(self, count: int) -> tuple[int, ...]:
        """Returns ports that are free on this node."""
        return free_ports(count)

    def start(
        self, number: int, settings: Settings, call: bytes, environ: Mapping[str, str]
    ) -> None:
        """Starts the worker's process.

        Args:
            number: The number of the attempt to run the tasks, from 0.
            settings: How the worker sets up its process. The `sys.path` in it is replaced by that
                of this process.
            call: The pickled call.
            environ: Environment variables, added to those of this process.
        """
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kfit-launch-", ignore_cleanup_errors=True)
        )
        self._call_files = CallFiles(folder)
        self._call_files.write(replace(settings, path=list(sys.path)), call)
        inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        command = TaskCommand(
            self._name,
            self._call_files.argv(self._name),
            task_environment({**inherited, **environ}),
        )
        output = Output(_Lines(self._lines, is_stderr=False), _Lines(self._lines, is_stderr=True))
        backend = LocalBackend(lambda: [command], folder=folder)
        start = self._stack.enter_context(backend.opened(output, self._exits.append))
        self._tasks = start(number, dict)

    def news(self) -> News:
        """Returns the worker's state, and its output since the last call.

        If the worker has ended, its files are removed, and this must not be called again.
        """
        assert self._tasks is not None
        # Check for the exit first: until the worker has ended, its heartbeat and lines can change.
        ended = bool(self._exits)
        if ended:
            self._tasks.drain()
        pulse = self._tasks.pulses().get(self._name, Pulse())
        stopped = self._name in self._tasks.stopped()
        lines = self._lines[:]
        del self._lines[: len(lines)]
        return News(lines, pulse, time.monotonic(), stopped, self._end() if ended else None)

    def signal(self, signum: int) -> None:
        """Sends a signal to the worker."""
        if self._tasks is not None:
            self._tasks.signal(signum)

    def kill(self) -> None:
        """Kills the worker and its child processes."""
        if self._tasks is not None:
            self._tasks.kill()

    def dump_stacks(self) -> None:
        """Makes the worker write the stacks of its threads to stderr."""
        if self._tasks is not None:
            self._tasks.dump_stacks([self._name])

    def _end(self) -> End:
        assert self._tasks is not None
        assert self._call_files is not None
        end = End(
            self._exits[0].returncode,
            self._tasks.tail(self._name),
            self._tasks.step(self._name),
            self._call_files.errors(),
            self._call_files.result(),
            self._tasks.error(self._name),
        )
        self._tasks.close()
        self._stack.close()
        return end


class _Lines(io.StringIO):
    """A text stream that appends each call's line to a list; `Output` writes one line per call."""

    def __init__(self, lines: list[tuple[bool, str]], *, is_stderr: bool) -> None:
        self._to = lines
        self._is_stderr = is_stderr

    def write(self, line: str) -> int:
        self._to.append((self._is_stderr, line.removesuffix("\n")))
        return len(line)
