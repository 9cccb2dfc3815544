"""What is no word of kfit's that training is over is refused, and stays."""

import os
from pathlib import Path

import pytest

from kfit.evaluation.end_marker import Ending, read_ending, take_back_ending, write_ending
from kfit.user_files.ownership import ForeignFileError


@pytest.mark.parametrize("content", ["mine", "{}", None])
def test_an_ending_of_others_is_refused_and_stays(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ended.json"
    if content is None:
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text(content)
    with pytest.raises(ForeignFileError, match="Move it away"):
        take_back_ending(str(tmp_path))
    assert os.listdir(tmp_path) == ["ended.json"]
    write_ending(str(tmp_path / "ours"), ending := Ending({}, False, None, "run"))
    assert read_ending(str(tmp_path / "ours")) == ending
    take_back_ending(str(tmp_path / "ours"))
    assert os.listdir(tmp_path / "ours") == []
