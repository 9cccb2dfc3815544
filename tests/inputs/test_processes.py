"""Batches that are made in other processes."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from tests.sweeps import only

PROGRAM = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, kfit
import numpy as np

print("begins")
SCALE = 3.0

def made():
    class Rows(keras.utils.PyDataset):  # no other process can import it
        def __len__(self):
            return 3

        def __getitem__(self, index):
            x = np.random.normal(size=(4, 2)) if self.draws else np.full((4, 2), index)
            return x * SCALE, np.ones((4, 1))

        draws = False

        def on_epoch_end(self):
            self.draws = not self.draws

    return Rows

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
weights = model.get_weights()
losses = []
for workers in map(int, sys.argv[1:]):
    model.set_weights(weights)
    rows = made()(workers=workers, use_multiprocessing=True)
    trainer = kfit.Trainer(model, "one_device", seed=5)
    history = trainer.fit(rows, epochs=3, shuffle=False, verbose=0)
    losses.append(history.history["loss"])
assert losses[0] == losses[-1], losses
print("ends")
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "1 2"])
def test_a_program_that_is_not_guarded(tmp_path: Any, workers: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # What a stranger may have put into the folder in which the program is started.
    folder = tmp_path / "current"
    folder.mkdir()
    for module in ("pickle", "struct", "multiprocessing", "socket"):
        (folder / f"{module}.py").write_text("open('it_was_run', 'w')")
    command = [sys.executable, str(program), *workers.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=folder
    )
    assert done.stdout.split() == ["begins", "ends"], done.stderr[-3000:]
    if sys.version_info >= (3, 11):
        assert not (folder / "it_was_run").exists()


class Locked(keras.utils.PyDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.ones((4, 2)), np.ones((4, 1))


def test_what_cannot_travel_is_refused_and_what_needs_no_process_is_not() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = kfit.Trainer(model, "one_device")
    with pytest.raises(ValueError, match="`x`, a Locked with use_multiprocessing=True, cannot be"):
        trainer.fit(Locked(workers=2, use_multiprocessing=True), shuffle=False, verbose=0)
    trainer.fit(Locked(workers=0, use_multiprocessing=True), shuffle=False, verbose=0)


STOPPED = """
import multiprocessing, os, signal, sys, threading, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
signum = int(sys.argv[1])
import keras, kfit
import numpy as np

