"""The real file system, as snapshots use it: private, and never through a link."""

import os
import stat
from pathlib import Path

import pytest

from kfit.checkpoint.files import Files

FILES = Files()


def test_what_is_made_is_private_and_new(tmp_path: Path) -> None:
    folder = str(tmp_path / "folder")
    FILES.make_directory(folder)
    with FILES.create(f"{folder}/b") as file:
        file.write(b"four")
        FILES.sync(file)
        FILES.pass_on(file)
    FILES.create(f"{folder}/a").close()
    FILES.sync_directory(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{folder}/b").st_mode) == 0o600
    assert FILES.list(folder) == ["a", "b"]
    assert FILES.size(f"{folder}/b") == 4
    with FILES.open(f"{folder}/b") as file:
        assert file.read() == b"four"
    with pytest.raises(FileExistsError):
        FILES.create(f"{folder}/b")
    with pytest.raises(FileExistsError):
        FILES.make_directory(folder)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("mine")
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.symlink_to(tmp_path / "mine")
    file.symlink_to(tmp_path / "mine" / "thesis")
    for attempt in (
        lambda: FILES.open(str(file)),
        lambda: FILES.create(str(file)),
        lambda: FILES.list(str(folder)),
        lambda: FILES.sync_directory(str(folder)),
        lambda: FILES.remove(str(folder / "thesis")),
        lambda: FILES.create(str(folder / "new")),
        lambda: FILES.rename(str(folder / "thesis"), str(tmp_path / "taken")),
        lambda: FILES.remove_directory(str(folder)),
    ):
        with pytest.raises(OSError):  # noqa: PT011  the system's words differ
            attempt()
    assert not FILES.is_directory(str(folder))
    assert not FILES.is_file(str(file))
    FILES.remove(str(file))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis"]
    assert FILES.resolve(str(folder)) == os.path.realpath(tmp_path / "mine")


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError):  # noqa: PT011  and nothing waits for a writer
            FILES.open(str(tmp_path / name))
    assert not FILES.is_file(str(tmp_path / "pipe"))
    assert not FILES.is_file(str(tmp_path / "none"))
    assert not FILES.is_directory(str(tmp_path / "pipe" / "none"))


def test_a_directory_takes_the_place_of_an_empty_one_only(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "in").mkdir(parents=True)
    new.mkdir()
    FILES.rename(str(old), str(new))
    assert FILES.list(str(tmp_path)) == ["new"]
    (tmp_path / "other").mkdir()
    with pytest.raises(OSError, match="not empty"):
        FILES.rename(str(tmp_path / "other"), str(new))
    with pytest.raises(OSError, match="not empty"):
        FILES.remove_directory(str(new))
