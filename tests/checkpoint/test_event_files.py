"""The event files of one training are known by their mark, and cut back to a snapshot."""

import os
from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint.event_files import EventFiles


def written(files: EventFiles, run: str, number: int, content: str) -> Path:
    path = Path(files.folder(run)) / f"events.out.tfevents.{number}.host{files.suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def test_files_are_cut_back_and_those_of_others_stay(tmp_path: Any) -> None:
    mine, others = EventFiles(str(tmp_path)), EventFiles(str(tmp_path))
    first = written(mine, "train", 1, "abc")
    sizes = mine.sizes()
    assert sizes == {first.relative_to(tmp_path).as_posix(): 3}
    first.write_text("abcdef")
    os.link(first, tmp_path / "another name")
    later = written(mine, "validation", 2, "new")
    kept = [written(others, "train", 3, "theirs"), tmp_path / "train" / "notes"]
    kept[1].write_text("notes")
    mine.rewind(sizes)
    assert first.read_text() == "abc"
    assert (tmp_path / "another name").read_text() == "abcdef"
    assert not later.exists()
    assert [path.read_text() for path in kept] == ["theirs", "notes"]


def test_a_link_is_not_followed(tmp_path: Any) -> None:
    files = EventFiles(str(tmp_path))
    (tmp_path / "thesis").write_text("all of it")
    path = written(files, "train", 1, "")
    path.unlink()
    path.symlink_to(tmp_path / "thesis")
    files.rewind({os.path.relpath(path, tmp_path): 2})
    files.rewind({})
    assert (tmp_path / "thesis").read_text() == "all of it"
    assert path.is_symlink()


@pytest.mark.parametrize("mark", ["*", "", "../" * 11, "A" * 32, 3])
def test_a_mark_that_a_file_made_up(tmp_path: Any, mark: Any) -> None:
    with pytest.raises(ValueError, match="expected 32 hexadecimal digits"):
        EventFiles(str(tmp_path), mark)
