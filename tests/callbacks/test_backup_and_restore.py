"""Training that was cut off goes on at the very step, and ends with the very same bits."""

import contextlib
import datetime as dt
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.callbacks import backup_and_restore as module
from kfit.checkpoint import (
    DirectoryInUseError,
    NoGoodSnapshotError,
    SnapshotMismatchError,
    Store,
    at_exit,
    fits,
)
from kfit.checkpoint.files import Files
from kfit.checkpoint.lock import DirectoryLock
from kfit.checkpoint.state import entries
from kfit.checkpoint.store import SnapshotName
from tests.mounts import why_not, with_disk
from tests.sweeps import only, sweep

FULL_DISK = Path(__file__).parent / "programs" / "full_disk.py"
_NOBODY = 65534


def steps_in(folder: Any) -> list[int]:
    return [name.step for name in Store(str(folder)).names()]


@pytest.fixture(scope="module", params=sweep([2, 1]), ids=["two_replicas", "one_replica"])
def machine(request: Any, tiny: Any, training: Any) -> Any:
    x, y = training.data(30)
    return training.Machine(tiny.strategy(request.param), validation_data=(x, y))


@pytest.fixture(scope="module")
def alone(tiny: Any, training: Any) -> Any:
    """One replica, for what does not depend on their number."""
    x, y = training.data(30)
    return training.Machine(tiny.strategy(1), validation_data=(x, y))


