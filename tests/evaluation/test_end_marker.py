"""What is no word of kfit's that training is over is refused, and stays."""

import json
import os
from pathlib import Path

import pytest

from kfit.evaluation.end_marker import (
    EndMarker,
    read_end_marker,
    remove_end_marker,
    write_end_marker,
)
from kfit.user_files.ownership import ForeignFileError

_FORM = {"target": {}, "interrupted": False, "checkpoint": None, "run": "a"}


@pytest.mark.parametrize(
    "content",
    [
        *("mine", "{}", "[" * 5000, None),
        json.dumps({**_FORM, "checkpoint": 5}),
        json.dumps({**_FORM, "checkpoint": "nonsense"}),
        json.dumps({**_FORM, "checkpoint": f"g{'1' * 5000}-00000001-step-1"}),
        json.dumps({**_FORM, "target": [1]}),
        json.dumps({**_FORM, "\x1b[2J": 1}),
    ],
)
def test_an_ending_of_others_is_refused_and_stays(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ended.json"
    if content is None:
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text(content)
    with pytest.raises(ForeignFileError, match=r"^[^\x1b]*Move it away"):
        remove_end_marker(str(tmp_path))
    assert os.listdir(tmp_path) == ["ended.json"]
    write_end_marker(str(tmp_path / "ours"), ending := EndMarker({}, False, None, "run"))
    assert read_end_marker(str(tmp_path / "ours")) == ending
    remove_end_marker(str(tmp_path / "ours"))
    assert os.listdir(tmp_path / "ours") == []


def test_a_pipe_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ended.json")
    for reads in (remove_end_marker, read_end_marker):
        with pytest.raises(ForeignFileError, match=r"no regular file.*Move it away"):
            reads(str(tmp_path))
