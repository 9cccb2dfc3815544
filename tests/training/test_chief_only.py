"""What tasks that are not the chief leave out, and that calls within calls leave it out as well."""

import copy
import warnings
from pathlib import Path
from typing import Any

import keras
import pytest

import kfit
from kfit.callbacks import chief_only
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
