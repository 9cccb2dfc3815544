"""What a task finds out about itself when it does not get on."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kfit.heartbeat import Phase
from kfit.heartbeat.phases import hook
from kfit.heartbeat.sampler import Sampler, place_of_hook, sample_of

INTERVAL = 0.01


class Task:
    """A task that does not get on, in a thread of this process."""

    def __init__(self, phase: int) -> None:
        self.thread = threading.get_ident()
        self.phase = phase
        self.time = time.monotonic_ns()
        self.notes: list[tuple[str, bool, float]] = []
        self.moves = 0

    def stall(self) -> tuple[int, int, int]:
        return time.monotonic_ns(), self.phase, self.time

    def note_place(self, began: int, place: str, in_user_code: bool, busy: float) -> None:
        assert began == self.time
        self.notes.append((place, in_user_code, busy))

    def moved(self) -> int:
        self.moves += 1
        self.time = time.monotonic_ns()
        return self.time


def look(sampler: Sampler) -> None:
    time.sleep(2 * INTERVAL)
    thread = threading.Thread(target=sampler.look)
    thread.start()
    thread.join()


def test_a_task_that_gets_on_is_left_alone() -> None:
    task = Task(Phase.STEP)
    Sampler(task, 10.0).look()
    assert task.notes == []


def test_a_folder_that_was_removed_hides_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    task = Task(Phase.READING_STEP)
    try:
        look(Sampler(task, INTERVAL))
    finally:
        os.chdir("/")
    ((place, _, _),) = task.notes
    assert "/test_sampler.py:" in place


def test_the_line_of_the_users_is_found() -> None:
    task = Task(Phase.READING_STEP)
    look(Sampler(task, INTERVAL))
    ((place, in_user_code, _),) = task.notes
    assert in_user_code
    # This file is the user's; `time.sleep` has no frame of its own.
    assert place.rpartition(":")[0].endswith("tests/heartbeat/test_sampler.py")


def called_from(module: str, function: Callable[[], Any]) -> Any:
    """Calls a function from code of another module."""
    scope: dict[str, Any] = {"__name__": module, "function": function}
    exec("def call():\n    return function()", scope)
    return scope["call"]()


def test_code_of_libraries_is_not_the_users() -> None:
    for module in ("kfit.distribute.ring", "tensorflow.python.eager.execute", "keras.src.layers"):
        sample = called_from(module, lambda: sample_of(sys._getframe().f_back, {}))
        assert sample == ("", False)


# Looks while threads begin and end, and while there is garbage whose finalizer lets others run.
LOOKS = """
import gc, mmap, threading, time
from kfit.heartbeat.sampler import frames_of_threads

class Knot:
    def __init__(self):
        self.map = mmap.mmap(-1, 4096)
        self.own = self

def start_threads(depth):
    if depth:
        return start_threads(depth - 1)
    while time.monotonic() < end:
        threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

gc.set_threshold(1)
end = time.monotonic() + 3
others = [threading.Thread(target=start_threads, args=(10,)) for _ in range(3)]
for thread in others:
    thread.start()
while time.monotonic() < end:
    Knot()
    assert threading.get_ident() in frames_of_threads()
assert gc.isenabled()
gc.disable()
frames_of_threads()
assert not gc.isenabled()
"""


@pytest.mark.long
def test_looks_and_finalizers_do_not_wait_for_each_other() -> None:
    # Without care this stands still within a second in Python 3.11.0 to 3.11.8.
    subprocess.run([sys.executable, "-c", LOOKS], check=True, timeout=120)


class Frame:
    """A frame of a made-up stack."""

    def __init__(self, module: str, path: str, outer: Any) -> None:
        self.f_globals = {"__name__": module}
        self.f_code = SimpleNamespace(co_filename=path)
        self.f_lineno = 3
        self.f_back = outer


def test_code_of_the_users_in_a_graph_is_found_among_the_threads() -> None:
    main: Any = Frame("kfit.steps.dynamic_shapes", "/kfit/steps.py", None)
    # Threads of TensorFlow begin with that module; those that Python starts do not.
    outermost = Frame("tensorflow.python.ops.script_ops", "/site-packages/script_ops.py", None)

    def found(module: str, path: str, outer: Any = outermost) -> Any:
        thread: Any = Frame(module, path, outer)
        return sample_of(main, {1: thread})

    assert found("layers", str(Path("layers.py").absolute())) == ("layers.py:3", True)
    # The user's data is waited for, which other processes make.
    assert found("kfit.inputs.python", "/kfit/inputs/python.py") == ("", True)
    # The exchange with the peers is none of the user's code, nor is a thread of the user's own.
    assert found("kfit.distribute.ring", "/kfit/distribute/ring.py") == ("", False)
    assert found("layers", "/home/layers.py", None) == ("", False)


def test_in_a_hook_it_is_the_users_line_though_a_library_is_at_work() -> None:
    def place() -> Any:
        return place_of_hook(sys._getframe())

    assert "test_sampler.py:" in called_from("keras.src.saving", place)
    # A hook of Keras' own: not the line of the program that has called `fit`.
    fit: Any = Frame("kfit.training.loops", "/kfit/loops.py", sys._getframe())
    checkpoint: Any = Frame("keras.src.callbacks.x", "/site-packages/keras/callbacks/x.py", fit)
    assert place_of_hook(checkpoint) == "keras/callbacks/x.py:3"


@pytest.mark.parametrize("phase", [Phase.TRACING, Phase.SAVING, Phase.RESTORING])
def test_a_trace_that_goes_on_is_progress_and_a_loop_is_none(phase: Phase) -> None:
    task = Task(phase)
    sampler = Sampler(task, INTERVAL)
    for _ in range(10):
        look(sampler)
    assert task.moves <= 4  # in `threading`, where the test waits, there are a few places
    seen = task.moves
    look(sampler)
    assert task.moves == seen + 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_bytes_that_are_moved_are_progress_while_training_is_saved_or_restored(
    tmp_path: Path,
) -> None:
    for phase, moves in ((Phase.SAVING, 1), (Phase.RESTORING, 1), (hook("on_epoch_end"), 0)):
        task = Task(phase)
        sampler = Sampler(task, INTERVAL)
        seen = -1
        for step in range(21):  # until all places are known where the test waits
            if step == 20:
                seen = task.moves
                (tmp_path / "snapshot").write_bytes(bytes(1 << 20))
            look(sampler)
        assert task.moves == seen + moves


def test_how_much_is_computed_is_told() -> None:
    task = Task(Phase.STEP)
    sampler = Sampler(task, INTERVAL)
    look(sampler)
    time.sleep(0.5)
    sampler.look()
    waiting = task.notes[-1][2]
    assert waiting < 0.3
    begin, end = time.monotonic(), time.process_time() + 0.5
    while time.process_time() < end:
        pass
    sampler.look()
    # As much as this machine has let it, whatever else it does.
    whole = 0.5 / (time.monotonic() - begin + 0.6)
    assert task.notes[-1][2] == pytest.approx(max(whole, waiting), rel=0.5)
