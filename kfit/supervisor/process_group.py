"""One life of a cluster's tasks on this host: started together, ended together.

A `Generation` owns the processes, their output and the promise that none of them outlives it. It
decides nothing: when to stop, and what an exit means, is the supervisor's business. A restart is
simply the next generation, with commands (and ports) of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TextIO

from kfit.heartbeat import Pulse, TaskError
from kfit.supervisor.heartbeat_files import HeartbeatFiles, ask_for_stacks, is_stopped
from kfit.supervisor.output import Output, pump
from kfit.supervisor.reaper import Reaper
from kfit.supervisor.signals import PREEMPTIONS, signal_name

_TAIL_LINES = 20
# Seconds for output that is still in the pipe of a task that has ended. A process that the task
# has moved to a session of its own may hold the pipe open for much longer.
_DRAIN = 2.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class TaskCommand:
    """How to start one task.

    Args:
        name: What to call it in the output, as `worker 0`.
        argv: The program and its arguments; never a shell.
        env: All of its environment variables.
        beside: Whether the others go on without it when it fails, as without an evaluator.
        serves: Whether it only serves the others, as a ps does, and is stopped when they are done.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    beside: bool = False
    serves: bool = False


@dataclass(frozen=True)
class TaskExit:
    """That a task has ended: 0, an exit code above 0, or a signal's number below 0."""

    name: str
    returncode: int

    @property
    def exit_code(self) -> int:
        """The code a shell would give: 128 + the number of the signal that killed the task."""
        return 128 - self.returncode if self.returncode < 0 else self.returncode

    @property
    def is_preemption(self) -> bool:
        """Whether it ended as a task does that its platform has told to go."""
        return self.exit_code in [128 + signum for signum in PREEMPTIONS]

    @property
    def hint(self) -> str:
        """What may be behind it, to be put after it."""
        if self.returncode == -signal.SIGKILL:
            return ", perhaps because this host is out of memory"
        return ""

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"{self.name} ended with exit code {self.returncode}"
        return f"{self.name} was killed by {signal_name(-self.returncode)}"


class TaskStartError(RuntimeError):
    """The program of a task could not be started at all."""