@pytest.fixture(scope="module")
def plain(tiny: Any, training: Any) -> Any:
    """One replica, without validation."""
    return training.Machine(tiny.strategy(1))


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param(lambda total: (13,), id="one"),
        pytest.param(lambda total: range(1, total), id="each", marks=pytest.mark.long),
    ],
)
def test_it_ends_with_the_same_bits_wherever_it_is_cut(
    machine: Any, training: Any, tmp_path: Any, cuts: Any
) -> None:
    machine.run(training.with_memory(tmp_path))
    expected = machine.digest
    rows = (tmp_path / "log.csv").read_text()
    best = (tmp_path / "best.weights.h5").read_bytes()
    total = int(machine.model.optimizer.iterations)
    for cut in cuts(total):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        backup = BackupAndRestore(folder / "backup", save_freq=5)
        machine.cut_at(cut, [*training.with_memory(folder), backup])
        assert steps_in(folder / "backup")[-1:] == [(cut - 1) // 5 * 5][: cut > 5]
        machine.run([*training.with_memory(folder), backup])
        assert machine.digest == expected, f"cut at step {cut}"
        assert (folder / "log.csv").read_text() == rows
        assert (folder / "best.weights.h5").read_bytes() == best
        assert steps_in(folder / "backup")[-1] == total


@pytest.mark.long
def test_cut_off_again_and_again(machine: Any, training: Any, tmp_path: Any) -> None:
    machine.run(training.with_memory(tmp_path))
    expected = machine.digest
    backup = BackupAndRestore(tmp_path / "backup", save_freq=2)
    draw = random.Random(4)
    for _ in range(5):
        machine.cut_at(draw.randint(3, 6), [*training.with_memory(tmp_path), backup])
    machine.run([*training.with_memory(tmp_path), backup])
    assert machine.digest == expected


@pytest.mark.long
def test_a_clock_that_is_set_changes_nothing(
    machine: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_by, now = itertools.cycle([0.0, 86_400.0, -86_400.0]), time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(set_by))
    backup = BackupAndRestore(tmp_path / "backup", save_freq=2)
    for cut in (5, 4, 6):
        machine.cut_at(cut, [backup])
    machine.run([backup])
    assert 0.0 < machine.trainer.report().goodput <= 1.0
    assert machine.digest == machine.untouched


class Sequence(keras.utils.PyDataset):
    """The data of the tests, by index."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        rows = slice(8 * index, 8 * index + 8)
        return self.x[rows], self.y[rows]


def _pipeline(x: Any, y: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50)


KINDS = {
    "data_set": lambda x, y: {"x": _pipeline(x, y).batch(8)},
    "of_unknown_length": lambda x, y: {"x": _pipeline(x, y).filter(lambda x, y: True).batch(8)},
    "endless": lambda x, y: {"x": _pipeline(x, y).repeat().batch(8), "steps_per_epoch": 7},
    "short_epochs": lambda x, y: {"x": _pipeline(x, y).batch(8), "steps_per_epoch": 3},
    "py_dataset": lambda x, y: {"x": Sequence(x, y), "shuffle": True},
    "generator": lambda x, y: {
        "x": ((x[i : i + 8], y[i : i + 8]) for i in itertools.cycle(range(0, 40, 8))),
        "steps_per_epoch": 6,
    },
    "shuffled_batches": lambda x, y: {"x": x, "y": y, "batch_size": 8, "shuffle": "batch"},
}


@pytest.mark.long  # `inputs/test_going_on.py` cuts off some kinds of data every day
@pytest.mark.parametrize("cut", [2, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_goes_on(
    tiny: Any, training: Any, tmp_path: Any, kind: str, cut: int
) -> None:
    x, y = training.data()

    def made() -> Any:
        validation = _pipeline(x, y).repeat().batch(10)
        return {**KINDS[kind](x, y), "validation_data": validation, "validation_steps": 2}

    machine = training.Machine(tiny.strategy(1), made, epochs=3)
    expected = machine.untouched
    backup = BackupAndRestore(tmp_path, save_freq=1)
    machine.cut_at(cut, [backup])
    machine.run([backup])
    assert machine.digest == expected


@pytest.mark.long
def test_at_the_end_of_epochs(machine: Any, training: Any, tmp_path: Any) -> None:
    backup = BackupAndRestore(tmp_path / "backup")
    machine.cut_at(12, [backup])
    assert steps_in(tmp_path / "backup") == [7]
    machine.run([backup])
    assert machine.digest == machine.untouched


@pytest.mark.parametrize(
    ("where", "signum"),
    only(
        [("batch", signal.SIGTERM)],
        [
            ("validation", signal.SIGTERM),
            ("batch", signal.SIGTERM),
            ("epoch_end", signal.SIGTERM),
            ("batch", signal.SIGUSR1),
            ("batch", signal.SIGINT),
            ("batch", signal.SIGHUP),
        ],
    ),
)
def test_a_signal_loses_no_step(
    machine: Any, tmp_path: Any, capfd: Any, where: str, signum: int
) -> None:
    backup = BackupAndRestore(tmp_path / "backup")
    sender = Sender(where, signum)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as raised, heard(signum):
        machine.run([sender, backup])
    if signum == signal.SIGINT:
        assert raised.type is KeyboardInterrupt
    else:
        assert raised.value.code == 128 + signum
    assert steps_in(tmp_path / "backup")[-1] == sender.sent_at
    assert "stopping after the steps that run now" in capfd.readouterr().err
    machine.run([backup])
    assert machine.digest == machine.untouched


@contextlib.contextmanager
def heard(signum: int) -> Iterator[None]:
    """A signal is not ignored, as SIGHUP is if the tests were started under nohup."""
    before = signal.getsignal(signum)
    if before is signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signum, before)


class Sender(keras.callbacks.Callback):
    """Sends its process a signal in the second epoch."""

    def __init__(self, where: str, signum: int) -> None:
        super().__init__()
        self.where, self.signum = where, signum
        self.step = self.sent_at = 0

    def send(self, where: str) -> None:
        if where == self.where and self.step >= 9 and not self.sent_at:
            self.sent_at = self.step
            os.kill(os.getpid(), self.signum)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        self.send("batch")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.send("validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.send("epoch_end")


def test_signals_are_given_back(alone: Any, tmp_path: Any) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    alone.run(epochs=1)
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


@pytest.mark.parametrize(
    "changes", [[(1, 2)], pytest.param([(2, 1), (3, 2)], marks=pytest.mark.long)]
)
def test_it_goes_on_with_another_number_of_replicas(
    tiny: Any, training: Any, tmp_path: Any, changes: list[tuple[int, int]]
) -> None:
    numbers = {1, *itertools.chain(*changes)}
    machines = {n: training.Machine(tiny.strategy(n)) for n in numbers}
    for machine in machines.values():
        # Dropout draws other numbers on other replicas, and Adam makes rounding errors large.
        machine.model.layers[1].synchronized = True
        machine.model.layers[2].rate = 0.0
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        machine.model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    one = machines[1]
    one.run()
    expected = [v.numpy().copy() for v in one.model.weights]
    history = one.trainer.history.history
    for before, after in changes:
        backup = BackupAndRestore(tmp_path / f"{before}-{after}", save_freq=3)
        machines[before].cut_at(11, [backup])
        machines[after].run([backup])
        got = [np.asarray(v) for v in machines[after].model.weights]
        assert tiny.distance(got, expected) < 1e-5
        found = machines[after].trainer.history.history
        for name, values in history.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def _other(name: str, training: Any) -> Any:
    """A training that differs from the saved one in one thing."""
    strategy = kfit.distribute.OneDevice()
    x, y = training.data()
    if name == "batch_size":
        return training.Machine(strategy, lambda: {"x": x, "y": y, "batch_size": 10})
    if name == "examples":
        return training.Machine(strategy, lambda: {"x": x[:49], "y": y[:49], "batch_size": 8})
    other = training.Machine(strategy)
    last = {
        "model": [keras.layers.Dense(4), keras.layers.Dense(3)],
        "renamed": [keras.layers.Dense(3, name="head")],
        "dtype": [keras.layers.Dense(3, dtype="float64")],
    }
    if name in last:
        layers = [*other.model.layers[:-1], *last[name]]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        other.model = model
        other.trainer = kfit.Trainer(model, strategy, seed=5)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        other.model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return other


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param(
            "batch_size",
            "data: global batch size is 10, in the snapshot 8",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "examples", "data: examples is 49, in the snapshot 50", marks=pytest.mark.long
        ),
        ("model", r"model: .*kernel .*is \(6, 4\) float32, in the snapshot \(6, 3\) float32"),
        pytest.param(
            "optimizer",
            r"optimizer: optimizer is SGD, in the snapshot Adam",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "renamed",
            r"model: head, a Dense, is not in the snapshot\n.* is only in the snapshot",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "dtype",
            r"model: .*kernel .*is \(6, 3\) float64, in the snapshot \(6, 3\) float32",
            marks=pytest.mark.long,
        ),
    ],
)
def test_another_training_is_refused_by_name(
    plain: Any, training: Any, tmp_path: Any, name: str, says: str
) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=3)
    plain.cut_at(5, [backup])
    other = _other(name, training)
    with pytest.raises(SnapshotMismatchError, match=says):
        other.run([backup])
    assert steps_in(tmp_path / "backup") == [3]


@pytest.mark.long
def test_parts_of_a_snapshot(plain: Any, training: Any, tmp_path: Any) -> None:
    plain.cut_at(9, [BackupAndRestore(tmp_path / "backup", save_freq=8)])
    kept = Store(str(tmp_path / "backup")).newest()[0].state["variables"]
    other = _other("optimizer", training)
    seen: list[Any] = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            mine = [e.variable for e in entries(self.model) if e.part == "model"]
            seen.append([np.asarray(v.numpy()) for v in mine])

    other.run(
        [BackupAndRestore(tmp_path / "backup", parts=["model"]), Looks()],
        epochs=1,
    )
    weights = [entry["value"] for entry in kept if entry["part"] == "model"]
    assert all(np.array_equal(a, b) for a, b in zip(seen[0], weights, strict=True))
    assert len(seen) == training.STEPS  # from the first step on


@pytest.mark.long
def test_every_variable_is_saved(training: Any) -> None:
    """What Keras keeps in variables is in the list; a new kind of it turns this test red."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomFlip(seed=1),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.SpectralNormalization(layers.Conv2D(2, 2)),
            layers.GaussianDropout(0.1),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    inner = keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
        use_ema=True,
        gradient_accumulation_steps=2,
        amsgrad=True,
    )
    model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse", metrics=["mae", "r2_score"])
    x, y = np.zeros((4, 8, 8, 1), "float32"), np.zeros((4, 2), "float32")
    kfit.fit(model, x, y, verbose=0, strategy="one_device")
    listed = {id(entry.variable) for entry in entries(model)}
    held: set[int] = set()
    stack: list[Any] = [model, model.optimizer]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.Variable):
            held.add(id(value))
        elif isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list | tuple | set):
            stack += value
        elif type(value).__module__.startswith("keras.") and hasattr(value, "__dict__"):
            stack += vars(value).values()
    assert held
    assert held <= listed


