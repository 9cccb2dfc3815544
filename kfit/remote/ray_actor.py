"""The Ray actor that starts one worker of `kfit.launch` on a node of Ray, and reports on it.

The process that calls `kfit.launch` creates such an actor, an `Agent`, for each worker. The worker
itself, which calls the user's function, is a child process of the agent. So it can have environment
variables from its start, signals, and a heartbeat (its reports of progress), as without Ray. And
when it has ended, even by a signal, the agent can still report how.
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

from kfit.heartbeat import Pulse, Reached, TaskError
from kfit.heartbeat.unconfirmed_ends import confirm
from kfit.remote.call_files import CallFiles, ErrorRecord, Settings
from kfit.supervisor.backend import LocalBackend
from kfit.supervisor.local import free_ports, task_environment
from kfit.supervisor.output import Output
from kfit.supervisor.process_group import Generation, TaskCommand, TaskExit


@dataclass(frozen=True)
class News:
    """What the Ray actor of a worker reports on the worker each time it is polled.

    Attributes:
        lines: The lines that the worker has printed since the last poll: for each line whether it
            was written to stderr, and its text.
        pulse: The worker's heartbeat: what the worker is doing, and how far it is. Its times are
            those of the clock of the worker's node.
        now: The time of that clock, by `time.monotonic()`, so that the receiver can convert times
            to its own clock.
        stopped: Whether a signal such as SIGSTOP has suspended the worker.
        end: How the worker ended; None while it runs.
    """

    lines: list[tuple[bool, str]]
    pulse: Pulse
    now: float
    stopped: bool
    end: End | None


@dataclass(frozen=True)
class End:
    """What the Ray actor of a worker reports when the worker has ended.

    Attributes:
        returncode: The worker's exit code, or minus the number of the signal that killed it.
        tail: The last lines that the worker wrote to stderr.
        reached: The last training step that the worker reported, and of which `fit`.
        raised: The records of the errors that the launched function raised on the worker, with
            their tracebacks, for the LaunchError.
        result: The pickled result of the function; None if there is no result, as on all workers
            but the chief.
        error: A short record, for the supervisor, of the error with which the worker failed; None
            if there is none. The worker wrote it beside its heartbeat, the file in which it reports
            its progress.
        stop_note: What the worker has saved when a signal stopped it; may be empty.
    """

    returncode: int
    tail: list[str]
    reached: Reached
    raised: list[ErrorRecord]
    result: bytes | None
    error: TaskError | None
    stop_note: str


class Agent:
    """A Ray actor that starts one worker of a launch on its node, and reports on the worker.

    Args:
        name: The worker's name, such as "worker 0".
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack = ExitStack()
        self._lines: list[tuple[bool, str]] = []
        self._exits: list[TaskExit] = []
        self._call_files: CallFiles | None = None
        self._tasks: Generation | None = None
        self._unconfirmed_ends: list[str] = []

    def host(self) -> str:
        """Returns the IP address of the node on which this actor runs."""
        return str(ray.util.get_node_ip_address())

    def free_ports(self, count: int) -> tuple[int, ...]:
        """Returns `count` ports that are free on this node, for the workers here to listen on."""
        return free_ports(count)

    def start(
        self, number: int, settings: Settings, call: bytes, environ: Mapping[str, str]
    ) -> None:
        """Starts the worker's process, which calls the launched function.

        Args:
            number: The number of the attempt, from 0; a restart of the workers is the next attempt.
            settings: What the worker must know before it calls the function. The `sys.path` in the
                settings is replaced by the one of this process, since this is another host.
            call: The function with its arguments, pickled.
            environ: Environment variables of the worker, added to those of this process, except for
                the TF_CONFIG of this process.
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
        """Returns the worker's state, and its output since the last call of this method.

        The launching process calls it again and again until the worker has ended. The worker's
        files are then removed, and this method must not be called any more.
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
        """Makes the worker write the stacks of its threads to stderr; called if it hangs."""
        if self._tasks is not None:
            self._tasks.dump_stacks([self._name])

    def confirm_ends(self) -> None:
        """Makes the end of the worker's training count, since all workers have succeeded.

        Called after the worker has ended. Until then its snapshots are still needed, since another
        worker may fail.
        """
        confirm(self._unconfirmed_ends)

    def _end(self) -> End:
        assert self._tasks is not None
        assert self._call_files is not None
        end = End(
            self._exits[0].returncode,
            self._tasks.tail(self._name),
            self._tasks.reached(self._name),
            self._call_files.errors(),
            self._call_files.result(),
            self._tasks.error(self._name),
            self._tasks.stop_note(self._name),
        )
        self._unconfirmed_ends = self._tasks.unconfirmed_ends()
        self._tasks.close()
        self._stack.close()
        return end


class _Lines(io.StringIO):
    """A text stream that appends each written line to a list, in place of printing it.

    An `Output` writes to it. Each call of `write` must pass exactly one line, as `Output` does.

    Args:
        lines: The list. A pair is appended to it for each line: whether the line is one of stderr,
            and the text of the line.
        is_stderr: Whether this stream stands for stderr.
    """

    def __init__(self, lines: list[tuple[bool, str]], *, is_stderr: bool) -> None:
        self._to = lines
        self._is_stderr = is_stderr

    def write(self, line: str) -> int:
        self._to.append((self._is_stderr, line.removesuffix("\n")))
        return len(line)
