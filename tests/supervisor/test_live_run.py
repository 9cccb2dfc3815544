"""What a person sees of `kfit run`, on a terminal and in a file."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest

COLUMNS = 100
LONG = 480.0
SIGN_OF_LIFE = 0.5
SCRIPT = """
import sys, time
import keras, kfit
import numpy as np

x, y = np.zeros((640, 4), "float32"), np.zeros(640, "int64")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
waits = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.05))
backup = kfit.callbacks.BackupAndRestore("backup", save_freq=7)
strategy = sys.argv[1]
kfit.fit(model, x, y, batch_size=16, epochs=2, callbacks=[waits, backup], strategy=strategy)
"""
LAUNCHES = f"""
import kfit

def train(strategy):
    import sys
    sys.argv[1:] = [strategy]
    exec({SCRIPT!r}, {{}})

if __name__ == "__main__":
    kfit.launch(train, args=("multi_worker",), workers=2)
"""


class Seen:
    """A command that runs in a terminal, and what the terminal shows meanwhile."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.screen = pyte.Screen(COLUMNS, 40)
        self.states: list[list[str]] = []
        self._stream = pyte.ByteStream(self.screen)
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm", COLUMNS="", LINES="")
            os.environ.pop("NO_COLOR", None)
            os.execv(command[0], command)
        self.pid = pid
        size = struct.pack("HHHH", 40, COLUMNS, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def until(self, is_there: Callable[[list[str]], bool] | None = None) -> None:
        """Reads until the screen shows something, or to the end."""
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    chunk = os.read(self.terminal, 65536)
                except OSError:
                    return
                if not chunk:
                    return
                self._stream.feed(chunk)
                self.states.append(self.lines)
            if is_there is not None and is_there(self.lines):
                return
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("\n".join(self.lines))

    def end(self) -> int:
        self.until()
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def kfit_run(*arguments: object) -> list[str]:
    # A busy machine may need long for the last step and its snapshot.
    return [sys.executable, "-m", "kfit", "run", "--grace", "240", *map(str, arguments)]


def test_one_live_bar_of_the_cluster_and_ctrl_c(script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = ("--workers", 2, "--log-dir", logs, "--log-format", "json")
    seen = Seen(kfit_run(*options, script, "multi_worker"), tmp_path)
    seen.until(lambda lines: any("saved step 7" in line for line in lines))
    os.write(seen.terminal, b"\x03")
    assert seen.end() == 130
    assert any("worker 0 is starting (" in line for lines in seen.states for line in lines)
    for lines in seen.states:
        bars = [line for line in lines if re.match(r"\s*\d+/40", line)]
        assert len(bars) <= 1, lines
        assert not any("[worker" in line[1:] for line in lines), lines
    moving = {line for lines in seen.states for line in lines if re.match(r"\s*\d+/40 ━", line)}
    assert len(moving) > 3
    assert any("examples/s" in line for line in moving)
    assert seen.lines[0] == "kfit: starting 2 workers on this host"
    assert seen.lines[1].startswith("kfit: the whole output of each task goes to /")
    assert not any("Traceback" in line for line in seen.lines)
    ends = (
        r"kfit: stopped by SIGINT after step (\d+); saved in backup; the same command resumes there"
    )
    found = re.fullmatch(ends, seen.lines[-1])
    assert found, seen.lines
    assert '"stream": "stdout"' in (logs / "worker-0.jsonl").read_text()
    assert "cudart_stub" in (logs / "worker-1.jsonl").read_text()


@pytest.mark.long
def test_one_live_bar_of_what_a_program_launches(tmp_path: Path) -> None:
    path = tmp_path / "launches.py"
    path.write_text(LAUNCHES)
    seen = Seen([sys.executable, str(path)], tmp_path)
    assert seen.end() == 0
    for lines in seen.states:
        bars = [line for line in lines if re.match(r"\s*\d+/40 ━", line)]
        assert len([bar for bar in bars if not bar.startswith("40/40")]) <= 1, lines
    moving = {line for lines in seen.states for line in lines if re.match(r"\s*\d+/40 ━", line)}
    assert len(moving) > 5
    assert seen.lines[0] == "kfit: starting 2 workers on this host"
    bars = [line for line in seen.lines if "40/40" in line]
    assert len(bars) == 2
    assert all("examples/s" in line for line in bars)


@pytest.mark.long
def test_without_a_terminal_each_epoch_is_one_line(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        kfit_run("--workers", 2, script, "multi_worker"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert len(re.findall(r"\[worker 0\] 40/40 - .* examples/s\n", done.stdout)) == 2


@pytest.mark.long
def test_a_single_task_keeps_the_terminal(script: Path, tmp_path: Path) -> None:
    seen = Seen(kfit_run(script, "one_device"), tmp_path)
    seen.until(lambda lines: any("saved step 7" in line for line in lines))
    os.write(seen.terminal, b"\x03")
    assert seen.end() == 130
    shown = "\n".join(seen.lines)
    assert "cudart" not in shown
    assert "Traceback" not in shown
    assert "kfit: stopped by SIGINT after step" in shown


@pytest.mark.parametrize(
    ("options", "sign"),
    [
        ([], "kfit: starting quick.py"),
        pytest.param(
            ["--workers", 2], "kfit: starting 2 workers on this host", marks=pytest.mark.long
        ),
    ],
)
def test_a_sign_of_life_comes_within_half_a_second(
    options: list[object], sign: str, tmp_path: Path
) -> None:
    """One of some runs must be quick: where Python itself starts slowly, the computer is busy."""
    (tmp_path / "quick.py").write_text("")
    late = []
    while len(late) < 10:
        began = time.monotonic()
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        bare = time.monotonic() - began
        began = time.monotonic()
        seen = Seen(kfit_run("--no-join", *options, "quick.py"), tmp_path)
        seen.until(lambda lines: bool(lines))
        seconds = time.monotonic() - began
        assert seen.lines[0] == sign
        assert seen.end() == 0
        if seconds < max(SIGN_OF_LIFE, 10 * bare):
            return
        late.append((seconds, bare))
    raise AssertionError(late)


@pytest.mark.long
def test_ctrl_c_without_kfit_run(script: Path, tmp_path: Path) -> None:
    seen = Seen([sys.executable, str(script), "one_device"], tmp_path)
    seen.until(lambda lines: any("saved step 7" in line for line in lines))
    os.write(seen.terminal, b"\x03")
    assert seen.end() == -signal.SIGINT
    assert not any("Traceback" in line for line in seen.lines)
    assert seen.lines[-1].startswith("kfit: stopped by SIGINT after step ")
    assert seen.lines[-1].endswith("; saved in backup; the same command resumes there")


@pytest.mark.long
def test_an_argument_that_kfit_refuses(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(SCRIPT.replace("batch_size=16", "batch_size=-1"))
    done = subprocess.run(
        kfit_run("--workers", 2, path, "multi_worker"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 1
    assert "kfit/" not in done.stderr.replace(str(tmp_path), "")
    assert done.stderr.count("Traceback") <= 2  # one a worker
    assert "kfit.fit(model" in done.stderr
    assert "`batch_size`" in done.stderr.splitlines()[-1]
