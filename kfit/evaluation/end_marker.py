"""The end marker: the chief writes it when training is over, and the evaluator polls for it.

It is a file in the directory of the checkpoints. Without it training counts as not ended: while a
chief has crashed, was preempted or is being restarted, the evaluator waits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kfit.checkpoint.store import SnapshotName
from kfit.saving import whole_path
from kfit.user_files.ownership import ForeignFileError

_NAME = "ended.json"
_RUN, _GENERATION, _BESIDE = "KFIT_RUN", "KFIT_GENERATION", "KFIT_BESIDE"


@dataclass(frozen=True)
class EndMarker:
    """The content of the end marker, which describes how training ended.

    Attributes:
        target: Where training was to end (`TrainSpec.target`). An end marker with another target
            is ignored.
        interrupted: Whether training was interrupted, to resume in a later run (`TimeLimit`).
        checkpoint: The name of the last checkpoint; None if there is none.
        run: The identifier of the run, as `this_run` returns it, by which the end marker of an
            earlier run is recognized.
    """

    target: dict[str, Any]
    interrupted: bool
    checkpoint: str | None
    run: str

    @property
    def last(self) -> SnapshotName | None:
        """The parsed name of the last checkpoint, or None."""
        return None if self.checkpoint is None else SnapshotName.parse(self.checkpoint)


def this_run(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns an identifier of the run of `kfit run` that this task is part of.

    It also identifies the attempt (generation): after a restart of the tasks it is another one. All
    tasks that were started together have the same identifier. An evaluator has that of the tasks
    that train, even after its own supervisor has restarted it.

    Args:
        environ: Environment variables.

    Returns:
        The identifier, or None in a task that was not started by a supervisor.
    """
    if _BESIDE in environ:
        return environ[_BESIDE]
    run = environ.get(_RUN)
    return f"{run}:{environ.get(_GENERATION, '0')}" if run else None


def write_end_marker(directory: str, marker: EndMarker) -> None:
    """Writes the end marker. All checkpoints must have been written before."""
    with whole_path(os.path.join(directory, _NAME)) as path, open(path, "w") as file:
        json.dump(asdict(marker), file, indent=1)


def remove_end_marker(directory: str) -> None:
    """Removes the end marker, if there is one.

    Raises:
        ForeignFileError: If the file was not written by kfit; it is not removed.
    """
    path = os.path.join(directory, _NAME)
    if os.path.islink(path):
        raise ForeignFileError(f"{path} is a link, which kfit did not make. Move it away.")
    if read_end_marker(directory) is not None:
        os.unlink(path)


def read_end_marker(directory: str) -> EndMarker | None:
    """Reads the end marker in a directory; returns None if there is none.

    Raises:
        ForeignFileError: If the file was not written by kfit. This error is a ValueError.
    """
    path = os.path.join(directory, _NAME)
    try:
        with open(path, encoding="utf-8") as file:
            return EndMarker(**json.load(file))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError, IsADirectoryError) as error:
        raise ForeignFileError(
            f"{path} is not an end marker that kfit wrote ({error}). Move it away."
        ) from error