def test_a_damaged_snapshot_is_told_and_skipped(
    alone: Any, training: Any, tmp_path: Any, capsys: Any
) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=2)
    alone.cut_at(9, [backup])
    assert steps_in(tmp_path / "backup") == [6, 8]
    newest = Store(str(tmp_path / "backup")).names()[-1]
    path = tmp_path / "backup" / str(newest) / "arrays.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=f"damaged snapshot: {newest}: arrays.h5 does not have"):
        alone.run([backup])
    assert "kfit: going on from" in capsys.readouterr().out
    assert alone.digest == alone.untouched


def test_when_all_are_damaged_it_does_not_begin_anew(
    alone: Any, training: Any, tmp_path: Any
) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=2)
    alone.cut_at(9, [backup])
    for name in Store(str(tmp_path / "backup")).names():
        (tmp_path / "backup" / str(name) / "manifest.json").write_bytes(b"")
    with pytest.raises(NoGoodSnapshotError, match="all are damaged"):
        alone.run([backup])


def test_a_second_run_on_the_directory_is_refused(alone: Any, tmp_path: Any) -> None:
    lock = DirectoryLock(str(tmp_path), {})
    with pytest.raises(DirectoryInUseError, match="in use by another callback of this"):
        alone.run([BackupAndRestore(tmp_path)])
    lock.release()
    alone.run([BackupAndRestore(tmp_path)], epochs=1)