class Generation:
    """The running tasks of a cluster on this host.

    The thread that calls `start` must live as long as the tasks do: Linux ends them with it.

    Args:
        commands: What to start.
        output: Where the tasks' lines go.
        reaper: Ends the tasks when this process is killed.
        heartbeats: The heartbeats of the tasks; this generation's from now on.
        on_exit: Called with each task that has ended, from another thread.
        prefix: Whether to put each task's name before its lines. If not, the tasks write to this
            process's own stdout and stderr, and `tail` is empty.
    """

    def __init__(
        self,
        commands: Sequence[TaskCommand],
        *,
        output: Output,
        reaper: Reaper,
        heartbeats: HeartbeatFiles,
        on_exit: Callable[[TaskExit], None],
        prefix: bool = True,
    ) -> None:
        self._commands = commands
        self._output = output
        self._reaper = reaper
        self._heartbeats = heartbeats
        self._on_exit = on_exit
        self._prefix = prefix
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tails: dict[str, deque[str]] = {}
        self._pumps: list[threading.Thread] = []
        self._waiters: list[threading.Thread] = []
        # No group is killed whose number may be another's, since its task was reaped just now.
        self._reaping = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names of the tasks that were started; `on_exit` is called once for each."""
        return list(self._processes)

    @property
    def beside(self) -> list[str]:
        """The names of those without which the others go on."""
        return [command.name for command in self._commands if command.beside]

    @property
    def serving(self) -> list[str]:
        """The names of those that only serve the others."""
        return [command.name for command in self._commands if command.serves]

    def start(self) -> None:
        """Starts all tasks.

        Raises:
            TaskStartError: A program cannot be run; the tasks started before it are killed.
        """
        # All processes before the first thread: a fork in a process with threads is a risk. Those
        # of an earlier generation have ended, but for one that still reads a pipe, with no lock.
        for command in self._commands:
            try:
                self._processes[command.name] = self._spawn(command)
            except OSError as error:
                self.kill()
                for process in self._processes.values():
                    process.wait()
                raise TaskStartError(
                    f"{command.name} could not be started: {command.argv[0]}: {error.strerror}"
                ) from None
        for name, process in self._processes.items():
            self._reaper.add(process.pid)
            if self._prefix:
                self._start_pumps(name, process)
            waiter = threading.Thread(target=self._wait_for, args=(name, process), daemon=True)
            self._waiters.append(waiter)
            waiter.start()

    def signal(self, signum: int) -> None:
        """Sends a signal to the running tasks, not to the processes that these have started.

        A task that is asked to stop may need its helpers for its last snapshot.
        """
        with self._reaping:
            for process in self._processes.values():
                if process.returncode is None:
                    # Not by `send_signal`, which may reap it.
                    os.kill(process.pid, signum)

    def kill(self) -> None:
        """Kills the running tasks and all processes of their groups."""
        with self._reaping:
            for process in self._processes.values():
                if process.returncode is None:
                    _kill_group(process.pid)

    def drain(self) -> None:
        """Waits, for a moment, until what ended tasks have written is printed."""
        deadline = time.monotonic() + _DRAIN
        for thread in (*self._waiters, *self._pumps):
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Lets go of what this generation needed while it ran; its tasks have ended."""
        self._heartbeats.close()

    def pulses(self) -> dict[str, Pulse]:
        """Returns what each task that still runs has last written."""
        return {name: self._heartbeats.pulse(name) for name in self._running()}

    def stopped(self) -> list[str]:
        """Returns the names of the tasks that a signal such as SIGSTOP has stopped."""
        return [name for name in self._running() if is_stopped(self._heartbeats.pulse(name).pid)]

    def dump_stacks(self, names: Sequence[str]) -> None:
        """Has tasks write the stacks of their threads to their stderr; a stopped one cannot."""
        for name in names:
            process = self._processes[name]
            if process.returncode is None:
                ask_for_stacks(self._heartbeats.pulse(name).pid, process.pid)

    def step(self, name: str) -> int | None:
        """Returns the last step that a task has told, dead or alive; None if it told none."""
        pulse = self._heartbeats.pulse(name)
        return pulse.step if pulse.beats else None

    def error(self, name: str) -> TaskError | None:
        """Returns what a task noted that it failed with; None if nothing."""
        return self._heartbeats.error(name)

    def tail(self, name: str) -> list[str]:
        """Returns the last lines that a task wrote to its stderr."""
        return list(self._tails.get(name, ()))

    def _running(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.returncode is None]

    def _spawn(self, command: TaskCommand) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE if self._prefix else None
        return subprocess.Popen(
            command.argv,
            env={**command.env, **self._heartbeats.environment(command.name)},
            # Several tasks cannot share a keyboard, and a task in a group of its own has none.
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )

    def _start_pumps(self, name: str, process: subprocess.Popen[bytes]) -> None:
        tail = self._tails[name] = deque(maxlen=_TAIL_LINES)
        assert process.stdout is not None
        assert process.stderr is not None
        self._start_pump(name, process.stdout, self._output.stdout, None)
        self._start_pump(name, process.stderr, self._output.stderr, tail)

    def _start_pump(
        self, name: str, pipe: IO[bytes], stream: TextIO, tail: deque[str] | None
    ) -> None:
        def emit(line: str) -> None:
            if tail is not None:
                tail.append(line)
            self._output.write(stream, f"[{name}] {line}".rstrip())

        thread = threading.Thread(target=pump, args=(pipe, emit), daemon=True)
        self._pumps.append(thread)
        thread.start()

    def _wait_for(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS, before Python 3.13
            process.wait()
        with self._reaping:
            # What the task has left behind in its group has lost its owner. As long as the task is
            # not reaped, the number of the group is nobody else's.
            _kill_group(process.pid)
            self._reaper.remove(process.pid)
            returncode = process.wait()
        self._on_exit(TaskExit(name, returncode))


def _kill_group(group: int) -> None:
    # macOS refuses, rather than overlooks, a group of which only zombies are left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _end_with_parent() -> Callable[[], None] | None:
    """Returns what a child does before its program starts, so that it dies with its parent."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before it could be watched; then the child has another.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return bind
