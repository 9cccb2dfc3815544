"""The processes of a run's tasks on this host.

A run may need several attempts. `Generation` is one attempt: it starts the processes of all tasks,
prints their output, and ensures that none of them outlives it. A restart is a new `Generation`,
with its own commands (and ports). The supervisor decides when tasks must stop, and what their exit
codes mean.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kfit.fault_sites import Site, reach
from kfit.heartbeat import Pulse, Reached, TaskError
from kfit.heartbeat.unconfirmed_ends import confirm
from kfit.supervisor.heartbeat_files import HeartbeatFiles, ask_for_stacks, is_stopped
from kfit.supervisor.output import Output
from kfit.supervisor.reaper import Reaper
from kfit.supervisor.signals import PREEMPTIONS, signal_name
from kfit.supervisor.task_logs import TaskLogs
from kfit.supervisor.task_streams import TaskStreams

_RUN_MODULE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_module.py")
# Seconds to read the output still in the pipe of a task that has ended. A process that the task has
# moved to a session of its own may keep the pipe open for much longer.
_DRAIN = 2.0
# The same while nobody reads the output of `kfit run`, and seconds between two looks whether
# somebody does.
_DRAIN_UNREAD, _LOOK_EVERY = 5.0, 0.1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class TaskCommand:
    """The command that starts one task, and what the other tasks need the task for.

    Args:
        name: The name of the task in the output, such as "worker 0".
        argv: The program and its arguments; no shell is used.
        env: All environment variables of the task.
        dispensable: Whether the other tasks can continue if this task fails, such as an evaluator.
        serves: Whether the task only serves the others, such as a ps. It is stopped when the others
            have ended.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    dispensable: bool = False
    serves: bool = False


