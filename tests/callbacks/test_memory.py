"""What Keras' own callbacks remember, and the files that they wrote too far."""

import datetime as dt
import json
import os
import sys
import warnings
from typing import Any
from unittest.mock import MagicMock

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import SnapshotMismatchError
from kfit.checkpoint.callback_states import _REMEMBERS
from kfit.checkpoint.written_files import rewind_rows, rows_of
from kfit.internals.callbacks import ORBAX


@pytest.fixture(scope="module")
def machine(training: Any) -> Any:
    return training.Machine(kfit.distribute.OneDevice())


@pytest.mark.parametrize(("kind", "attributes"), _REMEMBERS)
def test_keras_keeps_its_memory_where_it_is_looked_for(
    kind: Any, attributes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of Keras that renames one of these turns this red."""
    if kind in ORBAX:  # its package need not be installed
        monkeypatch.setattr(sys.modules[kind.__module__], "ocp", MagicMock())
    made = {
        **{orbax: lambda: kind("x", monitor="loss") for orbax in ORBAX},
        keras.callbacks.ModelCheckpoint: lambda: kind("x.keras", save_freq=1),
    }.get(kind, kind)()
    made.set_model(keras.Sequential())
    for hook in ("on_train_begin",):
        getattr(made, hook)()
    if isinstance(made, keras.callbacks.ModelCheckpoint):
        made.on_epoch_begin(0)
    for attribute in attributes:
        assert hasattr(made, attribute), f"{kind.__name__}.{attribute}"


def events(folder: Any) -> list[tuple[str, int]]:
    """Every scalar that was written: its tag and step, over all files, in no order."""
    found = []
    for path in folder.rglob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [(v.tag, event.step) for v in event.summary.value if v.tag != "keras"]
    return sorted(found)


@pytest.mark.long  # test_tensorboard.py does the like every day, with the callback of kfit
@pytest.mark.parametrize("update_freq", [1, "epoch"])
def test_tensorboard_has_no_step_twice(training: Any, tmp_path: Any, update_freq: Any) -> None:
    import kfit

    machine = training.Machine(kfit.distribute.OneDevice(), validation_data=training.data(20))

    def board(folder: str) -> Any:
        return keras.callbacks.TensorBoard(tmp_path / folder, update_freq=update_freq)

    machine.run([board("untouched")])
    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    machine.cut_at(10, [board("cut"), backup])
    machine.cut_at(7, [board("cut"), backup])
    machine.run([board("cut"), backup])
    assert events(tmp_path / "cut") == events(tmp_path / "untouched")
    assert len(events(tmp_path / "cut")) > 20


def others_events(folder: Any, name: str) -> Any:
    """An event file of another run, with a scalar in it."""
    with tf.summary.create_file_writer(str(folder / name)).as_default():
        tf.summary.scalar("theirs", 1.0, step=3)
    (path,) = (folder / name).glob("events.out.tfevents.*")
    return path


@pytest.mark.long
def test_the_events_of_other_runs_stay(machine: Any, tmp_path: Any) -> None:
    """Ones from before this run, and ones that came between the snapshot and the next start."""
    logs = tmp_path / "logs"

    def board() -> Any:
        return keras.callbacks.TensorBoard(logs, update_freq=1)

    (logs / "train").mkdir(parents=True)
    (logs / "train" / "notes.txt").write_text("mine")
    kept = [logs / "train" / "notes.txt", others_events(logs, "train")]
    before = {path: path.read_bytes() for path in kept}
    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    machine.cut_at(6, [board(), backup])
    own = [path for path in (logs / "train").iterdir() if path not in kept]
    linked = tmp_path / "another name"
    os.link(own[0], linked)
    before[linked] = linked.read_bytes()
    # Another run on the same folder that kfit trains, which saves nothing.
    machine.cut_at(3, [other := board()])
    for writer in other._writers.values():
        writer.close()
    later = set((logs / "train").iterdir()) - {*kept, *own}
    before |= {path: path.read_bytes() for path in later}
    machine.cut_at(1, [board(), backup])  # ends before it has saved anything
    machine.run([board(), backup])
    for path, content in before.items():
        assert path.read_bytes() == content, path
    steps = [step for tag, step in events(logs) if tag == "batch_loss"]
    theirs = [1, 2, 3]
    assert sorted(steps) == sorted([*theirs, *range(1, 29)])


@pytest.mark.parametrize("attribute", ["_summary_module", "_writers"])
def test_keras_has_the_place_for_a_runs_mark(attribute: str) -> None:
    assert hasattr(keras.callbacks.TensorBoard(), attribute)


THEIRS = "0,0.5,0.25\n"


@pytest.mark.parametrize(
    ("after", "is_said"),
    [
        pytest.param("", False, marks=pytest.mark.long),  # nobody else has been there
        (THEIRS, True),  # another run has appended
        pytest.param("a note of mine\n", True, marks=pytest.mark.long),
        pytest.param('"', True, marks=pytest.mark.long),
    ],
)
def test_rows_of_other_runs_stay(machine: Any, tmp_path: Any, after: str, is_said: bool) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,accuracy,loss\n" + THEIRS)

    def log() -> Any:
        return keras.callbacks.CSVLogger(str(path), append=True)

    backup = BackupAndRestore(tmp_path / "backup", save_freq=12)
    machine.cut_at(16, [log(), backup])  # the second row came after the snapshot of step 12
    with path.open("a") as file:
        file.write(after)
    before = path.read_text()
    os.link(path, tmp_path / "in a copy by hard links")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        machine.run([log(), backup])
    assert (tmp_path / "in a copy by hard links").read_text() == before
    assert is_said == any("another run may have written" in str(w.message) for w in said)
    now = path.read_text()
    if is_said:
        assert now.startswith(before)
    epochs = [line.split(",")[0] for line in now.splitlines()[1:]]
    assert epochs[:2] == ["0", "0"]
    if not is_said:
        assert epochs == ["0", "0", "1", "2", "3"]


def log_of(path: Any, text: str) -> Any:
    """A CSVLogger that goes on with a file."""
    path.write_text(text)
    made = keras.callbacks.CSVLogger(str(path), append=True)
    made.on_train_begin()
    return made


HEAD = "epoch,loss\n0,0.5\n"


@pytest.mark.parametrize(
    ("tail", "is_ours"),
    [
        ("1,0.25\n2,0.1\n", True),
        ("1,0.2", True),  # cut off
        ("1,0.25\n2", True),
        ("2,0.25\n", False),
        ("1,0.25\n1,0.25\n", False),
        ("1,0.25\n0,0.25\n", False),
        ("1,0.25,0.3\n", False),
        ("epoch,loss\n1,0.25\n", False),
        ("\n", False),
        ("1,0.25\nnotes", False),
    ],
)
def test_whose_rows_they_are(tmp_path: Any, tail: str, is_ours: bool) -> None:
    path = tmp_path / "log.csv"
    first = log_of(path, HEAD)
    first.keys = ["loss"]
    state = rows_of(first)
    again = log_of(path, HEAD + tail)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rewind_rows(again, state, 1)
    assert bool(said) == (not is_ours)
    assert path.read_text() == (HEAD if is_ours else HEAD + tail)


def test_a_header_that_was_cut_off(tmp_path: Any) -> None:
    path = tmp_path / "log.csv"
    empty = rows_of(log_of(path, ""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewind_rows(log_of(path, "epoch,lo"), empty, 0)
    assert path.read_text() == ""


def test_a_log_that_is_another_one_by_now(tmp_path: Any) -> None:
    path = tmp_path / "log.csv"
    state = rows_of(log_of(path, HEAD))
    changed = HEAD.replace("0.5", "0.6") + "1,0.25\n"
    with pytest.warns(UserWarning, match="its rows before the snapshot have been changed"):
        rewind_rows(log_of(path, changed), state, 1)
    assert path.read_text() == changed
    linked = log_of(path, HEAD + "1,0.25\n")
    os.link(path, tmp_path / "other name")
    with pytest.warns(UserWarning, match="has another name as well"):
        rewind_rows(linked, state, 1)
    assert path.read_text() == HEAD + "1,0.25\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewind_rows(log_of(path, "epoch"), state, 1)
    assert path.read_text() == "epoch"


@pytest.mark.long
def test_a_log_that_is_appended_to(machine: Any, tmp_path: Any) -> None:
    (tmp_path / "log.csv").write_text("epoch,accuracy,loss\n0,0.1,0.2\n")

    def log() -> Any:
        return keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)

    backup = BackupAndRestore(tmp_path / "backup", save_freq=3)
    machine.cut_at(10, [log(), backup])
    machine.run([log(), backup])
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,accuracy,loss"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "0", "1", "2", "3"]


@pytest.mark.long
def test_a_log_of_several_fits_is_begun_anew_by_each(machine: Any, tmp_path: Any) -> None:
    log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    machine.run([log])
    expected = (tmp_path / "log.csv").read_text()
    backup = BackupAndRestore(tmp_path / "backup", save_freq=3)
    machine.cut_at(10, [log, backup])
    machine.run([log, backup])
    assert not log.append
    machine.run([log])
    assert (tmp_path / "log.csv").read_text() == expected


@pytest.mark.long
def test_a_log_that_goes_on_in_a_later_fit(machine: Any, training: Any, tmp_path: Any) -> None:
    """When the program is run again, the first `fit` takes no step, and keeps the later rows."""
    path = tmp_path / "log.csv"

    def callbacks() -> Any:
        log = keras.callbacks.CSVLogger(str(path), append=True)
        return [log, BackupAndRestore(tmp_path / "backup", save_freq=3)]

    def later_fit(*others: Any) -> None:
        x, y = training.data()
        fit = {"batch_size": training.BATCH_SIZE, "epochs": 4, "initial_epoch": 2, "verbose": 0}
        machine.trainer.fit(x, y, **fit, callbacks=[*callbacks(), *others])

    machine.run(callbacks(), epochs=2)
    with pytest.raises(training.CutError):
        later_fit(training.cutter(12))  # the row of its first epoch came before the snapshot
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine.run(callbacks(), epochs=2)
        later_fit()
    rows = [line.split(",")[0] for line in path.read_text().splitlines()]
    assert rows == ["epoch", "0", "1", "2", "3"]


@pytest.mark.long
@pytest.mark.parametrize(("cut", "save_freq"), [(8, "epoch"), (11, 2)])
def test_averaged_weights_stay_where_they_are(
    training: Any, tmp_path: Any, cut: int, save_freq: Any
) -> None:
    """SwapEMAWeights leaves the averages in the model at the end of an epoch."""
    import kfit

    machine = training.Machine(kfit.distribute.OneDevice(), validation_data=training.data(20))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    machine.model.compile(keras.optimizers.SGD(0.1, use_ema=True), loss)

    def callbacks() -> Any:
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    machine.run(callbacks())
    expected = machine.digest
    backup = BackupAndRestore(tmp_path / "backup", save_freq=save_freq)
    machine.cut_at(cut, [*callbacks(), backup])
    machine.run([*callbacks(), backup])
    assert machine.digest == expected


def test_a_model_that_a_hook_has_compiled_is_not_resumed_as_another(tmp_path: Any) -> None:
    """With equal variables nothing else would tell: the rest would be trained without the hook."""
    import kfit

    class Thaws(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                self.model.layers[0].trainable = True
                self.model.compile(keras.optimizers.SGD(0.01, clipnorm=0.1), "mse")

    class Ends(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 3:
                raise KeyboardInterrupt

    def program(*others: Any) -> None:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(5), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse")
        callbacks = [Thaws(), *others, BackupAndRestore(tmp_path / "backup")]
        x = np.ones((8, 4), "float32")
        fit = {"batch_size": 4, "epochs": 5, "verbose": 0, "callbacks": callbacks}
        kfit.Trainer(model, "one_device").fit(x, x[:, :1], **fit)

    with (
        pytest.warns(UserWarning, match="A callback has compiled the model in the middle of `fit`"),
        pytest.raises(KeyboardInterrupt),
    ):
        program(Ends())
    with pytest.raises(SnapshotMismatchError, match=r"a callback had compiled again.*two `fit`s"):
        program()


def test_batches_are_written_at_the_same_counts_when_it_resumes_within_an_execution(
    tmp_path: Any,
) -> None:
    import kfit

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 9:
                raise KeyboardInterrupt

    def program(name: str, *others: Any) -> None:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=3)
        board = keras.callbacks.TensorBoard(tmp_path / name, write_graph=False, update_freq=2)
        backup = BackupAndRestore(tmp_path / f"backup of {name}", save_freq=4)
        x = np.ones((24, 4), "float32")
        fit = {"batch_size": 4, "epochs": 2, "verbose": 0, "callbacks": [board, *others, backup]}
        kfit.Trainer(model, "one_device").fit(x, x[:, :1], **fit)

    program("whole")
    with pytest.raises(KeyboardInterrupt):
        program("cut", Ends())
    program("cut")
    assert events(tmp_path / "cut") == events(tmp_path / "whole")


@pytest.mark.long
def test_a_schedule_that_a_hook_has_set_is_told(tmp_path: Any) -> None:
    """A snapshot has no learning rate then; and of another schedule nothing would tell."""
    import kfit

    schedules = keras.optimizers.schedules

    class Sets(keras.callbacks.Callback):
        def __init__(self, at: int | None) -> None:
            super().__init__()
            self.at = at

        def on_train_begin(self, logs: Any = None) -> None:
            self.on_epoch_end(None)

        def on_epoch_end(self, epoch: int | None, logs: Any = None) -> None:
            if epoch == self.at:
                self.model.optimizer.learning_rate = schedules.ExponentialDecay(0.1, 2, 0.9)

    class Ends(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 3:
                raise KeyboardInterrupt

    def program(name: str, rate: Any, *others: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse")
        callbacks = [*others, BackupAndRestore(tmp_path / name)]
        x = np.ones((8, 4), "float32")
        fit = {"batch_size": 4, "epochs": 5, "verbose": 0, "callbacks": callbacks}
        return kfit.Trainer(model, "one_device").fit(x, x[:, :1], **fit)

    says = "A callback has set another schedule as the learning rate in the middle of `fit`"
    for name, rate in (("number", 0.1), ("schedule", schedules.PolynomialDecay(0.1, 10))):
        with pytest.warns(UserWarning, match=says) as told, pytest.raises(KeyboardInterrupt):
            program(name, rate, Sets(1), Ends())
        assert len(told) == 1
        with pytest.raises(SnapshotMismatchError, match=r"schedule of the learning rate.*`fit`s"):
            program(name, rate, Sets(1))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            program("begin", 0.1, Sets(None), Ends())
        assert program("begin", 0.1, Sets(None)).epoch == [0, 1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:A hook has put")
def test_what_hooks_put_into_the_logs_is_in_the_history_of_a_resumed_run(
    machine: Any, tmp_path: Any
) -> None:
    class Puts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            logs["f1"], logs["when"] = np.float64(epoch), dt.datetime(2026, 1, 1 + epoch)

    machine.run([Puts()])
    expected = machine.model.history.history
    callbacks = [Puts(), BackupAndRestore(tmp_path / "backup", save_freq=1)]
    with pytest.warns(UserWarning, match="A hook has put when into the logs, which is no number"):
        machine.cut_at(15, callbacks)
    machine.run(callbacks)
    history = machine.model.history.history
    assert json.dumps(history["f1"]) == json.dumps(expected["f1"])
    assert history["when"] == [None, *expected["when"][1:]]


def test_a_tensorboard_whose_fit_fails_is_not_the_default_writer_any_more(
    tiny: Any, tmp_path: Any
) -> None:
    """Keras leaves its writer in `on_train_end`, which is not called then."""

    def fail(batch: int, logs: Any) -> None:
        raise ZeroDivisionError

    board = keras.callbacks.TensorBoard(tmp_path / "keras", update_freq=2)
    with pytest.raises(ZeroDivisionError):
        kfit.fit(
            tiny.model(),
            *tiny.data(20),
            strategy="one_device",
            verbose=0,
            callbacks=[board, keras.callbacks.LambdaCallback(on_train_batch_end=fail)],
        )
    with tf.summary.create_file_writer(str(tmp_path / "own")).as_default(step=1):
        assert tf.summary.scalar("own", 1.0)
