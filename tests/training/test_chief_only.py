"""What tasks that are not the chief leave out, and that calls within calls leave it out as well."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import chief_only
from kfit.checkpoint.callback_names import named
from kfit.internals.callbacks import ORBAX
from kfit.training.chief_only import saving_nothing, without_writers


def model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def saves(trained: Any, path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained.save(path)
        trained.save_weights(path.with_suffix(".weights.h5"))
    return path.exists() or path.with_suffix(".weights.h5").exists()


def test_a_call_within_a_call_saves_nothing_and_neither_does_what_follows_it(
    tmp_path: Path,
) -> None:
    trained = model()
    with saving_nothing(trained):
        with saving_nothing(trained):
            assert not saves(trained, tmp_path / "inner.keras")
        assert not saves(trained, tmp_path / "outer.keras")
    assert not {"save", "save_weights", "export"} & set(vars(trained))
    assert saves(trained, tmp_path / "after.keras")


def test_a_save_of_the_models_own_is_there_again() -> None:
    trained = model()
    object.__setattr__(trained, "save", lambda path: "own")
    with (
        saving_nothing(trained),
        pytest.warns(UserWarning, match=r"`model.save` in a hook .*`kfit.callbacks.chief_only\("),
    ):
        assert trained.save("nowhere") is None
    assert trained.save("nowhere") == "own"


def test_keras_callback_that_saves_is_not_warned_of(tmp_path: Path) -> None:
    trained, saver = model(), keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss")
    saver.set_model(trained)
    with saving_nothing(trained, [saver]), warnings.catch_warnings():
        warnings.simplefilter("error")
        saver.on_epoch_end(0, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def test_keras_callbacks_print_nothing_but_work() -> None:
    verbose = keras.callbacks.EarlyStopping(verbose=1)
    with saving_nothing(model(), [verbose]):
        assert verbose.verbose == 0
    assert verbose.verbose == 1


class Writes(keras.callbacks.Callback):
    """A callback of the user's that writes."""


class OfWandb(keras.callbacks.Callback):
    """A callback of a package that logs runs."""

    __module__ = "wandb.integration"


class LogsToWandb(OfWandb):
    """A callback of the user's that derives from one of such a package."""


def test_writers_are_left_out_where_the_task_is_not_the_chief(tmp_path: Path) -> None:
    stops = keras.callbacks.EarlyStopping()
    writers = [chief_only(Writes()), LogsToWandb(), keras.callbacks.CSVLogger(tmp_path / "log")]
    writers += [kind.__new__(kind) for kind in ORBAX]
    kept = Writes()
    assert without_writers([*writers, stops, kept]) == [stops, kept]


class Rows(keras.callbacks.CSVLogger):
    """A callback of the user's that adds to what Keras writes."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["twice"] = 2 * logs["loss"]
        super().on_epoch_end(epoch, logs)


class Images(keras.callbacks.TensorBoard):
    """Writes by the writer that Keras makes."""

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        with self._train_writer.as_default():
            tf.summary.scalar("drawn", 1.0, step=0)


class Named(keras.callbacks.TensorBoard):
    """Has no hooks of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "board")


class Restores(keras.callbacks.BackupAndRestore):
    """Has a hook of its own, which is called although the files are the chief's."""

    ended = 0

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)
        self.ended += 1


def play(callbacks: Any, trained: keras.Model) -> dict[str, float]:
    """Calls the hooks of one epoch of the callbacks that are kept; returns its logs."""
    history = keras.callbacks.History()
    if not trained.compiled:
        trained.compile("sgd", "mse")
    with saving_nothing(trained, callbacks):
        played = callbacks
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            played = keras.callbacks.CallbackList(without_writers(callbacks), model=trained)
        played.callbacks.append(history)
        history.set_model(trained)
        played.on_train_begin()
        played.on_epoch_begin(0)
        played.on_train_batch_begin(0)
        played.on_train_batch_end(0, {"loss": 1.5})
        played.on_epoch_end(0, {"loss": 1.5})
        played.on_train_end({"loss": 1.5})
    return {name: value for name, (value,) in history.history.items()}


def test_own_hooks_of_a_class_that_derives_from_a_writer_run_but_write_nothing(
    tmp_path: Path,
) -> None:
    rows, images = Rows(tmp_path / "rows.csv"), Images(tmp_path / "board", histogram_freq=1)
    for _ in range(2):  # also in a second `fit`
        assert play([rows, images, Named(tmp_path)], model()) == {"loss": 1.5, "twice": 3.0}
    assert not list(tmp_path.iterdir())
    assert [next(iter(named([each]))).name for each in (rows, images)] == ["Rows", "Images"]
    assert isinstance(rows, Rows)
    # On the chief they write.
    logs, chief = {"loss": 1.5}, Rows(tmp_path / "chief.csv")
    chief.on_train_begin()
    chief.on_epoch_end(0, logs)
    chief.on_train_end()
    assert (tmp_path / "chief.csv").read_text().startswith("epoch,loss,twice")


