"""The stdout and stderr of the tasks of one attempt of a run: printed, logged, remembered."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TextIO

from kfit.heartbeat.terminal import WIDTH_VARIABLE
from kfit.supervisor.line_assembler import Line, pump
from kfit.supervisor.output import Output
from kfit.supervisor.passed_output import Channel, pass_on
from kfit.supervisor.start_up_messages import is_start_up_message
from kfit.supervisor.task_logs import TaskLog, TaskLogs

_TAIL_LINES = 20
# The first words of a process that aborts. Python's faulthandler begins with the last ones.
_ABORT = re.compile(
    r"terminate called |libc\+\+abi: terminating|.*pybind11::error_already_set"
    r"|Fatal Python error: Aborted"
)
# Seconds without output after which a task is taken to have written what it was asked for.
_QUIET = 0.2
# Seconds to wait for that at most.
_PATIENCE = 1.0
_STREAMS: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")


class TaskStreams:
    """What the tasks of one attempt write, and the threads that read it.

    Args:
        names: The names of the tasks, the chief first.
        output: The object that prints.
        prefix: Whether to print each task's name before its lines. If not, the output of the tasks
            is passed on as it is.
        logs: The folder in which the output is logged; None for no logs.
        attempt: The number of the attempt, from 1, for the logs.
    """

    def __init__(
        self,
        names: Sequence[str],
        output: Output,
        *,
        prefix: bool = True,
        logs: TaskLogs | None = None,
        attempt: int = 1,
    ) -> None:
        self._output = output
        self._prefix = prefix
        self._ranks = {name: 2 * index for index, name in enumerate(names)}
        self._tails: dict[str, deque[str]] = {name: deque(maxlen=_TAIL_LINES) for name in names}
        self._channels: dict[str, dict[str, Channel]] = {}
        self._open: set[int] = set()  # the descriptors that are still to be closed here
        self._threads: list[threading.Thread] = []
        self._wrote_at: dict[str, float] = {}
        self._expects_end = False
        self._aborted: set[str] = set()
        self._in_bar = False  # whether the last line of the chief's stdout was of its bar
        self._logs: dict[str, TaskLog] = {}
        if logs is not None:
            self._logs = {name: logs.open(name, attempt, output.say) for name in names}

    def environment(self, name: str, env: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment variables of a task, with the width that its lines may have.

        A terminal's width without the prefix is in COLUMNS, too, by which the tables of
        `model.summary()` and the help of argparse are as wide as they can be.

        Args:
            name: The name of the task.
            env: The other variables. Without prefix the task finds out for itself, unless another
                supervisor prints its output and has told the width.
        """
        if not self._prefix:
            return dict(env)
        columns = self._output.columns
        if not columns:
            return {**env, WIDTH_VARIABLE: "0"}
        prefixed = str(max(1, columns - len(_prefix_of(name))))
        has_bar = self._is_bar_of_cluster(name, "stdout")
        width = str(columns) if has_bar else prefixed
        return {**env, WIDTH_VARIABLE: width, "COLUMNS": prefixed}

    def open(self, name: str) -> dict[str, int | None]:
        """Opens what a task is to write to.

        Returns:
            The file descriptors "stdout" and "stderr" for the task; None for that of this process.
        """
        opened = self._channels[name] = {}
        for stream in _STREAMS:
            if self._prefix:
                opened[stream] = Channel(*os.pipe())
            elif stream == "stderr" or name in self._logs:
                opened[stream] = Channel.like(self._stream(stream))
            if stream in opened:
                self._open |= {opened[stream].reader, opened[stream].writer}
        return {stream: opened[stream].writer if stream in opened else None for stream in _STREAMS}

    def begin(self, name: str, *, shows_all: bool) -> None:
        """Starts to read the output of a task, in threads.

        Args:
            name: The name of the task.
            shows_all: Whether to print TensorFlow's start-up messages as well.

        Raises:
            RuntimeError: If the system has no more threads.
        """
        for stream, channel in self._channels[name].items():
            is_filtered = stream == "stderr" and not shows_all
            keep = partial(self._keep, name, stream)
            if self._prefix:
                emit = partial(self._emit, name, stream, is_filtered)
                show = partial(self._show, name, stream) if self._output.has_live_line else None
                work = partial(_pump, channel.reader, emit, show)
            else:
                write = partial(self._output.write_raw, self._stream(stream))
                work = partial(pass_on, channel, write, keep, is_filtered=is_filtered)
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)
            self._open.discard(channel.reader)  # the thread closes it

    def close_writers(self) -> None:
        """Closes the tasks' ends, when the tasks have started: they have copies."""
        self._close({each.writer for ends in self._channels.values() for each in ends.values()})

    def give_up(self) -> None:
        """Closes everything, if the tasks could not be started."""
        self._close(set(self._open))
        self.close()

    def _close(self, descriptors: set[int]) -> None:
        for each in descriptors & self._open:
            self._open.discard(each)
            os.close(each)

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The threads that read the output; each ends with the output that it reads."""
        return self._threads

    def tail(self, name: str) -> list[str]:
        """Returns the last lines that a task wrote to stderr."""
        return list(self._tails.get(name, ()))

    def await_quiet(self, name: str) -> None:
        """Waits until a task pauses in what it writes, so that the next one does not write between.

        Args:
            name: The name of the task. If it goes on to write, the wait ends after a second.
        """
        begin = time.monotonic()
        while (now := time.monotonic()) - begin < _PATIENCE:
            if now - max(begin, self._wrote_at.get(name, begin)) >= _QUIET:
                return
            time.sleep(_QUIET / 4)

    def expect_end(self) -> None:
        """Leaves out from now on what a task prints when it aborts: it has been asked to stop."""
        self._expects_end = True

    def add(self, name: str, text: str, *, is_shown: bool) -> None:
        """Logs a text that a task has left for its log, after its output.

        Args:
            name: The name of the task.
            text: The text, of one line or more.
            is_shown: Whether the text is printed as well.
        """
        for line in text.splitlines():
            if name in self._logs:
                self._logs[name].write("stderr", line)
            if is_shown:
                prefix = _prefix_of(name) if self._prefix else ""
                self._output.tell(self._output.stderr, f"{prefix}{line}".rstrip())

    def close(self) -> None:
        """Closes the logs, when all tasks have ended."""
        for log in self._logs.values():
            log.close()

    def _stream(self, stream: str) -> TextIO:
        return self._output.stdout if stream == "stdout" else self._output.stderr

    def _keep(self, name: str, stream: str, line: str) -> None:
        self._wrote_at[name] = time.monotonic()
        if name in self._logs:
            self._logs[name].write(stream, line)
        if stream == "stderr" and not is_start_up_message(line):
            self._tails[name].append(line)

    def _emit(self, name: str, stream: str, is_filtered: bool, line: Line) -> None:
        self._keep(name, stream, line.text)
        if not (is_filtered and self._tells_nothing(name, line.text)):
            prefix = "" if self._is_of_bar(name, stream, line) else _prefix_of(name)
            self._output.write(self._stream(stream), f"{prefix}{line.text}".rstrip())

    def _tells_nothing(self, name: str, line: str) -> bool:
        """Returns whether a line on a task's stderr is not printed.

        If a task is asked to stop while C++ runs, the process may abort. Whatever it prints from
        then on describes that.
        """
        if self._expects_end and _ABORT.match(line):
            self._aborted.add(name)
        return name in self._aborted or is_start_up_message(line)

    def _show(self, name: str, stream: str, line: Line) -> None:
        rank = self._ranks[name] + (stream == "stderr")
        self._output.show(rank, self._named(name, stream, line) if line.text.strip() else "")

    def _named(self, name: str, stream: str, line: Line) -> str:
        is_bar = line.is_rewritten and self._is_bar_of_cluster(name, stream)
        return line.text if is_bar else f"{_prefix_of(name)}{line.text}"

    def _is_of_bar(self, name: str, stream: str, line: Line) -> bool:
        """Returns whether a line that has ended is the bar of the cluster, or goes on with it.

        The last state of a bar that is too wide for the terminal has several lines.
        """
        if not self._is_bar_of_cluster(name, stream):
            return False
        self._in_bar = line.is_rewritten or (self._in_bar and line.text.startswith("  "))
        return self._in_bar

    def _is_bar_of_cluster(self, name: str, stream: str) -> bool:
        """Returns whether progress bars of this output need no name, since the chief shows them."""
        return self._output.has_live_line and self._ranks[name] == 0 and stream == "stdout"


def _pump(reader: int, emit: Callable[[Line], None], show: Callable[[Line], None] | None) -> None:
    pump(os.fdopen(reader, "rb", buffering=0), emit, show)


def _prefix_of(name: str) -> str:
    return f"[{name}] "