class Slow(keras.utils.PyDataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if signum == signal.SIGKILL and index == 7:
            time.sleep(1000)
        time.sleep(0.05)
        return np.ones((4, 2)), np.ones((4, 1))

def send_at_the_start():
    while len(started := multiprocessing.active_children()) < 2:
        time.sleep(0.01)
    print(*[process.pid for process in started], flush=True)
    for process in started * (signum != signal.SIGKILL):
        os.kill(process.pid, signum)

class Sends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            os.kill(os.getpid(), signum) if signum == signal.SIGKILL else os.killpg(0, signum)

threading.Thread(target=send_at_the_start, daemon=True).start()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [Sends(), kfit.callbacks.BackupAndRestore("backup", save_freq=10000)]
rows = Slow(workers=2, use_multiprocessing=True)
kfit.Trainer(model, "one_device").fit(rows, shuffle=False, verbose=0, callbacks=callbacks)
"""


def run(program: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # ignored under nohup
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.parametrize(
    ("signum", "code"),
    only(
        [(signal.SIGINT, 130)],
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138), (signal.SIGHUP, 129)],
    ),
)
def test_processes_outlive_the_signals_that_stop_a_fit(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    done = run(STOPPED, tmp_path, str(int(signum)))
    assert abs(done.returncode) in (code, int(signum)), done.stderr[-3000:]
    said = [line for line in done.stderr.splitlines() if line and line[0] not in "WI"]
    assert len(said) == 2, done.stderr[-3000:]
    assert f"kfit: {signum.name}: stopping after the steps that run now" in said[0]
    assert f"kfit: stopped by {signum.name} after step 5; saved in backup" in said[1]


def test_processes_end_if_their_parent_is_killed(tmp_path: Path) -> None:
    done = run(STOPPED, tmp_path, str(int(signal.SIGKILL)))
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    processes = {int(word) for word in done.stdout.split()}
    assert len(processes) == 2
    deadline = time.monotonic() + 30
    while remaining := {process for process in processes if lives(process)}:
        assert time.monotonic() < deadline, remaining
        time.sleep(0.1)


def lives(process: int) -> bool:
    """Returns whether a process exists and is no zombie, which a container may never reap."""
    command = ["ps", "-o", "stat=", "-p", str(process)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")


FAILING = """
import os, signal, sys, threading, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, kfit
import numpy as np
from kfit.inputs.processes import Processes

class OwnError(Exception):
    pass

class TwoArgumentsError(Exception):
    def __init__(self, number, reason):
        super().__init__(f"number {number}: {reason}")

def raised(error):
    raise error

def local():
    class LocalError(Exception):
        pass
    raise LocalError("of a function")

def dies_while_it_sends():
    main = threading.get_ident()

    def kill():
        while True:
            time.sleep(0.001)
            frame = sys._current_frames()[main]
            if frame.f_code.co_name == "_send" and len(frame.f_locals["buf"]) > 10**6:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()
    return np.ones(30_000_000)

ACTIONS = [
    lambda: raised(KeyError("a column")),
    lambda: raised(OwnError("own")),
    lambda: raised(TwoArgumentsError(3, "too many")),
    local,
    lambda: sys.exit(2),
    lambda: threading.Lock(),
    lambda: (np.ones((4, 2)), np.ones((4, 1))),
    lambda: os._exit(3),
    lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda: os.kill(os.getpid(), signal.SIGSEGV),
    dies_while_it_sends,
]

class Foo(keras.utils.PyDataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return ACTIONS[index]()

class Ending(Foo):
    def __getitem__(self, index):
        return ACTIONS[7 if index == 5 else 6]()

pool = Processes(4)  # of which three die below, before the last one
for index in range(len(ACTIONS)):
    try:
        print(len(next(pool.batches(Foo(), iter([index]), 1, (0,)))))
    except Exception as error:
        own = isinstance(error, OwnError)
        cause = "Traceback" in str(error.__cause__)
        print(type(error).__name__, "own" if own else "", "cause" if cause else "", error)
pool.end()

rows = Ending(workers=2, use_multiprocessing=True)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    kfit.Trainer(model, "one_device").fit(rows, shuffle=False, verbose=0)
except RuntimeError as error:
    print("fit:", error)
"""


def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path) -> None:
    done = run(FAILING, tmp_path)
    lines = done.stdout.splitlines()
    foo = r"`x`, a Foo with use_multiprocessing=True: "
    raised = rf"RuntimeError  cause {foo}`__getitem__` raised an error in another process when it "
    died = rf"RuntimeError   {foo}a process that makes its batches has died while it made batch "
    expected = [
        r"KeyError  cause 'a column'$",
        r"OwnError own cause own$",
        raised + r"made batch 2: TwoArgumentsError: number 3: too many$",
        raised + r"made batch 3: .*LocalError: of a function$",
        raised + r"made batch 4: SystemExit: 2$",
        rf"RuntimeError  cause {foo}batch 5, .* cannot be sent to this one: .*cannot pickle",
        r"2$",
        died
        + r"7\. It has ended with exit code 3, as `os\._exit\(3\)`.* use_multiprocessing=False",
        died + r"8\. SIGKILL ended it: it was killed, perhaps since the memory .*fewer `workers`",
        died + r"9\. SIGSEGV ended it, as after a crash in native code",
        died + r"10\. SIGKILL ended it",
        rf"fit: {foo.replace('Foo', 'Ending')}a process .* has died while it made batch 5\. ",
    ]
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(lines) == len(expected), lines
    for line, pattern in zip(lines, expected, strict=True):
        assert re.match(pattern, line), (pattern, line)
