"""The training ID: a file by which it is known that a training has begun anew.

The chief writes a random string to the directory of the checkpoints when training begins there from
the start. If the user deletes the directory to train anew, the next checkpoints have the names of
earlier ones. But the ID differs from the one that the journal, the record of the evaluations, has
noted, so that they are evaluated.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from typing import Any

from kfit.checkpoint.schema import record
from kfit.evaluation.small_files import read_small_file
from kfit.saving import whole_path

_NAME = "training.json"
_ID = re.compile(r"[0-9a-f]{32}")


def check_id(value: Any, place: str) -> None:
    """Checks that a value from a file is a training ID."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(f"{place} is {value!r:.50}; expected 32 hexadecimal digits")


_check = record({"training": check_id})


def write_training_id(directory: str, *, begins: bool) -> str:
    """Writes a new training ID if a training begins, or if it has none yet; called by the chief.

    Args:
        directory: The directory of the checkpoints.
        begins: Whether training begins from the start: there is no checkpoint.

    Returns:
        The ID of the training.

    Raises:
        ForeignFileError: If a file of this name was not written by kfit. The file is kept.
    """
    known = read_training_id(directory)
    if known is not None and not begins:
        return known
    made = uuid.uuid4().hex
    with whole_path(os.path.join(directory, _NAME)) as path, open(path, "w") as file:
        json.dump({"training": made}, file, indent=1)
    return made


def read_training_id(directory: str) -> str | None:
    """Reads the training ID.

    Args:
        directory: The directory of the checkpoints.

    Returns:
        The ID; None if there is none, since no training has begun yet, or an earlier version of
        kfit has begun it.

    Raises:
        ForeignFileError: If the file was not written by kfit. This error is a ValueError.
    """
    found = read_small_file(os.path.join(directory, _NAME), _check, "a file")
    return None if found is None else str(found["training"])
