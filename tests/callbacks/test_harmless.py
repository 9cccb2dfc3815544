"""Files of others lie wherever kfit writes; whatever it does, each is there after it, bit for bit.

The seeds are new in each run and in the message of what fails; `KFIT_HARMLESS_SEED` sets the first.
"""

import contextlib
import os
import random
import stat
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore, Export, ModelCheckpoint, RollBack, SaveModel
from kfit.checkpoint.files import Files
from kfit.checkpoint.lock import DirectoryLock
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.store import NoGoodSnapshotError, Store

SEED = int(os.environ.get("KFIT_HARMLESS_SEED", random.randrange(1 << 32)))
NAMES = (
    *("lock", "tmp-results", "trash-can", "tmp-", "trash-", "kfit-tmp-1", "kfit-trash-notes"),
    *("manifest.json", "state.json", "arrays.h5", "g0001-notes", "g1-2-step-3", "step-1.txt"),
    *(".tmp-model.keras", ".kfit-tmp-model.keras", "1.weights.h5.bak", "notes.weights.h5"),
    *("best-of-mine.keras", "log.csv.old", "evaluations.csv", "events.out.tfevents.1.host.2.3.v2"),
    *(f"events.out.tfevents.9.host.2.kfit-{'0' * 32}.v2", "memory.json.bak", "ended.txt", "notes"),
)
KINDS = ("file", "read-only", "folder", "link to a file", "link to a folder", "link", "hard link")


class Foreign:
    """What others have, and how it was.

    Args:
        draw: Draws names and kinds.
        outside: A folder where nobody of kfit's has business; links lead there.
    """

    def __init__(self, draw: random.Random, outside: Path) -> None:
        self._draw, self._outside = draw, outside
        self._were: dict[Path, Any] = {}
        (outside / "folder").mkdir(parents=True)
        for name in ("file", "folder/arrays.h5", "folder/1.weights.h5", "folder/thesis.tex"):
            (outside / name).write_bytes(draw.randbytes(30))
        self._remember(outside)

    def lay(self, folder: Path, count: int, names: Any = NAMES) -> None:
        """Lays some into a folder, where nothing has the name yet."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self._draw.sample(names, min(count, len(names))):
            path = folder / name
            if not os.path.lexists(path):
                self._make(path, self._draw.choice(KINDS))
                self._remember(path)

    def link(self, folder: Path, count: int) -> None:
        """Gives some of the files in a folder and below another name, as `cp -l` does."""
        files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
        for path in self._draw.sample(files, min(count, len(files))):
            other = self._outside / f"{uuid.uuid4().hex} {path.name}"
            os.link(path, other)
            self._remember(other)

    def check(self) -> None:
        """Each is where it was, and as it was."""
        for path, was in self._were.items():
            assert _look(path) == was, f"{path}, seed {SEED}"

    def _make(self, path: Path, kind: str) -> None:
        if kind == "folder":
            path.mkdir()
            for name in ("thesis.tex", *self._draw.sample(NAMES, 2)):
                (path / name).write_bytes(self._draw.randbytes(20))
        elif kind == "hard link":
            os.link(self._outside / "file", path)
            self._remember(self._outside)
        elif kind.startswith("link"):
            path.symlink_to(self._outside / (kind.removeprefix("link to a ") or "nowhere"))
        else:
            path.write_bytes(self._draw.randbytes(20))
            path.chmod(0o400 if kind == "read-only" else 0o644)

    def _remember(self, path: Path) -> None:
        for one in (path, *(path.rglob("*") if not path.is_symlink() else ())):
            self._were[one] = _look(one)


def _look(path: Path) -> Any:
    """What is at a path itself: which file, its type and rights, and what is in it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    content: Any = None
    if stat.S_ISLNK(found.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(found.st_mode):
        content = path.read_bytes()
    return found.st_ino, found.st_mode, content


class _DiedError(BaseException):
    """The process was killed."""


class _Mortal(Files):
    """The file system of a process that is killed at some operation."""

    def __init__(self, left: int) -> None:
        self._left = left

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "make_directory", "rename", "remove", "remove_directory"):
            self._left -= 1
            if self._left < 0:
                raise _DiedError
        return super().__getattribute__(name)


def _live(backup: Path, draw: random.Random) -> None:
    """A process that saves into a directory, and is killed somewhere or comes to its end."""
    lock = DirectoryLock(str(backup), {})
    store = Store(str(backup), files=_Mortal(draw.choice((5, 20, 60, 1000))))
    store.lock_count = max(store.lock_count, lock.lock_count)
    try:
        store.sweep()
        store.probe()
        with contextlib.suppress(NoGoodSnapshotError):
            store.newest()
        for step in range(draw.randrange(5)):
            store.save(Snapshot({"step": step}, {"variables": [np.full(9, step)]}))
        if draw.random() < 0.3:
            store.clear()
            lock.remove()
    finally:
        lock.release()


