"""Snapshots of a training that is over go with the program, unless it has more to do."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfit.checkpoint import Store, at_exit
from kfit.checkpoint.lock import DirectoryLock
from kfit.heartbeat import Heartbeat, HeartbeatReader
from kfit.heartbeat.unconfirmed_ends import ends_path

PROGRAM = """
import atexit, multiprocessing, os, signal, sys

def exchange():
    # Runs after kfit's own function, which was registered later.
    for way in sys.argv[1:]:
        if way.startswith("exchanged:"):
            backup = way.partition(":")[2]
            for number, name in enumerate(os.listdir(backup)):
                if name.startswith("g0"):
                    os.rename(os.path.join(backup, name), "aside" + str(number))
                    os.symlink(os.path.abspath("mine"), os.path.join(backup, name))

atexit.register(exchange)
import keras, kfit
import numpy as np
sys.path.insert(0, {tests!r})
from test_around_fit import arrays, made

class Counts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("STEP", flush=True)

class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        os.kill(os.getpid(), signal.SIGTERM)

def train(way):
    model = made()
    x, y = arrays()
    backup = kfit.callbacks.BackupAndRestore(way.partition(":")[2])
    also = [kfit.callbacks.TimeLimit(1e-6)] if way.startswith("limit:") else []
    also += [Stops()] if way.startswith("term:") else []
    callbacks = [backup, Counts(), *also]
    kfit.fit(model, x, y, epochs=1, verbose=0, callbacks=callbacks, strategy="one_device")
    assert os.listdir(backup.backup_dir)
    if way.startswith("bad-child:"):
        sys.exit(3)
    return backup

def trained_in_children(kind, way, trials):
    for _ in range(trials):
        child = multiprocessing.get_context(kind).Process(target=train, args=(way,))
        child.start()
        child.join()

for way in sys.argv[1:] if __name__ == "__main__" else []:
    if way.startswith("unknown:"):
        kfit.checkpoint.at_exit._HAS_STATUS = False
    if "child:" in way:
        trained_in_children("fork", way, 2)
        continue
    if way.startswith("spawned:"):
        trained_in_children("spawn", way, 1)
        continue
    backup = train(way)
    if way.startswith("fork:"):
        if (child := os.fork()) == 0:
            sys.exit()
        os.waitpid(child, 0)
        assert os.listdir(backup.backup_dir)
    if way.startswith("used:"):
        kfit.checkpoint.lock.DirectoryLock(backup.backup_dir, {{}}).release()
for way in sys.argv[1:] if __name__ == "__main__" else []:
    if way.startswith("raise:"):
        raise ValueError(way)
    if way.startswith("exit:"):
        raise SystemExit("the evaluation has failed")
