"""What takes whose place when a model is saved, and what stays."""

import os
from pathlib import Path
from typing import Any

import pytest

import kfit.saving
from kfit.user_files import replacement
from kfit.user_files.ownership import ForeignFileError

MODEL, WEIGHTS = b"PK\x03\x04 new", b"\x89HDF\r\n\x1a\n new"
SAVED_MODEL = {
    "saved_model.pb": b"\x0a\x09vocab.txt",
    "fingerprint.pb": b"1",
    "variables/variables.index": b"1",
    "variables/variables.data-00000-of-00001": b"1",
    "assets/vocab.txt": b"a b c",
}


def lay(folder: Path, files: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def tree(folder: Path) -> dict[str, Any]:
    """What is in a folder: contents of files, targets of links, None for folders."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        is_link, name = path.is_symlink(), str(path.relative_to(folder))
        found[name] = os.readlink(path) if is_link else None if path.is_dir() else path.read_bytes()
    return found


def save_file(path: Path, content: bytes = MODEL) -> None:
    with kfit.saving.write_path(path, "filepath") as aside:
        Path(aside).write_bytes(content)


def save_directory(path: Path, files: Any = None) -> None:
    with kfit.saving.write_path(path, "filepath") as aside:
        lay(Path(aside), {**SAVED_MODEL, "saved_model.pb": b"new"} if files is None else files)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_saved_model_takes_the_place_of_one(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(replacement, "_exchange", lambda *paths: False)
    lay(tmp_path / "served", SAVED_MODEL)
    (tmp_path / "empty").mkdir()
    for name in ("served", "empty", "new"):
        save_directory(tmp_path / name)
        assert (tmp_path / name / "saved_model.pb").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["empty", "new", "served"]


def test_a_directory_of_ones_own_takes_the_place_of_its_like(tmp_path: Path) -> None:
    files = {"a.txt": b"1", "deep/b.txt": b"2"}
    save_directory(tmp_path / "mine", files)
    save_directory(tmp_path / "mine", {**files, "c.txt": b"3"})
    assert (tmp_path / "mine" / "c.txt").exists()
    before = tree(tmp_path)
    with pytest.raises(ForeignFileError, match=r"holds 'c.txt'"):
        save_directory(tmp_path / "mine", files)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "foreign",
    [
        "thesis.tex",
        "1/saved_model.pb",
        "variables/notes.txt",
        "variables/deep/variables.index",
        "assets/not-an-asset.txt",
        "assets.extra/a.txt",
        "debug/a.txt",
        "saved_model.pbtxt",
    ],
)
def test_a_saved_model_with_something_else_in_it_stays(tmp_path: Path, foreign: str) -> None:
    lay(tmp_path / "served", {**SAVED_MODEL, foreign: b"mine"})
    before = tree(tmp_path)
    with pytest.raises(ForeignFileError, match=r"`filepath` must be .* a directory that holds"):
        save_directory(tmp_path / "served")
    assert tree(tmp_path) == before


def test_a_link_within_a_saved_model_stays(tmp_path: Path) -> None:
    lay(tmp_path / "elsewhere", {"variables.index": b"mine"})
    lay(tmp_path / "served", {"saved_model.pb": b"1"})
    (tmp_path / "served" / "variables").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    with pytest.raises(ForeignFileError, match="holds 'variables'"):
        save_directory(tmp_path / "served", {"saved_model.pb": b"2"})
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["directory", "link", "dangling", "pipe", "text", "read-only"])
def test_what_is_no_models_file_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.keras"
    (tmp_path / "else.keras").write_bytes(MODEL)
    if kind == "directory":
        lay(path, {"thesis.tex": b"mine"})
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("link", "dangling"):
        path.symlink_to(tmp_path / ("else.keras" if kind == "link" else "nowhere"))
    else:
        path.write_bytes(b"mine" if kind == "text" else MODEL)
        path.chmod(0o444 if kind == "read-only" else 0o644)
    before = os.lstat(path)
    with pytest.raises(ForeignFileError, match="`filepath` must be a path where nothing is lost"):
        save_file(path)
    assert os.lstat(path).st_ino == before.st_ino
    assert sorted(os.listdir(tmp_path)) == ["else.keras", "m.keras"]


@pytest.mark.parametrize(
    ("name", "old"), [("m.keras", MODEL), ("m.weights.h5", WEIGHTS), ("m.h5", b""), ("m.csv", b"x")]
)
def test_a_file_takes_the_place_of_its_like(tmp_path: Path, name: str, old: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(old)
    os.link(path, tmp_path / "other name")
    save_file(path, b"new")
    assert path.read_bytes() == b"new"
    # What has another name keeps its content there.
    assert (tmp_path / "other name").read_bytes() == old


def test_a_directory_takes_no_files_place(tmp_path: Path) -> None:
    (tmp_path / "served").write_text("mine")
    with pytest.raises(ForeignFileError, match="which is a file"):
        save_directory(tmp_path / "served")
    assert (tmp_path / "served").read_text() == "mine"


@pytest.mark.parametrize("which", [".", "..", "~", "~/.."])
def test_where_one_works_and_lives_stays(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it is a SavedModel, or empty."""
    for folder in (tmp_path / "a" / "work", tmp_path / "b" / "home"):
        lay(folder.parent, SAVED_MODEL)
        folder.mkdir()
    monkeypatch.chdir(tmp_path / "a" / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "b" / "home"))
    before = tree(tmp_path)
    for files in (None, {"a": b""}):
        with pytest.raises(ForeignFileError, match=r"(current|home) directory, or one above it"):
            save_directory(Path(os.path.expanduser(which)), files)
    assert tree(tmp_path) == before


def test_the_old_one_is_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path / "served", SAVED_MODEL)
    before = tree(tmp_path)
    monkeypatch.setattr(replacement, "_exchange", lambda *paths: False)
    rename = os.rename
    calls = iter([rename, None, rename])

    def fails_once(old: str, new: str) -> None:
        act = next(calls)
        if act is None:
            raise OSError("disk full")
        act(old, new)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(OSError, match="disk full"):
        save_directory(tmp_path / "served")
    assert tree(tmp_path) == before
