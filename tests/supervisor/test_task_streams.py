import io
import os
import threading
import time
from pathlib import Path

import pytest

from kfit.heartbeat.terminal import WIDTH_VARIABLE
from kfit.supervisor.output import Output
from kfit.supervisor.task_logs import TaskLogs
from kfit.supervisor.task_streams import TaskStreams

CUDA = "I0000 00:00:1700000000.123456    7 cudart_stub.cc:31] Could not find cuda drivers on it."


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(streams: TaskStreams, **written: str) -> None:
    """Writes to the stderr of tasks, as they would."""
    for name, text in written.items():
        name = name.replace("_", " ")
        ends = streams.open(name)
        assert ends["stderr"] is not None
        os.write(ends["stderr"], text.encode())
        streams.begin(name, shows_all=False)
    streams.close_writers()
    for thread in streams.threads:
        thread.join(10)


def test_lines_are_printed_with_the_name_logged_and_remembered(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    logs = TaskLogs(str(tmp_path))
    names = ["worker 0", "worker 1"]
    streams = TaskStreams(names, Output(out, err), logs=logs, attempt=2)
    run(streams, worker_0=f"one\n{CUDA}\n", worker_1="two")
    streams.close()
    assert sorted(err.getvalue().splitlines()) == ["[worker 0] one", "[worker 1] two"]
    assert streams.tail("worker 0") == ["one"]
    lines = (tmp_path / "worker-0.log").read_text().splitlines()
    assert lines[2:] == ["one", CUDA]
    assert "attempt 2" in lines[1]


def test_tasks_are_told_the_width_that_their_lines_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    names = ["worker 0", "worker 1"]
    terminal = Terminal()
    shown = TaskStreams(names, Output(terminal, terminal))
    # The chief's bar has no name before it; a few columns stay free.
    assert shown.environment("worker 0", {"A": "1"}) == {
        "A": "1",
        WIDTH_VARIABLE: "77",
        "COLUMNS": "66",
    }
    assert shown.environment("worker 1", {}) == {WIDTH_VARIABLE: "66", "COLUMNS": "66"}
    piped = TaskStreams(names, Output(io.StringIO(), terminal))
    assert piped.environment("worker 0", {WIDTH_VARIABLE: "70"}) == {WIDTH_VARIABLE: "0"}
    alone = TaskStreams(names, Output(terminal, terminal, is_live=False), prefix=False)
    assert alone.environment("worker 0", {WIDTH_VARIABLE: "70"}) == {WIDTH_VARIABLE: "70"}


def test_a_single_task_keeps_stdout(tmp_path: Path) -> None:
    err = io.StringIO()
    streams = TaskStreams(["worker 0"], Output(io.StringIO(), err), prefix=False)
    assert streams.open("worker 0")["stdout"] is None
    streams.give_up()
    streams = TaskStreams(["worker 0"], Output(io.StringIO(), err), prefix=False)
    run(streams, worker_0=f"one\n{CUDA}\n 10%\r 20%")
    assert err.getvalue() == "one\n 10%\r 20%"


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_task_writes_in_parts_is_waited_for(ends: bool) -> None:
    err = io.StringIO()
    streams = TaskStreams(["worker 0"], Output(io.StringIO(), err))
    writer = streams.open("worker 0")["stderr"]
    assert writer is not None
    streams.begin("worker 0", shows_all=False)
    stopped = threading.Event()

    def write() -> None:
        for line in range(6 if ends else 1000):
            os.write(writer, f"{line}\n".encode())
            if stopped.wait(0.05):
                return

    thread = threading.Thread(target=write)
    thread.start()
    begin = time.monotonic()
    streams.await_quiet("worker 0")
    took = time.monotonic() - begin
    is_whole = err.getvalue().endswith("[worker 0] 5\n")
    stopped.set()
    thread.join()
    streams.close_writers()
    assert is_whole if ends else took >= 1.0


ABORT = """\
before
terminate called after throwing an instance of 'pybind11::error_already_set'
  what():  MISMATCH of original and normalized active exception types: KeyboardInterrupt
At:
  train.py(5): <module>
"""


def test_what_a_task_prints_when_it_aborts_is_left_out_if_it_was_asked_to_stop(
    tmp_path: Path,
) -> None:
    for is_asked, shown in ((True, 1), (False, 5)):
        err = io.StringIO()
        streams = TaskStreams(
            ["worker 0"], Output(io.StringIO(), err), logs=TaskLogs(str(tmp_path / str(shown)))
        )
        if is_asked:
            streams.expect_end()
        run(streams, worker_0=ABORT)
        streams.close()
        assert len(err.getvalue().splitlines()) == shown
        assert (tmp_path / str(shown) / "worker-0.log").read_text().endswith(ABORT)


def test_a_text_that_a_task_has_left_is_logged(tmp_path: Path) -> None:
    err = io.StringIO()
    streams = TaskStreams(["worker 0"], Output(io.StringIO(), err), logs=TaskLogs(str(tmp_path)))
    run(streams, worker_0="one\n")
    streams.add("worker 0", "two\nthree", is_shown=False)
    streams.add("worker 0", "four", is_shown=True)
    streams.close()
    assert err.getvalue().splitlines() == ["[worker 0] one", "[worker 0] four"]
    assert (tmp_path / "worker-0.log").read_text().splitlines()[2:] == [
        "one",
        "two",
        "three",
        "four",
    ]