"""


def run(tmp_path: Path, *ways: str, **environ: str) -> int:
    """Runs a program of one `fit` a way to end; returns the number of steps that it took."""
    text = PROGRAM.format(tests=str(Path(__file__).parents[1] / "callbacks"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KFIT_")}
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py", *ways],
        cwd=tmp_path,
        env={**clean, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1, 143), done.stderr
    assert "test_around_fit.py" not in done.stderr
    return done.stdout.count("STEP\n")


@pytest.mark.long
def test_snapshots_go_when_the_process_ends_by_itself(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("mine")
    assert run(tmp_path, "end:gone", "end:mine", "fork:forked", "used:used") == 4
    assert sorted(os.listdir(tmp_path)) == ["mine", "program.py", "used"]
    assert os.listdir(tmp_path / "mine") == ["thesis"]
    assert run(tmp_path, "raise:backup") == 1
    assert os.listdir(tmp_path / "backup")


def test_a_thread_that_waits_for_a_line_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The thread is in a function of the C library, as in `input` at a terminal."""
    program = """
import ctypes, sys, threading, time
from kfit.checkpoint import at_exit
from kfit.checkpoint.lock import DirectoryLock

libc = ctypes.CDLL(None)
threading.Thread(target=libc.getchar, daemon=True).start()
time.sleep(1)
lock = DirectoryLock(sys.argv[1])
at_exit.finish(sys.argv[1], lock.lock_count)
lock.release()
libc.printf(b"buffered")
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KFIT_")}
    backup = tmp_path / "backup"
    backup.mkdir()
    run = [sys.executable, "-c", program, str(backup)]
    pipe = subprocess.PIPE
    with subprocess.Popen(run, stdin=pipe, stdout=pipe, env=clean) as process:
        try:
            assert process.wait(120) == 0
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == b"buffered"
    assert not backup.exists()


@pytest.mark.long
def test_a_folder_that_is_exchanged_for_a_link_at_the_end_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("manifest.json", "state.json", "arrays.h5"):
        (tmp_path / "mine" / name).write_text("mine")
    assert run(tmp_path, "exchanged:backup") == 1
    assert sorted(os.listdir(tmp_path / "mine")) == ["arrays.h5", "manifest.json", "state.json"]
    assert all(not os.listdir(each) for each in tmp_path.glob("aside*"))


@pytest.mark.long
@pytest.mark.parametrize(
    "way", ["term", *(pytest.param(way, marks=pytest.mark.long) for way in ("exit", "limit"))]
)
def test_none_goes_while_the_program_has_more_to_do(tmp_path: Path, way: str) -> None:
    """Each fold has a directory of its own; what has ended the last one is not an error."""
    steps = run(tmp_path, "end:first", f"{way}:second")
    assert steps == 2
    assert Store(str(tmp_path / "first")).names()
    assert Store(str(tmp_path / "second")).names()
    if way == "exit":
        assert run(tmp_path, "end:first", "end:second") == 0
        assert os.listdir(tmp_path) == ["program.py"]


@pytest.mark.long
def test_they_stay_where_no_status_is_known(tmp_path: Path) -> None:
    """Not every C library tells it; what is kept without need can be deleted by hand."""
    assert run(tmp_path, "unknown:backup") == 1
    assert Store(str(tmp_path / "backup")).names()
    assert run(tmp_path, "end:backup") == 0
    assert os.listdir(tmp_path) == ["program.py"]


@pytest.mark.long
def test_in_a_process_of_multiprocessing_they_go_with_its_function(tmp_path: Path) -> None:
    assert run(tmp_path, "child:a", "spawned:b", "bad-child:c") == 4
    assert sorted(os.listdir(tmp_path)) == ["c", "program.py"]


@pytest.mark.long
def test_under_a_supervisor_they_go_when_the_next_run_begins(tmp_path: Path) -> None:
    """Another task may fail after this one has ended, and all are started again."""

    def steps(way: str, name: str, start: int) -> int:
        return run(tmp_path, f"{way}:backup", KFIT_RUN=name, KFIT_GENERATION=str(start))

    assert steps("end", "a", 0) == 1
    assert steps("exit", "a", 1) == 0
    assert steps("end", "b", 0) == 0
    assert steps("end", "c", 0) == 1
    assert run(tmp_path, "end:backup") == 1


def test_an_end_of_which_the_supervisor_cannot_be_told_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/dev/shm` may be full, and another worker may still fail."""
    heartbeat, backup = str(tmp_path / "task"), tmp_path / "backup"
    monkeypatch.setenv("KFIT_RUN", "a")
    with contextlib.closing(HeartbeatReader(heartbeat)):
        own = Heartbeat(heartbeat)
        monkeypatch.setattr(at_exit.Heartbeat, "of_environment", lambda: own)
        os.symlink("/dev/full", ends_path(heartbeat))
        backup.mkdir()
        assert at_exit._at_exit_of(DirectoryLock(str(backup))) == []
    assert (
        f"the training in {backup} has ended (No space left on device)" in capsys.readouterr().err
    )
    monkeypatch.setenv("KFIT_RUN", "b")
    assert not at_exit.has_ended(str(backup), DirectoryLock(str(backup)))
