"""`kfit inspect` verifies what it tells."""

import json
import subprocess
import sys
from typing import Any

import pytest

from kfit.callbacks import BackupAndRestore
from kfit.checkpoint.store import Store


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
    assert "mirrored, 2 replicas on 1 workers" in done.stdout
    assert "examples 40, global batch size 10, steps an epoch 4" in done.stdout
    assert "model     4 variables, 0.3 kB" in done.stdout
    assert "callbacks History" in done.stdout


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


@pytest.mark.parametrize("directory", ["missing", "."])
def test_what_holds_no_snapshot(directory: str, tmp_path: Any) -> None:
    done = inspect(str(tmp_path / directory))
    assert done.returncode == 2
    assert "`directory` is" in done.stderr
