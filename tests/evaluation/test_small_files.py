"""Tests the reader of the small JSON files in the directory of the checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfit.checkpoint.schema import record, text
from kfit.evaluation.small_files import read_small_file
from kfit.user_files.ownership import ForeignFileError


def test_files_of_kfit_and_of_others(tmp_path: Path) -> None:
    path, check = tmp_path / "note.json", record({"run": text})
    assert read_small_file(str(path), check, "a note") is None
    path.write_text('{"run": "a"}')
    assert read_small_file(str(path), check, "a note") == {"run": "a"}
    for content in ("null", "[]", "not JSON", '{"run": 3}'):
        path.write_text(content)
        with pytest.raises(ForeignFileError, match=r"note.json is not a note that kfit wrote"):
            read_small_file(str(path), check, "a note")
        assert path.read_text() == content
