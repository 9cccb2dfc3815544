"""Whether a training has begun anew is known from a file that only kfit writes."""

import os
from pathlib import Path

import pytest

from kfit.evaluation.training_id import read_training_id, write_training_id
from kfit.user_files.ownership import ForeignFileError


def test_an_id_lasts_until_training_begins_anew(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert read_training_id(folder) is None
    first = write_training_id(folder, begins=True)
    assert write_training_id(folder, begins=False) == read_training_id(folder) == first
    second = write_training_id(folder, begins=True)
    assert read_training_id(folder) == second != first
    # A training that an earlier version of kfit has begun gets one, too.
    assert write_training_id(str(tmp_path / "other"), begins=False)


@pytest.mark.parametrize(
    "content", ["mine", "{}", '{"training": 5}', '{"training": "../x"}', '{"training": "\x1b[2J"}']
)
def test_a_file_of_others_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "training.json"
    path.write_text(content)
    for begins in (True, False):
        with pytest.raises(ForeignFileError, match=r"^[^\x1b]*Move it away"):
            write_training_id(str(tmp_path), begins=begins)
    assert path.read_text() == content
    assert os.listdir(tmp_path) == ["training.json"]