def test_a_directory_of_snapshots(tmp_path: Path) -> None:
    """Saves, kills, sweeps, prunes and clears, with files of others in every folder."""
    left_overs = 0
    for number in range(8):
        draw = random.Random(SEED + number)
        backup = tmp_path / str(number) / "backup"
        foreign = Foreign(draw, tmp_path / str(number) / "outside")
        names = (*NAMES, "g0001-00000002-step-7", f"kfit-tmp-{uuid.uuid4().hex}")
        for _ in range(8):
            foreign.lay(backup, 4, names if draw.random() < 0.5 else NAMES)
            for folder in backup.iterdir():
                is_kfits = folder.name.startswith(("g0", "kfit-")) and not folder.is_symlink()
                if is_kfits and folder.is_dir() and draw.random() < 0.3:
                    foreign.lay(folder, 1, [name for name in NAMES if "." not in name])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with contextlib.suppress(_DiedError):
                    _live(backup, draw)
            foreign.link(backup, 2)
            left_overs += len(list(backup.glob("kfit-*-*")))
            foreign.check()
    assert left_overs > 0  # some were killed at the right moment


def _callbacks() -> list[Any]:
    return [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.TensorBoard("logs"),
        ModelCheckpoint(
            "files/{step}.weights.h5", save_weights_only=True, save_freq=2, max_to_keep=2
        ),
        RollBack(),
        BackupAndRestore("backup", save_freq=3),
        SaveModel("model.keras"),
        Export("serving/1"),
    ]


@contextlib.contextmanager
def _laid(foreign: Foreign, run: Path, count: int) -> Iterator[None]:
    """Within it files of others lie in every folder that the callbacks write to."""
    for name in ("", "backup", "files", "logs", "logs/train", "logs/validation", "serving"):
        foreign.lay(run / name, count)
    oldest, *others = sorted((run / "backup").glob("g0*-step-*")) or [None]
    if oldest and others:  # it counts as damaged then
        foreign.lay(oldest, 1, ["notes.txt", "link"])
    foreign.link(run, 12)
    yield
    foreign.check()


@pytest.mark.long
@pytest.mark.parametrize("number", range(2))
def test_every_callback(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A training that is cut off, goes on, is done once more, and is refused in the end."""
    draw = random.Random(SEED + number)
    foreign, run = Foreign(draw, tmp_path / "outside"), tmp_path / "run"
    run.mkdir()
    monkeypatch.chdir(run)
    monkeypatch.setattr(warnings, "warn", lambda *args, **kwargs: None)
    machine = training.Machine(kfit.distribute.OneDevice(), validation_data=training.data(20))
    with _laid(foreign, run, 6):
        machine.cut_at(draw.randrange(4, 20), _callbacks())
    with _laid(foreign, run, 3):
        machine.run(_callbacks())
    with _laid(foreign, run, 3):
        machine.run(_callbacks(), epochs=1)
    assert (run / "serving/1/saved_model.pb").exists()
    assert keras.models.load_model("model.keras")
    foreign.lay(run / "serving/1", 3)
    foreign.lay(run / "serving/1/variables", 3)
    with pytest.raises(ValueError, match="`filepath` must be a path where nothing is lost"):
        machine.run(_callbacks())
    foreign.check()


@pytest.mark.long
def test_training_with_evaluations(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(SEED)
    foreign, job = Foreign(draw, tmp_path / "outside"), tmp_path / "job"
    monkeypatch.setattr(warnings, "warn", lambda *args, **kwargs: None)
    trainer = training.Machine(kfit.distribute.OneDevice()).trainer
    x, y = training.data()
    for epochs in (1, 2):
        for name in ("", "checkpoints", "eval", "export"):
            foreign.lay(job / name, 6)
            foreign.link(job / name, 2)
        outcome = kfit.train_and_evaluate(
            trainer,
            kfit.TrainSpec(
                model_dir=job, x=x, y=y, batch_size=8, epochs=epochs, save_freq=2, keep=2, verbose=0
            ),
            kfit.EvalSpec(x=x, y=y, batch_size=25, exporters=kfit.BestExporter(), verbose=0),
        )
        foreign.check()
    assert len(outcome.evaluations) > 2
    assert (job / "export/best.keras").exists()