class Both(keras.callbacks.CSVLogger, keras.callbacks.TensorBoard):
    """Calls the hooks of both classes of Keras, and uses what they have set."""

    def __init__(self, folder: Path) -> None:
        keras.callbacks.CSVLogger.__init__(self, folder / "rows.csv", append=True)
        keras.callbacks.TensorBoard.__init__(self, folder / "board")

    def on_train_begin(self, logs: Any = None) -> None:
        keras.callbacks.CSVLogger.on_train_begin(self, logs)
        self.csv_file.write("# rows\n")
        keras.callbacks.TensorBoard.on_train_begin(self, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        keras.callbacks.CSVLogger.on_epoch_end(self, epoch, logs)
        keras.callbacks.TensorBoard.on_epoch_end(self, epoch, logs)
        with tf.summary.create_file_writer(self._train_dir).as_default():
            tf.summary.scalar("own", 1.0, step=epoch)
        self.csv_file.flush()
        self.rows = Path(self.filename).read_text().splitlines()


def test_hooks_find_what_those_of_keras_have_set(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("epoch,loss,val_loss\n0,2.5,NA\n")
    both = Both(tmp_path)
    play([both], model())
    assert both.rows == ["epoch,loss,val_loss", "0,2.5,NA", "# rows", "0,1.5,NA"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 2


def test_a_callback_is_its_own_after_a_call(tmp_path: Path) -> None:
    rows, trained = Rows(tmp_path / "rows.csv"), model()
    play([rows], trained)
    assert type(rows) is Rows
    assert Path(rows.filename) == tmp_path / "rows.csv"
    rows.csv_file = rows._model = None
    assert pickle.loads(pickle.dumps(rows)).filename == rows.filename


def test_a_callback_list_is_treated_like_a_list(tmp_path: Path) -> None:
    trained, kept = model(), Writes()
    board = keras.callbacks.TensorBoard(tmp_path / "board")
    made = [kept, keras.callbacks.CSVLogger(tmp_path / "log"), Images(tmp_path / "images")]
    given = keras.callbacks.CallbackList(made)
    given.callbacks.append(board)
    given.set_model(trained)
    before = sorted(tmp_path.rglob("*"))
    assert play(given, trained) == {"loss": 1.5}
    assert sorted(tmp_path.rglob("*")) == before
    assert given.callbacks[:4] == [*made, board]
    assert len(given.callbacks) == 5  # and the History that was added meanwhile


def test_a_writer_without_hooks_of_the_users_is_left_out(tmp_path: Path) -> None:
    assert without_writers([Named(tmp_path)]) == []


@pytest.mark.parametrize("kind", [keras.callbacks.BackupAndRestore, Restores])
def test_a_backup_of_keras_only_restores(tmp_path: Path, kind: Any) -> None:
    saved, restored = model(), model()
    for each in (saved, restored):
        each.compile("sgd", "mse")
    chief = kind(tmp_path / "backup")
    chief.set_model(saved)
    chief.on_epoch_end(2)
    files = {path: path.read_bytes() for path in (tmp_path / "backup").iterdir()}
    other = kind(tmp_path / "backup")
    play([other], restored)
    np.testing.assert_array_equal(restored.get_weights()[0], saved.get_weights()[0])
    assert {path: path.read_bytes() for path in (tmp_path / "backup").iterdir()} == files
    assert getattr(other, "ended", 1) == 1


def test_a_mark_stays_with_a_copy() -> None:
    assert not without_writers(copy.deepcopy(chief_only(Writes())))


def test_a_mark_is_for_callbacks_that_do_not_work_together(tmp_path: Path) -> None:
    no_callback: Any = "csv"
    with pytest.raises(ValueError, match=r"must be a keras\.callbacks\.Callback\. Received: 'csv'"):
        chief_only(no_callback)
    a_class: Any = Writes
    with pytest.raises(ValueError, match=r"Callback; pass an instance: Writes\(\)\. Received"):
        chief_only(a_class)
    with pytest.raises(ValueError, match=r"must not be a kfit\.callbacks\.TrainingCallback"):
        chief_only(kfit.callbacks.BackupAndRestore(tmp_path))
