"""ModelCheckpoint: Keras' arguments and meaning; whole files; the best survives a restart."""

import os
import shutil
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore, ModelCheckpoint
from kfit.training.progress import Progress


@pytest.fixture(scope="module")
def machine(training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(2), validation_data=training.data(30))


@pytest.mark.long
def test_the_names_hold_the_epoch_and_the_logs(machine: Any, tmp_path: Any) -> None:
    path = tmp_path / "deep" / "{epoch:02d}-{val_loss:.4f}.keras"
    keras_path = str(tmp_path / "keras" / "{epoch:02d}-{val_loss:.4f}.keras")
    machine.run([ModelCheckpoint(path), keras.callbacks.ModelCheckpoint(keras_path)])
    names = sorted(os.listdir(tmp_path / "deep"))
    assert names == sorted(os.listdir(tmp_path / "keras"))
    assert len(names) == 4
    loaded = keras.models.load_model(tmp_path / "deep" / names[-1])
    x, _ = machine.trainer.model, None
    for mine, kept in zip(loaded.weights, x.weights, strict=True):
        np.testing.assert_array_equal(mine.numpy(), kept.numpy())
    # With the state of the optimizer, and in plain Keras.
    assert int(loaded.optimizer.iterations) == 28
    assert type(loaded) is keras.Sequential


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "min", "max"])
def test_the_best_only(machine: Any, tmp_path: Any, mode: str) -> None:
    options = {"monitor": "val_loss", "mode": mode, "save_best_only": True}
    for name, kind in (("kfit", ModelCheckpoint), ("keras", keras.callbacks.ModelCheckpoint)):
        path = str(tmp_path / name / "{epoch}.weights.h5")
        machine.run([kind(path, save_weights_only=True, **options)])
    assert os.listdir(tmp_path / "kfit") == os.listdir(tmp_path / "keras")


