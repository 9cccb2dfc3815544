"""`kfit inspect` verifies what it tells."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfit.callbacks import BackupAndRestore
from kfit.checkpoint.lock import DirectoryLock
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.store import Store
from kfit.commands import inspected_snapshots, snapshot_weights
from kfit.commands.main import main
from tests.sweeps import sweep


@pytest.fixture(scope="module")
def backup(tiny: Any, tmp_path_factory: Any) -> Any:
    import kfit

    folder = tmp_path_factory.mktemp("inspected") / "backup"
    x, y = tiny.data(40)
    kept = BackupAndRestore(folder, save_freq=2, delete_checkpoint=False)
    kfit.Trainer(tiny.model(), tiny.strategy(2)).fit(
        x, y, batch_size=10, epochs=1, verbose=0, callbacks=[kept]
    )
    return folder


def inspect(*arguments: str) -> Any:
    command = [sys.executable, "-X", "importtime", "-m", "kfit", "inspect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_good_snapshots(backup: Any) -> None:
    done = inspect(str(backup))
    assert done.returncode == 0
    assert "tensorflow" not in done.stderr
    steps = [line.split()[:2] for line in done.stdout.splitlines()[:2]]
    assert [name.rsplit("-", 1)[1] for name, _ in steps] == ["4", "4"]
    assert {good for _, good in steps} == {"good"}
    assert "mirrored, 2 replicas on 1 worker\n" in done.stdout
    assert "examples 40, global batch size 10, steps an epoch 4" in done.stdout
    assert "model     4 variables, 268 bytes" in done.stdout
    assert "callbacks keras.callbacks.History" in done.stdout


def test_a_snapshot_says_whether_its_epoch_has_steps_left(backup: Any, capsys: Any) -> None:
    assert main(["inspect", str(backup)]) == 0
    last_step, end, *_ = capsys.readouterr().out.splitlines()
    assert "  step 4  epoch 1, after all 4 of its steps, before `on_epoch_end`  " in last_step
    assert "  step 4  at the end of epoch 1  " in end
    placed = {"epoch": 1, "step_in_epoch": 3, "data": {"steps an epoch": 4}}
    assert inspected_snapshots._place(placed) == "epoch 2, after 3 of its steps"


def test_a_directory_that_a_run_has_deleted_is_explained(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    for name, says in (("gone", "`delete_checkpoint=False`"), ("file", "is not a directory")):
        assert main(["inspect", str(tmp_path / name)]) == 2
        assert says in " ".join(capsys.readouterr().err.split())


def test_snapshots_one_level_down_are_found(backup: Any, tmp_path: Path, capsys: Any) -> None:
    os.symlink(backup, tmp_path / "backup")
    (tmp_path / "data").mkdir()
    assert main(["inspect", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.err == f"kfit: note: the snapshots are in {tmp_path / 'backup'}\n"
    os.symlink(backup, tmp_path / "other")
    assert main(["inspect", str(tmp_path)]) == 2
    assert f"expected one of '{tmp_path / 'backup'}', '" in capsys.readouterr().err


def test_snapshots_that_the_next_run_deletes(backup: Any, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(backup, tmp_path, dirs_exist_ok=True)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "has ended well" not in capsys.readouterr().out
    lock = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a"})
    lock.note_end("a")
    lock.release()
    assert main(["inspect", str(tmp_path)]) == 0
    assert (
        "\nThe run that saved them has ended well: the next run deletes" in capsys.readouterr().out
    )
    (tmp_path / ".kfit-ending").touch()  # another task may still fail
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["run_has_ended"]


def test_a_damaged_one_is_told_and_nothing_is_changed(backup: Any) -> None:
    name = Store(str(backup)).names()[0]
    path = backup / str(name) / "arrays.h5"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    before = sorted(backup.rglob("*"))
    done = inspect("--json", str(backup))
    assert done.returncode == 1
    first, second = json.loads(done.stdout)["snapshots"]
    assert "bytes; it was written with" in first["damage"]
    assert second["damage"] is None
    assert second["about"]["step"] == 4
    assert sorted(backup.rglob("*")) == before
    path.write_bytes(content)


@pytest.mark.long
def test_the_checksums_are_those_of_the_files(backup: Any) -> None:
    found = json.loads(inspect("--json", str(backup)).stdout)["snapshots"][-1]
    folder = backup / found["name"]
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    assert {file["name"]: file["sha256"] for file in found["files"]} == digests
    assert sum(file["bytes"] for file in found["files"]) == found["bytes"]
    for file in found["files"]:
        assert (folder / file["name"]).stat().st_size == file["bytes"]
    lines = inspect(str(backup)).stdout.splitlines()
    for name, digest in digests.items():
        [line] = [line.strip() for line in lines if digest in line]
        assert line.startswith(f"{digest}  {name}, ")


@pytest.mark.parametrize("directory", ["missing", "."])
def test_what_holds_no_snapshot(directory: str, tmp_path: Any) -> None:
    done = inspect(str(tmp_path / directory))
    assert done.returncode == 2
    assert "`directory` is" in done.stderr
    assert "deletes its snapshots when the program" in done.stderr
    assert ("which does not exist" in done.stderr) == (directory == "missing")


@pytest.fixture(scope="module")
def run_of_two(tiny: Any, tmp_path_factory: Any) -> Any:
    """A folder with the snapshots of steps 5 and 6 in `backup`, and the trained model."""
    import kfit

    folder = tmp_path_factory.mktemp("exported")
    x, y = tiny.data(60)
    kept = BackupAndRestore(folder / "backup", save_freq=5, delete_checkpoint=False)
    model = tiny.model(optimizer="adam")
    trainer = kfit.Trainer(model, "one_device")
    trainer.fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[kept])
    trainer.save(folder / "trained.keras")
    (folder / "script.py").write_text(SCRIPT)
    return folder, model


SCRIPT = """
import keras

