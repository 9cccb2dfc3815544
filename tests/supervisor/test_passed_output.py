import os
import pty
import subprocess
import sys
import threading
from functools import partial

import pytest

from kfit.supervisor.passed_output import Channel, pass_on, quiet_stderr

CUDA = "I0000 00:00:1700000000.123456    7 cudart_stub.cc:31] Could not find cuda drivers on it."


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_tasks_output_passes_as_it_is(on_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, open(os.devnull) as file:
        channel = Channel.like(terminal if on_terminal else file)
        program = "import sys; print(sys.stderr.isatty(), end=sys.argv[1], file=sys.stderr)"
        text = f"\n{CUDA}\n 10%\r 20%\ngr\u00fcn\nopen"
        with subprocess.Popen(
            [sys.executable, "-c", program, text], stderr=channel.writer, env={"LC_ALL": "C.UTF-8"}
        ):
            os.close(channel.writer)
            written: list[str] = []
            kept: list[str] = []
            work = partial(pass_on, channel, written.append, kept.append, is_filtered=True)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(30)
    os.close(master)
    assert "".join(written) == f"{on_terminal}\n 10%\r 20%\ngr\u00fcn\nopen"
    assert kept == [str(on_terminal), CUDA, " 20%", "gr\u00fcn", "open"]


@pytest.mark.parametrize("level", ["2", "0"])
def test_this_process_says_nothing_of_tensorflows_start(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """But what else is written to the file descriptor passes, and so does all of it afterwards."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    said = b"E0000 00:00:1.2 3 cuda.cc:5] failed call to cuInit: CUDA error\n"
    with quiet_stderr():
        os.write(2, said + b"other\n")
    os.write(2, said)
    before = "" if level == "2" else said.decode()
    assert capfd.readouterr().err == f"{before}other\n{said.decode()}"