def own_program(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns the command line that runs a module of kfit, whatever files the current folder has.

    Args:
        module: The name of the module.
        *arguments: Its arguments.
    """
    return (sys.executable, _RUN_MODULE, module, *arguments)


@dataclass(frozen=True)
class TaskExit:
    """The end of a task, with its exit code.

    Attributes:
        name: The name of the task, such as "worker 0".
        returncode: The exit code of the process, or minus the number of the signal that killed it.
    """

    name: str
    returncode: int

    @property
    def exit_code(self) -> int:
        """The exit code as in a shell: 128 + the signal's number if a signal killed the task."""
        return 128 - self.returncode if self.returncode < 0 else self.returncode

    @property
    def is_preemption(self) -> bool:
        """Whether the exit code shows that a preemption signal (`PREEMPTIONS`) ended the task."""
        return self.exit_code in [128 + signum for signum in PREEMPTIONS]

    @property
    def hint(self) -> str:
        """A possible reason for the end, which is appended to the error message; may be empty."""
        if self.returncode == -signal.SIGKILL:
            return ", perhaps because this host is out of memory"
        return ""

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"{self.name} ended with exit code {self.returncode}"
        return f"{self.name} was killed by {signal_name(-self.returncode)}"


class TaskStartError(RuntimeError):
    """An error that is raised because the program of a task cannot be started."""


class Generation:
    """The tasks of one attempt of a run, as processes on this host.

    The thread that calls `start` must run as long as the tasks do, because Linux kills the tasks
    when that thread ends.

    Args:
        commands: The commands that start the tasks.
        output: The object that prints the lines that the tasks write.
        reaper: The reaper: a process that kills the tasks if this process is killed.
        heartbeats: The files in which the tasks report their progress. `close` removes them.
        on_exit: A function that is called for each task that has ended, from another thread.
        prefix: Whether to print each task's name before its lines. If not, their output is passed
            on as it is, and they have the stdin of this process.
        logs: The folder in which the output of each task is logged; None for no logs.
        attempt: The number of the attempt, from 1, for the logs.
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
        logs: TaskLogs | None = None,
        attempt: int = 1,
    ) -> None:
        self._commands = commands
        self._output = output
        names = [command.name for command in commands]
        self._streams = TaskStreams(names, output, prefix=prefix, logs=logs, attempt=attempt)
        # Several tasks cannot share a keyboard or a pipe.
        self._has_stdin = not prefix and not _is_in_background()
        self._reaper = reaper
        self._heartbeats = heartbeats
        self._on_exit = on_exit
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._waiters: dict[str, threading.Thread] = {}
        # Held while tasks are signalled, and while one is reaped: after it is reaped, its process
        # id may belong to another process.
        self._reaping = threading.Lock()
        self._is_ending = False  # whether the tasks have been asked to stop

    @property
    def names(self) -> list[str]:
        """The names of the tasks that were started; `on_exit` is called once for each."""
        return list(self._processes)

    @property
    def processes(self) -> dict[str, int]:
        """The process id of each task that was started, except those under another supervisor.

        A task that the others can do without (`TaskCommand.dispensable`) has a supervisor of its
        own (see `kfit.supervisor.sidecar`), whose process is not that of the task.
        """
        apart = self.dispensable
        return {name: each.pid for name, each in self._processes.items() if name not in apart}

    @property
    def dispensable(self) -> list[str]:
        """The names of the tasks without which the others can continue, such as an evaluator."""
        return [command.name for command in self._commands if command.dispensable]

    @property
    def servers(self) -> list[str]:
        """The names of the tasks that only serve the others, such as ps tasks."""
        return [command.name for command in self._commands if command.serves]

    def start(self) -> None:
        """Starts the processes of all tasks.

        If an error is raised, the tasks that were started before are killed.

        Raises:
            TaskStartError: If a program cannot be run, or the system has no more threads.
        """
        try:
            # All processes are started before the first thread, since a fork in a process with
            # threads is a risk. Threads of an earlier generation may be left, and one that prints,
            # but they hold no lock that the new process needs.
            for command in self._commands:
                self._start_process(command)
            self._streams.close_writers()
            for command in self._commands:
                self._start_threads(command)
        except BaseException:
            self._give_up()
            raise

    def _start_process(self, command: TaskCommand) -> None:
        try:
            self._processes[command.name] = self._spawn(command)
        except OSError as error:
            raise TaskStartError(
                f"{command.name} could not be started: {command.argv[0]}: {error.strerror}"
            ) from None
        reach(Site.TASK_STARTED)

    def _start_threads(self, command: TaskCommand) -> None:
        name, process = command.name, self._processes[command.name]
        self._reaper.add(process.pid)
        waiter = threading.Thread(target=self._wait_for, args=(name, process), daemon=True)
        try:
            self._streams.begin(name, shows_all=_shows_all(command.env))
            waiter.start()
        except RuntimeError as error:
            raise TaskStartError(f"{name} could not be watched: {error}") from None
        self._waiters[name] = waiter

    def _give_up(self) -> None:
        """Kills the tasks that were started, waits for their ends, and closes their streams."""
        self.kill()
        for name, process in self._processes.items():
            if name in self._waiters:
                self._waiters[name].join()
            else:
                process.wait()
                self._reaper.remove(process.pid)
        self._streams.give_up()

    def signal(self, signum: int, names: Collection[str] | None = None) -> None:
        """Sends a signal to the tasks that still run, but not to processes that they have started.

        A task that is asked to stop may need these processes to save its state.

        Args:
            signum: The number of the signal.
            names: The names of the tasks that get it; None for all.
        """
        self._is_ending = True
        self._streams.expect_end()
        with self._reaping:
            for name, process in self._processes.items():
                if process.returncode is None and (names is None or name in names):
                    # Not by `Popen.send_signal`, which may reap the process.
                    os.kill(process.pid, signum)

    def kill(self) -> None:
        """Kills the running tasks and all processes of their process groups."""
        with self._reaping:
            for process in self._processes.values():
                if process.returncode is None:
                    _kill_group(process.pid)

    def drain(self) -> None:
        """Waits until the output of ended tasks is printed, but for at most 2 s.

        It waits for up to 5 s if the output of this process is read slowly or not at all.
        """
        now = time.monotonic()
        end, latest_end = now + _DRAIN, now + _DRAIN_UNREAD
        for thread in (*self._waiters.values(), *self._streams.threads):
            while thread.is_alive() and (now := time.monotonic()) < end:
                thread.join(min(_LOOK_EVERY, end - now))
                if self._output.is_blocked():
                    end = min(latest_end, time.monotonic() + _DRAIN)

    def close(self) -> None:
        """Removes the files in which tasks reported their progress; all tasks must have ended."""
        self._heartbeats.close()
        self._streams.close()

    def pulses(self) -> dict[str, Pulse]:
        """Returns the latest heartbeat (report of progress) of each running task, by its name."""
        return {name: self._heartbeats.pulse(name) for name in self._running()}

    def stopped(self) -> list[str]:
        """Returns the names of the running tasks that a signal such as SIGSTOP has suspended."""
        return [name for name in self._running() if is_stopped(self._heartbeats.pulse(name).pid)]

    def dump_stacks(self, names: Sequence[str]) -> None:
        """Makes tasks that hang write the stacks of their threads to stderr, one after another.

        A task that is suspended by a signal cannot do so.
        """
        for name in names:
            process = self._processes[name]
            if process.returncode is not None:
                continue
            if ask_for_stacks(self._heartbeats.pulse(name).pid, process.pid):
                self._streams.await_quiet(name)

    def reached(self, name: str) -> Reached:
        """Returns the last training step that a task has reported, and of which `fit`."""
        return self._heartbeats.pulse(name).reached

    def error(self, name: str) -> TaskError | None:
        """Returns the error that a task has recorded; None if it has recorded none."""
        return self._heartbeats.error(name)

    def unconfirmed_ends(self) -> list[str]:
        """Returns the files to delete when all tasks of the run have succeeded."""
        return self._heartbeats.unconfirmed_ends()

    def confirm_ends(self) -> None:
        """Makes the ends of the tasks' trainings count, since all tasks have succeeded."""
        confirm(self.unconfirmed_ends())

    def stop_note(self, name: str) -> str:
        """Returns what a task has saved when a signal stopped it; empty if it told nothing."""
        return self._heartbeats.stop_note(name)

    def tail(self, name: str) -> list[str]:
        """Returns the last lines that a task wrote to stderr, for the report of a failure."""
        return self._streams.tail(name)

    def _running(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.returncode is None]

    def _spawn(self, command: TaskCommand) -> subprocess.Popen[bytes]:
        streams = self._streams.open(command.name)
        env = self._streams.environment(command.name, command.env)
        return subprocess.Popen(
            command.argv,
            env={**env, **self._heartbeats.environment(command.name)},
            stdin=None if self._has_stdin else subprocess.DEVNULL,
            stdout=streams["stdout"],
            stderr=streams["stderr"],
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )

    def _wait_for(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS, before Python 3.13
            process.wait()
        with self._reaping:
            # Kill processes that the task has left behind in its group. Until the task is reaped,
            # no other group can get the number of its group.
            _kill_group(process.pid)
            self._reaper.remove(process.pid)
            returncode = process.wait()
        if unprinted := self._heartbeats.unprinted(name):
            is_shown = unprinted.is_interrupt and not self._is_ending
            self._streams.add(name, unprinted.text, is_shown=is_shown)
        ended = TaskExit(name, returncode)
        if returncode < 0:
            self._streams.add(name, f"kfit: {ended}", is_shown=False)
        self._on_exit(ended)


def _is_in_background() -> bool:
    """Returns whether stdin is a terminal from which the shell reads now, as after `command &`.

    The system keeps a process in the background from reading it, but not one of another session, as
    a task is.
    """
    try:
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # it is closed, or a terminal that does not control this process
        return False


def _kill_group(group: int) -> None:
    # For a group of which only zombies are left, macOS raises PermissionError.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _shows_all(env: Mapping[str, str]) -> bool:
    """Returns whether a task's start-up messages of TensorFlow are printed.

    They are if the user wants them (`--verbose`), or if another supervisor leaves them out.
    """
    return env.get("TF_CPP_MIN_LOG_LEVEL") == "0" or "KFIT_BESIDE" in env


def _end_with_parent() -> Callable[[], None] | None:
    """Returns a `preexec_fn` with which Linux kills a child process when its parent dies.

    The parent is the thread that has started the child. The result is None on other systems, which
    have no such function.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # If the parent died before that call, the child has another parent by now.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return bind