def test_a_directory_that_cannot_be_written_fails_before_training(
    alone: Any, tmp_path: Any
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="`backup_dir` must be a directory that can be written to"):
        alone.run([BackupAndRestore(tmp_path / "file")])
    assert alone.model.optimizer.iterations.numpy() == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="of Linux")
def test_a_directory_that_cannot_be_made_fails_before_training(alone: Any) -> None:
    with pytest.raises(PermissionError, match="written to: it does not exist, and cannot be made"):
        alone.run([BackupAndRestore("/proc/backup")])


@pytest.mark.parametrize("made", [True, False], ids=["made", "to_be_made"])
def test_a_directory_of_another_user_fails_before_training(
    alone: Any, tmp_path: Path, made: bool
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = tempfile.mkdtemp(dir="/tmp")  # pytest's own folders are closed to others
    os.chmod(folder, 0o755)
    backup = os.path.join(folder, "backup")
    if made:
        os.mkdir(backup, 0o755)
    alone.model.optimizer.iterations.assign(0)
    os.seteuid(_NOBODY)
    try:
        with pytest.raises(OSError, match="`backup_dir`") as caught:
            alone.run([BackupAndRestore(backup)])
    finally:
        os.seteuid(0)
    left = os.listdir(backup) if made else os.listdir(folder)
    shutil.rmtree(folder)
    assert str(caught.value) == (
        "[Errno 13] `backup_dir` must be a directory that can be written to: Permission denied: "
        f"{backup!r}"
    )
    assert left == []
    assert alone.model.optimizer.iterations.numpy() == 0


@pytest.mark.long
def test_a_disk_that_is_mounted_read_only_fails_before_training(tmp_path: Path) -> None:
    told = on_a_disk(tmp_path, "ro")
    assert told["error"] == (
        "[Errno 30] `backup_dir` must be a directory that can be written to: Read-only file "
        f"system: {str(tmp_path / 'disk' / 'backup')!r}"
    )
    assert told["steps"] == 0


@pytest.mark.long
def test_on_a_disk_that_is_really_full_training_ends_and_a_later_one_saves(tmp_path: Path) -> None:
    told = on_a_disk(tmp_path, "size=6m")
    assert told["error"].startswith(
        "[Errno 28] `backup_dir`: the snapshot of step 6 could not be written: No space left on "
        "device; the ones before it are untouched, and the same program resumes from them: "
    )
    assert told["steps"] <= 8
    assert [SnapshotName.parse(name).step for name in told["names"]] == [2, 4]
    assert told["later"] == told["undisturbed"]


def on_a_disk(folder: Path, options: str) -> Any:
    """What a program tells that trains with its backups on another disk; see `mounts.py`."""
    if reason := why_not():
        pytest.skip(reason)
    disk = folder / "disk"
    disk.mkdir()
    done = subprocess.run(
        with_disk(disk, options, [sys.executable, str(FULL_DISK), str(disk)]),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))


