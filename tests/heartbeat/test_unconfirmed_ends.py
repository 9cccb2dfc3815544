import contextlib
import os
from pathlib import Path

import pytest

from kfit.heartbeat import Heartbeat, HeartbeatReader
from kfit.heartbeat.unconfirmed_ends import confirm, ends_path, read_ends, write_end


def test_a_task_records_its_ends_and_they_are_confirmed(tmp_path: Path) -> None:
    path = str(tmp_path / "task")
    reader = HeartbeatReader(path)
    assert read_ends(path) == []
    markers = [tmp_path / each / ".kfit-ending" for each in ("one\n", "zwö")]
    for marker in markers:
        marker.parent.mkdir()
        marker.touch()
        assert Heartbeat(path).note_end(str(marker))
    assert read_ends(path) == list(map(str, markers))
    confirm(read_ends(path))
    assert not any(marker.exists() for marker in markers)
    confirm(read_ends(path))  # they are gone
    reader.close()


def test_only_markers_are_deleted(tmp_path: Path) -> None:
    thesis, full = tmp_path / "thesis", tmp_path / ".kfit-ending"
    thesis.touch()
    full.write_text("mine")
    link = tmp_path / "link"
    link.mkdir()
    (link / ".kfit-ending").symlink_to(thesis)
    confirm(map(str, (thesis, full, link / ".kfit-ending")))
    assert thesis.exists()
    assert full.exists()
    assert (link / ".kfit-ending").is_symlink()


def test_without_a_supervisor_nobody_confirms(tmp_path: Path) -> None:
    assert not Heartbeat().note_end(str(tmp_path / ".kfit-ending"))


def test_a_damaged_record_names_none(tmp_path: Path) -> None:
    (tmp_path / "task.ends").write_bytes(b'"a"\n\xff')
    assert read_ends(str(tmp_path / "task")) == []


def test_an_end_that_cannot_be_recorded_is_not_taken_for_one_without_a_supervisor(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "task")
    os.symlink("/dev/full", ends_path(path))
    with contextlib.closing(HeartbeatReader(path)):
        own = Heartbeat(path)
        with pytest.raises(OSError, match="No space left"):
            own.note_end(str(tmp_path / ".kfit-ending"))
    assert not write_end(str(tmp_path / "gone" / "task"), str(tmp_path / ".kfit-ending"))
