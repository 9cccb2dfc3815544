"""Runs of `programs/everything.py` whose processes fail at fault sites (`kfit/fault_sites.py`).

What the program writes, and what such a run may leave, is checked as the soak test does it.
"""

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kfit.fault_sites import MARKS, VARIABLE, Site
from tests.runs import PROGRAM, kfit_run, start
from tests.soak.end_checks import check_bits, check_files, check_lock
from tests.soak.life_checks import check_leftovers
from tests.soak.processes import MARK, processes_of, tasks_of
from tests.soak.records import Life
from tests.soak.said import Attempt, attempts

EPOCHS, SAVE_FREQ = 3, 5
"""How the program trains: 10 steps an epoch, and a snapshot after each 5 of them."""

DEADLINE = 240.0
LOOK_EVERY = 0.2


@dataclass
class ArmedRun:
    """A process that trains, or that supervises tasks that do, and what is known of it.

    Attributes:
        folder: The folder of the training, with its files in `run/`, its marks in `marks/`.
        process: The process.
        life: What the soak test's checks need to know of it.
        output: The file to which everything is printed.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    life: Life
    output: Path

    def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until something is so, and notes the ports and folders of the tasks meanwhile."""
        deadline = time.monotonic() + DEADLINE
        while not is_so():
            for task in tasks_of(self.life.mark):
                self.life.ports |= task.ports
                self.life.folders.add(os.path.dirname(task.heartbeat))
            assert time.monotonic() < deadline, self.text[-20000:]
            time.sleep(LOOK_EVERY)

    def pid_at(self, site: Site, task: int = 0) -> int:
        """Waits until a task has come to a fault site; returns the id of its process."""
        mark = mark_of(self.folder, site, task)
        self.until(lambda: (mark.exists() and bool(mark.read_text())) or not self.is_running)
        assert mark.exists(), self.text[-20000:]
        return int(mark.read_text())

    def end(self) -> int:
        """Waits until the process has ended; returns its exit code."""
        self.until(lambda: not self.is_running)
        self.life.code, self.life.text = self.process.wait(), self.text
        return self.life.code

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def attempts(self) -> list[Attempt]:
        return attempts(self.text)


@dataclass(frozen=True)
class Untouched:
    """What a training without faults has printed, and the folder to which it has written."""

    text: str
    files: Path


def mark_of(folder: Path, site: Site, task: int = 0) -> Path:
    """The mark that a task of a training makes when it has come to a fault site."""
    return folder / "marks" / f"{site.value}-{task}"


@contextlib.contextmanager
def armed(
    folder: Path,
    faults: str = "",
    *options: str,
    run: Sequence[str] = ("--workers", "2", "--max-restarts", "9", "--grace", "30"),
    command: Sequence[str] = (),
    strategy: str = "multi_worker",
    **variables: str,
) -> Iterator[ArmedRun]:
    """Starts a training in a folder, and ends it with all its processes.

    Args:
        folder: The folder; a training that was begun there goes on.
        faults: The faults, as in KFIT_FAULT.
        *options: Further options of the program.
        run: The options of `kfit run`.
        command: The start of the command, such as that of Python, in the place of `kfit run`.
        strategy: The strategy of the program.
        **variables: Further environment variables.
    """
    files = folder / "run"
    own = ["--epochs", str(EPOCHS), "--save-freq", str(SAVE_FREQ), "--step-seconds", "1e-6"]
    words = kfit_run(strategy, files, *own, *options, run=run)
    if command:
        words = [*command, *words[words.index(str(PROGRAM)) :]]
    for name in ("marks", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if faults:
        variables |= {VARIABLE: faults, MARKS: str(folder / "marks")}
    life = Life(0, uuid.uuid4().hex, time.monotonic())
    output = folder / f"output-{life.mark[:8]}"
    variables |= {MARK: life.mark, "TMPDIR": str(folder / "tmp")}
    process = start(words, files, output, **variables)
    try:
        yield ArmedRun(folder, process, life, output)
    finally:
        process.kill()
        process.wait()
        for left, _ in list(processes_of(life.mark)):
            with contextlib.suppress(OSError):
                os.kill(left.pid, 9)


def untouched(folder: Path) -> Untouched:
    """Trains on two workers without faults."""
    with armed(folder) as run:
        assert run.end() == 0, run.text[-20000:]
        assert len(run.attempts) == 1
        return Untouched(run.text, folder / "run")


def check_success(run: ArmedRun, expected: Untouched) -> None:
    """Checks that a training has ended with the bits of one without faults, and leaves nothing."""
    assert run.end() == 0, run.text[-20000:]
    files = run.folder / "run"
    found = check_bits(run.text, files, expected.text, expected.files)
    found += check_files(files, run.folder / "tmp") + check_lock(files)
    found += check_leftovers(run.life)
    assert found == [], f"{found}\n{run.text[-20000:]}"