@pytest.mark.long
def test_a_slow_disk_holds_up_no_step(alone: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A step is taken while the disk syncs, and what is saved is what was asked for."""
    sync, during = Files.sync, set()
    backup = BackupAndRestore(tmp_path / "backup", save_freq=5, delete_checkpoint=False)

    class Watches(Slow):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if syncing.is_set():
                during.add(int(self.model.optimizer.iterations))

    syncing = threading.Event()

    def slow(files: Any, file: Any) -> None:
        syncing.set()
        time.sleep(0.1)
        sync(files, file)
        syncing.clear()

    monkeypatch.setattr(Files, "sync", slow)
    alone.run([backup, Watches()])
    assert len(during) >= 5
    assert alone.digest == alone.untouched
    assert steps_in(tmp_path / "backup")[-1] == alone.model.optimizer.iterations.numpy()


def test_a_write_that_fails_ends_training_at_the_next_step(
    alone: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    created = Files.create
    full = {"after": 1 << 30}

    def create(files: Any, path: str) -> Any:
        full["after"] -= 1
        if full["after"] < 0:
            raise OSError(28, "No space left on device", path)
        return created(files, path)

    monkeypatch.setattr(Files, "create", create)
    full["after"] = 4  # one for the probe, three for the first snapshot
    backup = BackupAndRestore(tmp_path / "backup", save_freq=3)
    with pytest.raises(OSError, match="snapshot of step 6 could not be written: No space left"):
        alone.run([backup, Slow()])
    assert steps_in(tmp_path / "backup") == [3]
    full["after"] = 1 << 30
    alone.run([backup])
    assert alone.digest == alone.untouched


def test_a_directory_that_vanishes_is_named(alone: Any, tmp_path: Any) -> None:
    class Removes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.optimizer.iterations.numpy() == 4:
                (tmp_path / "backup").rename(tmp_path / "elsewhere")
            time.sleep(0.05)

    says = (
        r"snapshot of step [36] could not be written: No such file.*directory has vanished, and all"
    )
    with pytest.raises(OSError, match=says):
        alone.run([Removes(), BackupAndRestore(tmp_path / "backup", save_freq=3)])


class Slow(keras.callbacks.Callback):
    """Gives the writer time within each step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.05)


