"""Every task gets a path to write to; the chief's appears at once and whole."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import kfit
from kfit import saving

OLD = b"PK\x03\x04 and what else is in a model's file"

WORKER_1 = json.dumps(
    {
        "cluster": {"worker": ["localhost:12345", "localhost:12346"]},
        "task": {"type": "worker", "index": 1},
    }
)


def test_a_file_takes_the_place_of_the_old_one(tmp_path: Any, tiny: Any) -> None:
    path = tmp_path / "new" / "model.keras"
    for seed in (1, 2):
        with kfit.saving.write_path(path) as aside:
            assert os.path.dirname(aside) == str(path.parent)
            tiny.model(seed).save(aside)
        loaded = keras.models.load_model(path)
        assert tiny.distance(loaded, tiny.model(seed)) == 0
        assert os.listdir(path.parent) == ["model.keras"]


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path: Any, tiny: Any) -> None:
    path = tmp_path / f"{'n' * 240}.weights.h5"
    with kfit.saving.write_path(path) as aside:
        tiny.model().save_weights(aside)
    assert os.listdir(tmp_path) == [path.name]


def test_a_private_model_stays_private(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "model.keras", tmp_path / "saved"
    path.write_bytes(OLD)
    path.chmod(0o600)
    with saving.write_path(path) as aside:
        tiny.model().save(aside)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    monkeypatch.setenv("TF_CONFIG", WORKER_1)
    with kfit.install("one_device"):
        tiny.model().save(path)
    assert path.stat().st_mode & 0o777 == 0o640
    monkeypatch.delenv("TF_CONFIG")
    folder.mkdir(0o700)
    for content in ("old", "new"):
        with saving.write_path(folder) as aside:
            os.mkdir(aside)
            Path(aside, "a").write_text(content)
    assert (folder.stat().st_mode & 0o777, (folder / "a").read_text()) == (0o700, "new")


def test_when_saving_fails_the_old_one_stays(tmp_path: Any) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(OLD)

    def fail() -> None:
        with kfit.saving.write_path(path) as aside, open(aside, "w") as file:
            file.write("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["model.keras"]


@pytest.mark.long
def test_a_directory_takes_the_place_of_the_old_one(tmp_path: Any, tiny: Any) -> None:
    for seed in (1, 2):
        with kfit.saving.write_path(tmp_path / "served") as aside:
            tiny.model(seed).export(aside, verbose=False)
        assert os.listdir(tmp_path) == ["served"]
    x, _ = tiny.data(5)
    served = tf.saved_model.load(str(tmp_path / "served"))
    assert tiny.distance([served.serve(x)], [tiny.model(2)(x)]) < 1e-6


def test_tasks_that_are_not_the_chief_write_elsewhere(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", WORKER_1)
    assert not kfit.saving.is_chief()
    with kfit.saving.write_path(tmp_path / "model.keras") as aside:
        assert aside.endswith("model.keras")
        with open(aside, "w") as file:
            file.write("not for anybody")
    assert not os.path.exists(aside)
    assert os.listdir(tmp_path) == []


def test_a_directory_for_a_checkpoint_manager(tmp_path: Any) -> None:
    program = """
        import os, sys
        import kfit
        directory = kfit.saving.write_directory(sys.argv[1])
        open(os.path.join(directory, "checkpoint"), "w").close()
        if os.fork() == 0:
            sys.exit()  # a forked process leaves the directory to the other one
        os.wait()
        assert os.listdir(directory) == ["checkpoint"]
        print(directory)
    """
    run = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    chief = WORKER_1.replace('"index": 1', '"index": 0')
    for config, at in ((WORKER_1, None), (chief, str(tmp_path))):
        done = subprocess.run(
            run, capture_output=True, text=True, check=True, env={**os.environ, "TF_CONFIG": config}
        )
        directory = done.stdout.strip()
        assert (directory == str(tmp_path)) == (at is not None)
        assert os.path.exists(directory) == (at is not None)
    assert os.listdir(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("is_chief", [True, False])
def test_an_error_names_the_users_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chief: bool
) -> None:
    monkeypatch.setattr(saving, "is_chief", lambda: is_chief)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    path = str(tmp_path / "digits")
    with pytest.raises(ValueError, match="Invalid filepath extension") as caught:
        save_by(path, model.save)
    assert caught.value.args[0].endswith(f"Received: filepath={path}.")

    with pytest.raises(FileNotFoundError) as missing:
        save_by(path, os.listdir)
    assert missing.value.filename == path


def save_by(path: str, save: Callable[[str], Any]) -> None:
    with saving.write_path(path) as aside:
        save(aside)


@pytest.mark.parametrize("name", ["save", "save_weights"])
def test_a_program_that_saves_on_each_task_leaves_one_whole_file(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", WORKER_1)
    model, written = tiny.model(), []
    path = tmp_path / ("model.keras" if name == "save" else "model.weights.h5")
    own = getattr(keras.Model, name)

    def noting(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        written.append(Path(filepath))
        own(model, filepath, *args, **kwargs)

    monkeypatch.setattr(keras.Model, name, noting)
    with kfit.install("one_device"):
        getattr(model, name)(path)
        getattr(model, name)(str(path))
        with pytest.raises(OSError, match=r"/none/model\.|none"):
            getattr(model, name)(tmp_path / "none" / path.name)
    getattr(model, name)(path)
    assert [each.parent for each in written] == [tmp_path, tmp_path, tmp_path / "none", tmp_path]
    assert [each.name == path.name for each in written] == [False, False, False, True]
    assert list(tmp_path.iterdir()) == [path]