def make():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
    )
    model.compile("adam", "mse")
    return model

def other():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

def needs_argument(units):
    return other()

def unbuilt():
    return keras.Sequential([keras.layers.Dense(3)])
"""


def here(capsys: Any, *words: Any) -> Any:
    """Runs `kfit inspect` in this process: TensorFlow is imported once for many calls."""
    from kfit.commands.main import main

    capsys.readouterr()
    code = main(["inspect", *map(str, words)])
    return code, *capsys.readouterr()


def test_a_snapshot_is_chosen_by_step_or_name(run_of_two: Any, capsys: Any) -> None:
    backup = run_of_two[0] / "backup"
    code, out, _ = here(capsys, backup, "--step", "5")
    assert code == 0
    [line, *_] = out.splitlines()
    name = line.split()[0]
    assert name.endswith("step-5")
    assert "step 5  epoch 1, after 5 of its steps" in line
    assert " s ago (" in line
    assert "sizes and SHA-256 checksums are those that were written" in out
    code, by_name, _ = here(capsys, backup, "--json", "--snapshot", name)
    assert [each["step"] for each in json.loads(by_name)["snapshots"]] == [5]
    code, _, err = here(capsys, backup, "--snapshot", "4")
    assert code == 2
    assert "`--snapshot` is '4'; the directory holds" in err


def test_weights_are_compared_layer_by_layer(run_of_two: Any, capsys: Any) -> None:
    folder, _ = run_of_two
    code, out, _ = here(capsys, folder / "backup", "--against", folder / "trained.keras")
    assert code == 0
    assert "equal to those of" in out
    assert "bit for bit" in out
    code, out, _ = here(capsys, folder / "backup", "--json", "--against", "5")
    layers = json.loads(out)["against"]["layers"]
    assert [layer["name"] for layer in layers] == ["sequential/dense", "sequential/dense (2)"]
    assert all(0 < layer["difference"] < 1 for layer in layers)


@pytest.mark.long
def test_tensorflow_says_nothing_when_it_is_imported(run_of_two: Any) -> None:
    folder, _ = run_of_two
    words = ["inspect", folder / "backup", "--against", folder / "trained.keras"]
    command = [sys.executable, "-m", "kfit", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bit for bit" in done.stdout


def test_states_of_random_generators_are_no_weights() -> None:
    names = ["dense/kernel", "dropout/seed_generator/seed_generator_state", "dense/kernel"]
    ours = [{"name": name, "value": np.ones(2)} for name in names]
    (one, two) = snapshot_weights._layers(ours, [np.ones(2), np.zeros(2), np.zeros(2)])
    assert (one["name"], one["difference"]) == ("dense", 0.0)
    assert (two["name"], two["difference"]) == ("dense (2)", 1.0)


@pytest.mark.long
def test_weights_that_are_no_numbers_differ(run_of_two: Any, tmp_path: Any, capsys: Any) -> None:
    import keras

    folder, trained = run_of_two
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        weights = trained.get_weights()
        weights[0][0, 0] = value
        made = keras.models.clone_model(trained)
        made.set_weights(weights)
        made.save(tmp_path / f"{name}.keras")
        _, out, _ = here(capsys, folder / "backup", "--against", tmp_path / f"{name}.keras")
        assert "bit for bit" not in out
        assert re.search(r"sequential/dense +inf +inf\n", out)
        _, out, _ = here(
            capsys, folder / "backup", "--json", "--against", tmp_path / f"{name}.keras"
        )
        layers = json.loads(out, parse_constant=pytest.fail)["against"]["layers"]
        assert [(each["equal"], each["difference"]) for each in layers] == [
            (False, None),
            (True, 0),
        ]


def test_what_is_equal_bit_for_bit() -> None:
    def layer(one: list[float], other: list[float]) -> Any:
        ours = [{"name": "dense/kernel", "value": np.array(one)}]
        [found] = snapshot_weights._layers(ours, [np.array(other)])
        return found["equal"], found["difference"]

    assert layer([np.nan, np.inf], [np.nan, np.inf]) == (True, 0.0)
    assert layer([0.0], [-0.0]) == (False, 0.0)
    zeros = [{"name": "dense", "equal": False, "difference": 0.0, "relative": 0.0}]
    [line] = snapshot_weights.as_lines({"with": "7", "layers": zeros})
    assert line.startswith("Its weights are equal to those of '7', though not bit for bit")
    assert layer([np.inf], [-np.inf]) == (False, np.inf)
    assert layer([np.nan], [1.0]) == (False, np.inf)


def test_a_difference_is_relative_to_the_largest_weight_of_the_layer() -> None:
    ours = [{"name": f"dense/{name}", "value": np.array([v])} for name, v in (("a", 8.0), ("b", 0))]
    [found] = snapshot_weights._layers(ours, [np.array([8.0]), np.array([2.0])])
    assert (found["difference"], found["relative"]) == (2.0, 0.25)


@pytest.mark.parametrize("architecture", sweep(["script.py:make", "trained.keras"]))
def test_a_model_is_exported(run_of_two: Any, architecture: str, tiny: Any, capsys: Any) -> None:
    import keras

    folder, trained = run_of_two
    target = folder / "out.keras"
    code, out, err = here(
        capsys, folder / "backup", "--json", "--export", target, "--model", folder / architecture
    )
    assert code == 0, err
    assert json.loads(out)["export"]["parts"] == ["model", "optimizer"]
    loaded = keras.saving.load_model(target)
    assert tiny.distance(loaded, trained) == 0.0
    assert int(loaded.optimizer.iterations) == 6
    target.unlink()


@pytest.mark.long
def test_a_model_is_exported_on_a_host_of_a_cluster(
    run_of_two: Any, capsys: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setenv("KFIT_WORKERS", "t-0.t:2222,t-1.t:2222")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    folder, target = run_of_two[0], tmp_path / "out.keras"
    words = ["--export", target, "--model", folder / "trained.keras"]
    code, out, err = here(capsys, folder / "backup", *words)
    assert code == 0, err
    assert f"Saved the model as {str(target)!r}" in out
    assert target.exists()
    assert "KFIT_CLUSTER" not in os.environ


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--export", "out.keras"], "`--export` needs `--model`"),
        (["--export", "out.h5", "--model", "a.keras"], "ends in .keras"),
        (["--export", "out.keras", "--model", "missing.keras"], "which is not a file"),
        (["--export", "out.keras", "--model", "script.py:other"], "other variables than"),
        (["--export", "out.keras", "--model", "script.py:unbuilt"], "must return a built"),
        (
            ["--export", "out.keras", "--model", "script.py:needs_argument"],
            "It raised TypeError: needs_argument() missing 1 required",
        ),
        (["--export", "out.keras", "--model", "script.py:none"], "defines no function 'none'"),
        (["--against", "script.keras"], "`--against` is 'script.keras', which is not a file"),
        (["--against", "script.py"], "`--against` is 'script.py'; expected a saved model"),
        (["--against", "7"], "`--against` is '7'; the directory holds"),
    ],
)
def test_what_cannot_be_exported(
    run_of_two: Any, words: list[str], says: str, capsys: Any, monkeypatch: Any
) -> None:
    folder, _ = run_of_two
    monkeypatch.chdir(folder)
    code, _, err = here(capsys, "backup", *words)
    assert code == 2
    assert says in err
    assert not (folder / "out.keras").exists()


def test_a_damaged_one_cannot_be_compared(run_of_two: Any, capsys: Any) -> None:
    """The good ones are named, unless there is none."""
    backup = run_of_two[0] / "backup"
    five, six = (str(name) for name in Store(str(backup)).names())
    kept = {name: (backup / name / "arrays.h5").read_bytes() for name in (five, six)}
    try:
        (backup / five / "arrays.h5").write_bytes(b"")
        words = [backup, "--snapshot", "5", "--against", "6"]
        code, _, err = here(capsys, *words)
        assert code == 2
        assert f"`--snapshot` is '5', a damaged snapshot: {five}: " in err
        assert err.rstrip().endswith(f"The good ones of the directory: {six} (step 6)")
        (backup / six / "arrays.h5").write_bytes(b"")
        assert "The good ones of the directory: none" in here(capsys, *words)[2]
        assert "all snapshots are damaged: " in here(capsys, backup, "--against", "6")[2]
    finally:
        for name, content in kept.items():
            (backup / name / "arrays.h5").write_bytes(content)


def test_a_model_without_a_use_is_told(run_of_two: Any, capsys: Any) -> None:
    code, _, err = here(capsys, run_of_two[0] / "backup", "--model", "script.py:make")
    assert code == 0
    assert "`--model` is not used" in err
    assert here(capsys, run_of_two[0] / "backup")[2] == ""


def test_text_of_files_is_printed_without_control_characters() -> None:
    from kfit.commands.inspected_snapshots import as_text

    snapshot = {"name": "g0001-00000001-step-1", "step": 1, "damage": "\x1b[2J gone"}
    assert "\x1b" not in as_text({"snapshots": [snapshot], "run_has_ended": False})


def test_a_time_that_is_no_number_is_damage() -> None:
    about = dict.fromkeys(inspected_snapshots._NEEDED, "") | {"data": {}, "versions": {}}
    numbers = ("step", "epoch", "step_in_epoch", "num_replicas", "num_workers")
    about |= dict.fromkeys(numbers, 1) | {"created": float("-inf")}
    with pytest.raises(DamagedSnapshotError, match=r"'created' is -inf"):
        inspected_snapshots._check(about)


@pytest.mark.long
def test_nobody_may_read_the_end_of_it(backup: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kfit", "inspect", str(backup)],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