def test_a_state_that_is_no_number_is_not_saved(alone: Any, training: Any, tmp_path: Any) -> None:
    class Poison(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.optimizer.iterations.numpy() == 4:
                weights = self.model.layers[0].kernel
                weights.assign(weights * np.nan)

    backup = BackupAndRestore(tmp_path / "backup", save_freq=1, delete_checkpoint=False)
    with pytest.warns(UserWarning, match="NaN") as caught:
        alone.run([Poison(), backup], epochs=1)
    assert steps_in(tmp_path / "backup") == [2, 3]
    told = [str(each.message) for each in caught if "NaN" in str(each.message)]
    assert told == [  # once, though four saves were due from there on
        "The weights hold NaN or infinity at step 4: neither this state is saved, nor any later "
        "one until they are finite again. `kfit.callbacks.RollBack` would go back and leave out "
        "the batch."
    ]


@pytest.mark.long
def test_weights_that_are_not_trained_may_be_infinite(tiny: Any, tmp_path: Path) -> None:
    class Least(keras.layers.Layer):
        """Keeps the least value that it has seen, which is infinite at first, and a mask."""

        def build(self, shape: Any) -> None:
            for name in ("inf", "-inf"):
                start = keras.initializers.Constant(float(name))
                self.add_weight(shape=(2,), initializer=start, trainable=False)

        def call(self, x: Any) -> Any:
            return x

    x, y = tiny.data(16)
    model = keras.Sequential([keras.Input((4,)), Least(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    backup = BackupAndRestore(tmp_path, save_freq=1, delete_checkpoint=False)
    kfit.fit(model, x, y, 8, callbacks=[backup], strategy="one_device", verbose=0)
    assert steps_in(tmp_path)[-1] == 2


@pytest.mark.long
def test_after_the_end_there_is_nothing_left_to_train(alone: Any, tmp_path: Any) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=100, delete_checkpoint=False)
    alone.run([backup])
    assert steps_in(tmp_path / "backup") == [28]
    counter = Slow()
    counter.on_train_batch_end = pytest.fail  # type: ignore[method-assign]
    alone.run([backup, counter])
    assert alone.digest == alone.untouched


@pytest.mark.long
def test_the_deletion_of_the_snapshots_of_a_finished_run_is_told(
    alone: Any, tmp_path: Any, capsys: Any
) -> None:
    """Those of `kfit run` are deleted so late, since another task may fail after the chief."""
    path = str(tmp_path / "backup")

    def said(**fit: Any) -> str:
        lock = DirectoryLock(path, {"KFIT_RUN": "a"})
        lock.note_end("a")
        lock.release()
        assert at_exit.next_run_deletes(path)
        alone.run([BackupAndRestore(path)], epochs=1, **fit)
        assert not at_exit.next_run_deletes(path)
        return str(capsys.readouterr().out)

    os.mkdir(path)
    assert "kfit: the run" not in said(verbose=2)  # there is none
    assert f"kfit: the run before has ended well: its snapshots in {path} are" in said(verbose=2)
    assert said() == ""
    assert steps_in(tmp_path / "backup") == [7]


@pytest.mark.long
def test_a_snapshot_past_the_epochs_is_told(alone: Any, tmp_path: Any, capsys: Any) -> None:
    def backup() -> Any:
        return BackupAndRestore(tmp_path / "backup", save_freq=1, delete_checkpoint=False)

    def said(epochs: int) -> str:
        capsys.readouterr()
        counter = Slow()
        counter.on_train_batch_end = pytest.fail  # type: ignore[method-assign]
        alone.run([backup(), counter], epochs=epochs)
        return str(capsys.readouterr().out)

    past = "kfit: nothing to do: {} is past `epochs`={} (step {}, epoch {}), and the model gets"
    path = str(tmp_path / "backup")
    alone.cut_at(16, [backup()])
    assert past.format(path, 2, 15, 3) in said(2)
    alone.run([backup()])
    assert past.format(path, 3, 28, 4) in said(3)
    assert "past `epochs`" not in said(4)


@pytest.mark.long
def test_snapshots_past_the_epochs_are_kept_at_the_end(alone: Any, tmp_path: Any) -> None:
    """A run with fewer epochs, to try something out, is no end of the training."""
    path = str(tmp_path / "backup")
    alone.cut_at(16, [BackupAndRestore(path, save_freq=5)])
    before = steps_in(tmp_path / "backup")
    for _ in range(2):
        alone.run([BackupAndRestore(path, save_freq=5)], epochs=1)
        assert "of more epochs than this run" in at_exit._LEFT[path]
        assert path in at_exit._UNFINISHED  # so nothing is deleted
        assert steps_in(tmp_path / "backup") == before
    alone.run([BackupAndRestore(path, save_freq=5)])
    assert alone.digest == alone.untouched
    assert path not in at_exit._UNFINISHED


def test_saves_come_at_their_steps_and_cost_no_steps_of_their_own(
    tiny: Any, training: Any, tmp_path: Any
) -> None:
    """Executions of many steps end where a save is due, and go on with as many."""
    machine = training.Machine(tiny.strategy(1))
    machine.run()
    taken: list[int] = []
    machine.trainer.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    execution = kfit.steps.execution.Execution.run

    def run(self: Any, run: Any, steps: int, **options: Any) -> Any:
        done = execution(self, run, steps, **options)
        taken.append(done.steps)
        return done

    x, y = training.data(800)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kfit.steps.execution.Execution, "run", run)
        backup = BackupAndRestore(tmp_path / "b", save_freq=30, keep=99, delete_checkpoint=False)
        machine.trainer.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[backup])
    assert steps_in(tmp_path / "b") == [30, 60, 90, 120, 150, 180, 200]
    assert sum(taken) == 200
    assert len(taken) < 40


def test_by_the_clock(plain: Any, tmp_path: Any, monkeypatch: Any) -> None:
    now = itertools.count(0, 4)  # each look at the clock takes four seconds
    monkeypatch.setattr(module, "time", Clock(now))
    backup = BackupAndRestore(tmp_path / "b", save_freq=dt.timedelta(seconds=30), keep=99)
    plain.cut_at(20, [backup])
    saved = steps_in(tmp_path / "b")
    assert len(saved) >= 2
    assert all(5 <= b - a <= 8 for a, b in itertools.pairwise([0, *saved]))


class Clock:
    """A clock that a test winds."""

    def __init__(self, ticks: Any) -> None:
        self.monotonic = lambda: float(next(ticks))


def test_as_often_as_costs_one_percent() -> None:
    backup = BackupAndRestore("b", save_freq="auto")
    assert backup._interval == 2.0
    backup._held_up, backup._writer.seconds = 0.05, 0.15
    assert backup._interval == pytest.approx(20.0)
    backup._saves = 1  # the first one took longer than later ones will
    assert backup._interval == pytest.approx(2.0)
    backup._held_up = 1.0
    assert backup._interval == pytest.approx(11.5)


@pytest.mark.long
def test_callbacks_tell_what_they_remember(alone: Any, tmp_path: Any) -> None:
    class Counts(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: dict[str, Any] = {"batches": 0, "last": np.zeros(2)}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen = {"batches": self.seen["batches"] + 1, "last": np.full(2, batch)}

        def state_dict(self) -> Any:
            return self.seen

        def load_state_dict(self, state: Any) -> None:
            self.seen = state

    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    alone.cut_at(10, [Counts(), backup])
    again, another = Counts(), Counts()
    with pytest.warns(UserWarning, match="no state of the callback Counts 2; it begins anew"):
        alone.run([again, another, backup])
    assert again.seen["batches"] == 28
    assert another.seen["batches"] == 20
    assert again.seen["last"].tolist() == [6, 6]


def test_a_state_that_cannot_be_saved_is_named(alone: Any, tmp_path: Any) -> None:
    class Holds(keras.callbacks.Callback):
        def state_dict(self) -> Any:
            return {"it": object()}

        def load_state_dict(self, state: Any) -> None:
            """Never called."""

    with pytest.raises(ValueError, match=r"Holds can't be saved: state\['it'\] must be"):
        alone.run([Holds(), BackupAndRestore(tmp_path / "backup")])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"backup_dir": ""}, "`backup_dir` must be the path"),
        ({"save_freq": 0}, "`save_freq` must be"),
        ({"save_freq": True}, "`save_freq` must be"),
        ({"save_freq": "step"}, "`save_freq` must be"),
        ({"save_freq": dt.timedelta(0)}, "`save_freq` must be"),
        ({"keep": 1}, "`keep` must be"),
        ({"parts": ["weights"]}, "`parts` must be"),
        ({"if_busy": "drop"}, "`if_busy` must be"),
    ],
)
def test_wrong_arguments(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BackupAndRestore(**{"backup_dir": "b", **arguments})


def test_under_keras_it_says_where_it_works(tiny: Any, tmp_path: Any) -> None:
    x, y = tiny.data(20)
    with pytest.raises(RuntimeError, match="works in the `fit` of kfit"):
        tiny.model().fit(x, y, verbose=0, callbacks=[BackupAndRestore(tmp_path)])


@pytest.mark.long
def test_a_length_that_was_learned_is_known_after_a_restart(tiny: Any, tmp_path: Any) -> None:
    """The first epoch of unknown length begins a batch that is not there, as in Keras; no other."""

    class Begun(keras.callbacks.Callback):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.begun: list[Any] = []
            self.cut = cut

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun.append(("train", self.epoch, batch))
            if self.cut and (self.epoch, batch) == (1, 3):
                raise InterruptedError

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun.append(("test", self.epoch, batch))

    def run(folder: Any, *, cut: bool) -> list[Any]:
        def unknown(examples: int) -> Any:
            whole = tf.data.Dataset.from_tensor_slices(tiny.data(examples)).batch(5)
            return whole.filter(lambda x, y: True)

        fits.forget()  # as in a new process
        callback = Begun(cut)
        trainer = kfit.Trainer(tiny.model(), tiny.strategy(1), seed=1)
        backup = BackupAndRestore(folder, save_freq=2)
        options: Any = {"epochs": 2, "verbose": 0, "validation_data": unknown(11)}
        with contextlib.suppress(InterruptedError):
            trainer.fit(unknown(23), **options, callbacks=[backup, callback])
        return callback.begun

    expected = run(tmp_path / "untouched", cut=False)
    assert ("train", 0, 5) in expected
    assert ("train", 1, 5) not in expected
    run(tmp_path / "cut", cut=True)
    # The list is an attribute of the callback, and so restored as well.
    assert run(tmp_path / "cut", cut=False) == expected


class BatchHooks(keras.callbacks.Callback):
    """Notes the hooks of batches with the loss; stops or fails in the hook of a batch."""

    def __init__(self, stop: Any = None) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.stop = stop

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(("epoch", epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(("end", batch, float(f"{logs['loss']:.5f}")))
        if self.stop == (self.calls.count(("epoch", 1)), batch):
            self.model.stop_training = True


class CutAt(BackupAndRestore):
    """Is cut off after it has saved a step."""

    step: int | None = None

    def on_save_point(self, reason: Any) -> None:
        super().on_save_point(reason)
        if reason == "step" and int(self.model.optimizer.iterations.numpy()) == self.step:
            raise InterruptedError


@pytest.mark.long
@pytest.mark.parametrize(
    ("length", "stop"),
    [
        ("endless", (1, 5)),
        ("unknown", None),
        ("known", None),
        ("endless", None),
        ("known", (0, 8)),
    ],
)
@pytest.mark.parametrize(("save_freqs", "steps"), [((2,), (2, 7)), ((1, 8), (6, 8, 10))])
def test_save_points_within_executions_call_no_hooks(
    tiny: Any, tmp_path: Any, length: str, stop: Any, save_freqs: Any, steps: Any
) -> None:
    """Callbacks see Keras' executions of 3 steps, wherever it is saved and cut off."""

    def data() -> Any:
        whole = tf.data.Dataset.from_tensor_slices(tiny.data(40)).batch(5)  # 8 batches
        if length == "unknown":
            return whole.filter(lambda x, y: True)
        return whole.repeat() if length == "endless" else whole

    options: Any = {
        "epochs": 2,
        "verbose": 0,
        "steps_per_epoch": 8 if length == "endless" else None,
    }
    compiled = {"steps_per_execution": 3}

    def run(*backups: Any) -> list[Any]:
        fits.forget()  # as in a new process
        watcher = BatchHooks(stop)
        trainer = kfit.Trainer(tiny.model(**compiled), tiny.strategy(1), seed=1)
        with contextlib.suppress(InterruptedError):
            trainer.fit(data(), **options, callbacks=[watcher, *backups])
        return watcher.calls

    watcher = BatchHooks(stop)
    tiny.model(**compiled).fit(data(), **options, shuffle=False, callbacks=[watcher])
    expected = run()
    # In data of unknown length Keras begins one more batch, which does not come.
    assert [call for call in watcher.calls if call != ("begin", 9)] == expected
    for save_freq in save_freqs:
        assert run(BackupAndRestore(tmp_path / f"{save_freq}", save_freq=save_freq)) == expected
    for step in steps:
        backup = CutAt(tmp_path / f"cut-{step}", save_freq=1)
        backup.step = step
        if run(backup) != expected:
            # The list is an attribute of the callback, and so restored as well.
            assert run(BackupAndRestore(tmp_path / f"cut-{step}", save_freq=1)) == expected