def test_where_the_chief_writes_the_others_make_no_directory(
    tiny: Any, training: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks that make the same directory at a time would fail; each keeps the best value."""
    path = str(tmp_path / "keras" / "{epoch}.weights.h5")
    options: Any = {"save_weights_only": True, "save_best_only": True, "monitor": "loss"}
    callback = keras.callbacks.ModelCheckpoint(path, **options)
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    monkeypatch.setattr(type(trainer._strategy), "is_chief", False)
    logs = trainer.fit(*training.data(20), epochs=2, verbose=0, callbacks=[callback]).history
    assert os.listdir(tmp_path) == []
    assert callback.best == min(logs["loss"])


def test_at_steps_whatever_the_execution(machine: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "{step}-{epoch}-{batch}.keras")
    machine.run([ModelCheckpoint(path, save_freq=10, max_to_keep=2)])
    assert sorted(os.listdir(tmp_path)) == ["10-2-3.keras", "20-3-6.keras"]
    loaded = keras.models.load_model(tmp_path / "20-3-6.keras")
    assert int(loaded.optimizer.iterations) == 20


@pytest.mark.long
def test_a_copy_of_a_run_leaves_the_first_one_alone(machine: Any, tmp_path: Any) -> None:
    """After `cp -r run1 run2` training goes on in run2, and deletes there alone."""

    def callbacks(run: str) -> Any:
        path = tmp_path / run / "files" / "{step}-{loss:.2f}.keras"
        saving = ModelCheckpoint(path, save_freq=2, max_to_keep=2)
        return [saving, BackupAndRestore(tmp_path / run / "backup", save_freq=2)]

    machine.cut_at(7, callbacks("run1"))
    shutil.copytree(tmp_path / "run1", tmp_path / "run2")
    before = {p: p.read_bytes() for p in (tmp_path / "run1").rglob("*") if p.is_file()}
    kept = sorted(os.listdir(tmp_path / "run2" / "files"))
    assert [name.split("-")[0] for name in kept] == ["4", "6"]
    machine.cut_at(3, callbacks("run2"))
    names = os.listdir(tmp_path / "run2" / "files")
    assert sorted(name.split("-")[0] for name in names) == ["6", "8"]
    assert {p: p.read_bytes() for p in (tmp_path / "run1").rglob("*") if p.is_file()} == before


def test_files_that_were_deleted_long_ago_do_not_count(tmp_path: Any) -> None:
    """A program that is run again gets the state of its first `fit`, then that of the second."""
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}.keras", max_to_keep=2)
    (tmp_path / "4.keras").touch()
    for saved in (["1.keras", "2.keras"], ["3.keras"]):
        checkpoint.load_state_dict({"best": None, "saved": saved, "saved_step": 0})
    assert checkpoint.state_dict()["saved"] == ["3.keras"]
    # After a rollback, what was saved later is still there.
    checkpoint._forget(str(tmp_path / "4.keras"))
    checkpoint.load_state_dict({"best": None, "saved": ["3.keras"], "saved_step": 0})
    assert checkpoint.state_dict()["saved"] == ["3.keras", "4.keras"]


def test_names_that_a_snapshot_made_up(tmp_path: Any) -> None:
    """What is not of the template is forgotten, and stays."""
    path = tmp_path / "run" / "{epoch}.keras"
    path.parent.mkdir()
    outside = tmp_path / "1.keras"
    outside.write_bytes(b"PK\x03\x04")
    checkpoint = ModelCheckpoint(path, max_to_keep=1)
    saved = [str(outside), "../1.keras", "notes.keras", "1.keras"]
    checkpoint.load_state_dict({"best": None, "saved": saved, "saved_step": 0})
    assert checkpoint.state_dict()["saved"] == ["1.keras"]
    checkpoint._forget(str(path).format(epoch=2))
    assert outside.exists()


@pytest.mark.long
def test_the_best_value_survives_a_restart(machine: Any, training: Any, tmp_path: Any) -> None:
    """A worse model does not take the place of the best."""

    def best() -> Any:
        return ModelCheckpoint(
            tmp_path / "best.weights.h5",
            monitor="val_accuracy",
            mode="min",
            initial_value_threshold=-1.0,
            save_best_only=True,
            save_weights_only=True,
        )

    machine.run([best()])
    assert not (tmp_path / "best.weights.h5").exists()

    def highest() -> Any:  # the loss falls, so the first epoch stays the best
        path = tmp_path / "best.weights.h5"
        return ModelCheckpoint(path, mode="max", save_best_only=True, save_weights_only=True)

    first, again = highest(), highest()
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    machine.cut_at(16, [first, backup])
    saved = (tmp_path / "best.weights.h5").read_bytes()
    machine.run([again, backup], epochs=3)
    assert first.best is not None
    assert again.best == first.best
    assert (tmp_path / "best.weights.h5").read_bytes() == saved


def test_a_value_that_is_no_number_is_never_the_best(tiny: Any, tmp_path: Any) -> None:
    x, y = tiny.data(20)
    x[3] = np.nan
    model = tiny.model()
    checkpoint = ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    with pytest.warns(UserWarning, match=r"loss is (nan|inf); the model is not saved"):
        kfit.fit(model, x, y, epochs=2, verbose=0, callbacks=[checkpoint], strategy="one_device")
    assert os.listdir(tmp_path) == []


def test_epochs_without_a_validation_are_left_out(tiny: Any, tmp_path: Any) -> None:
    (x, y), model = tiny.data(20), tiny.model()
    path = tmp_path / "{epoch}-{val_loss:.3f}.keras"
    best = ModelCheckpoint(path, save_best_only=True)
    how = {"validation_freq": 2, "epochs": 3, "verbose": 0, "callbacks": [best]}
    kfit.fit(model, x, y, validation_data=(x, y), strategy="one_device", **how)
    assert [name[0] for name in os.listdir(tmp_path)] == ["2"]
    with pytest.raises(ValueError, match="`filepath` may have only these fields"):
        kfit.fit(model, x, y, strategy="one_device", **how)
    with pytest.warns(UserWarning, match="val_loss is not in the logs of this epoch"):
        model.fit(x, y, validation_data=(x, y), **how)


@pytest.mark.long
def test_it_saves_at_its_steps_if_it_comes_later(machine: Any, tmp_path: Any) -> None:
    """A training resumes at step 6 with a callback that it did not have before."""
    backup = tmp_path / "backup"
    machine.cut_at(7, [BackupAndRestore(backup, save_freq=6)])
    new = ModelCheckpoint(tmp_path / "{step}.keras", save_freq=4)
    machine.run([new, BackupAndRestore(backup, save_freq=6)], epochs=2)
    saved = sorted(int(path.stem) for path in tmp_path.glob("*.keras"))
    assert saved == [8, 12]


@pytest.mark.long
def test_it_says_what_it_saves(machine: Any, tmp_path: Any, capsys: Any) -> None:
    options = {"monitor": "loss", "save_best_only": True, "verbose": 1}
    machine.run([ModelCheckpoint(tmp_path / "best.keras", **options)], epochs=2)
    out = capsys.readouterr().out
    assert "Epoch 1: loss improved from None to" in out
    assert "best.keras" in out


def test_it_works_under_keras(tiny: Any, tmp_path: Any) -> None:
    x, y = tiny.data(20)
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}.keras")
    tiny.model().fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
    assert sorted(os.listdir(tmp_path)) == ["1.keras", "2.keras"]
    with pytest.raises(ValueError, match="`save_freq` must be 'epoch' under keras"):
        tiny.model().fit(
            x, y, verbose=0, callbacks=[ModelCheckpoint(tmp_path / "a.keras", save_freq=2)]
        )


def test_it_forgets_a_fit_of_kfit_when_keras_trains_next(tiny: Any, tmp_path: Any) -> None:
    x, y = tiny.data(20)
    checkpoint, model = ModelCheckpoint(tmp_path / "a.keras", save_freq=2), tiny.model()
    kfit.fit(model, x, y, verbose=0, callbacks=[checkpoint], strategy="one_device")
    with pytest.raises(ValueError, match="`save_freq` must be 'epoch' under keras"):
        model.fit(x, y, verbose=0, callbacks=[checkpoint])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"filepath": "model"}, "`filepath` must end in '.keras'"),
        ({"filepath": "m.weights.h5"}, "`filepath` must end in '.keras'"),
        ({"save_weights_only": True}, "`filepath` must end in '.weights.h5'"),
        ({"save_freq": 0}, "`save_freq` must be"),
        ({"save_freq": True}, "`save_freq` must be"),
        ({"max_to_keep": 0}, "`max_to_keep` must be"),
        ({"mode": "best"}, "`mode` must be"),
    ],
)
def test_wrong_arguments(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ModelCheckpoint(**{"filepath": "m.keras", **arguments})


def test_names_that_are_not_in_the_logs(machine: Any, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="`filepath` may have only these fields"):
        machine.run([ModelCheckpoint(tmp_path / "{val_auc}.keras")])
    with pytest.raises(ValueError, match="`monitor` must name a number in the logs"):
        machine.run([ModelCheckpoint(tmp_path / "a.keras", "val_auc", save_best_only=True)])


@pytest.mark.parametrize("is_chief", [False, True])
def test_only_the_chief_prints_and_writes(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], tiny: Any, is_chief: bool
) -> None:
    callback = ModelCheckpoint(tmp_path / "model.keras", verbose=1, save_freq=2)
    callback.set_model(tiny.model())
    callback.training = SimpleNamespace(
        is_chief=is_chief, logs={"loss": 1.0}, progress=Progress(0, 2, 2)
    )
    callback.on_due()
    assert ("saving" in capsys.readouterr().out) == is_chief
    assert (tmp_path / "model.keras").exists() == is_chief


@pytest.mark.parametrize("options", [{"save_freq": True}, {"max_to_keep": True}, {"save_freq": 0}])
def test_what_is_no_number_of_steps_or_files_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
        ModelCheckpoint("model.keras", **options)
