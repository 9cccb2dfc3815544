"""The end marker: a file by which the chief tells the evaluator that training is over.

The chief writes the file to the directory of the checkpoints, and the evaluator polls for it. As
long as there is no such file, the evaluator waits for more checkpoints, even if the chief has
crashed, was preempted or is being restarted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kfit.checkpoint.schema import each_value, is_a, number, optional, record, text
from kfit.checkpoint.store import SnapshotName, check_name
from kfit.evaluation.small_files import read_small_file
from kfit.saving import whole_path
from kfit.user_files.ownership import ForeignFileError

_NAME = "ended.json"
_check = record(
    {
        "target": each_value(optional(number)),
        "interrupted": is_a(bool),
        "checkpoint": optional(check_name),
        "run": text,
    }
)
_RUN, _GENERATION, _BESIDE = "KFIT_RUN", "KFIT_GENERATION", "KFIT_BESIDE"


@dataclass(frozen=True)
class EndMarker:
    """The content of the end marker, the file that says that training is over.

    Attributes:
        target: The epoch and the step at which training was to end (`TrainSpec.target`). The
            evaluator ignores an end marker with a target other than that of its own `TrainSpec`.
        interrupted: Whether training was interrupted, such as by `TimeLimit`, and resumes in a
            later run.
        checkpoint: The name of the last checkpoint; None if there is none.
        run: The identifier of the run that wrote the end marker, by which the end marker of an
            earlier run is recognized: the result of `this_run` or, if it is None, a random string.
    """

    target: dict[str, Any]
    interrupted: bool
    checkpoint: str | None
    run: str

    @property
    def last(self) -> SnapshotName | None:
        """The name of the last checkpoint, as an object that can be compared by age; or None."""
        return None if self.checkpoint is None else SnapshotName.parse(self.checkpoint)


def this_run(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the identifier of the attempt of `kfit run` to which this task belongs.

    `kfit run` starts all tasks together, and starts them again after a failure: the next attempt.
    All tasks of an attempt have the same identifier; each attempt has a different one. So the
    evaluator can recognize an end marker that was written in an earlier attempt. An evaluator that
    was restarted alone keeps the identifier of the tasks that train.

    Args:
        environ: The environment variables of this process, in which `kfit run` passes identifiers.

    Returns:
        The identifier; None in a task that was not started by `kfit run` or `kfit.launch`.
    """
    if _BESIDE in environ:
        return environ[_BESIDE]
    run = environ.get(_RUN)
    return f"{run}:{environ.get(_GENERATION, '0')}" if run else None


def write_end_marker(directory: str, marker: EndMarker) -> None:
    """Writes the end marker, the file that says that training is over.

    It is called when all checkpoints are written, so that the evaluator misses none.

    Args:
        directory: The directory of the checkpoints.
        marker: The content of the end marker.
    """
    with whole_path(os.path.join(directory, _NAME)) as path, open(path, "w") as file:
        json.dump(asdict(marker), file, indent=1)


def remove_end_marker(directory: str) -> None:
    """Removes the end marker, if there is one, since training begins or continues.

    Args:
        directory: The directory of the checkpoints.

    Raises:
        ForeignFileError: If a file of this name was not written by kfit. The file is kept.
    """
    path = os.path.join(directory, _NAME)
    if os.path.islink(path):
        raise ForeignFileError(f"{path} is a link, which kfit did not make. Move it away.")
    if read_end_marker(directory) is not None:
        os.unlink(path)


def read_end_marker(directory: str) -> EndMarker | None:
    """Reads the end marker, the file that says that training is over.

    Args:
        directory: The directory of the checkpoints.

    Returns:
        The content of the file; None if there is no such file.

    Raises:
        ForeignFileError: If the file was not written by kfit. This error is a ValueError.
    """
    found = read_small_file(os.path.join(directory, _NAME), _check, "an end marker")
    return None if found is None else EndMarker(**found)
