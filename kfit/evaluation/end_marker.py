"""The end marker: the chief writes it when training is over, and the evaluator polls for it.

It lies beside the checkpoints. No word is no end: a chief that has crashed, was preempted or is
being started again leaves the evaluator waiting.
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
class Ending:
    """How training ended.

    Attributes:
        target: Where it was to end (`TrainSpec.target`), to tell it from another training's.
        interrupted: Whether it is to go on in a later run (`TimeLimit`).
        checkpoint: The last checkpoint, as a name; None when there is none.
        run: Names the generation of the run, as `this_run`, to tell it from an earlier one's.
    """

    target: dict[str, Any]
    interrupted: bool
    checkpoint: str | None
    run: str

    @property
    def last(self) -> SnapshotName | None:
        """The last checkpoint."""
        return None if self.checkpoint is None else SnapshotName.parse(self.checkpoint)


def this_run(environ: Mapping[str, str] = os.environ) -> str | None:
    """Names the run of `kfit run` that this task is part of, and its generation.

    It is the same for all tasks that were started together. For an evaluator that is that of the
    tasks that train, however often its own supervisor has started it.

    Args:
        environ: Environment variables.

    Returns:
        The name, or None in a task that no supervisor has started.
    """
    if _BESIDE in environ:
        return environ[_BESIDE]
    run = environ.get(_RUN)
    return f"{run}:{environ.get(_GENERATION, '0')}" if run else None


def write_ending(directory: str, ending: Ending) -> None:
    """Says that training is over, when all checkpoints are written."""
    with whole_path(os.path.join(directory, _NAME)) as path, open(path, "w") as file:
        json.dump(asdict(ending), file, indent=1)


def take_back_ending(directory: str) -> None:
    """Says that training goes on; nothing where that was never in doubt.

    Raises:
        ForeignFileError: If the file is none of kfit's; it stays.
    """
    path = os.path.join(directory, _NAME)
    if os.path.islink(path):
        raise ForeignFileError(f"{path} is a link, which kfit did not make. Move it away.")
    if read_ending(directory) is not None:
        os.unlink(path)


def read_ending(directory: str) -> Ending | None:
    """What was said last, or None while training goes on.

    Raises:
        ForeignFileError: If the file is none of kfit's; it is a ValueError.
    """
    path = os.path.join(directory, _NAME)
    try:
        with open(path, encoding="utf-8") as file:
            return Ending(**json.load(file))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError, IsADirectoryError) as error:
        raise ForeignFileError(
            f"{path} is not what kfit wrote there ({error}). Move it away."
        ) from error
