"""The journal: files in which evaluations are recorded, so that a crash loses and repeats none.

    eval/
        evaluations.jsonl                  a line of JSON for each evaluation, in order
        events.out.tfevents.....v2         TensorBoard: a point of each metric at each step
        memory.json                        sizes of the committed files, states of the exporters
        .kfit-lock                         held by the task that writes here

The results of an evaluation are first appended to the files, and then committed by replacing
`memory.json` atomically. A task that restarts removes results that were not committed, and repeats
their evaluation. It removes at most one line, and only event files whose names contain this
journal's mark, a random string. Files of other programs are left alone. If such a file is in the
way, a ForeignFileError names it.
"""

from __future__ import annotations

import glob
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint.event_files import check_mark, elements, event_suffix, remove, shorten
from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.schema import count, each_value, is_a, optional, record
from kfit.checkpoint.store import SnapshotName, check_name
from kfit.evaluation.exporters import Exporter, named
from kfit.evaluation.training_id import check_id
from kfit.heartbeat.tracebacks import warn_user
from kfit.saving import whole_path
from kfit.user_files.foreign_json import parse_json, read_json, without_nan
from kfit.user_files.ownership import ForeignFileError

LINES, MEMORY = "evaluations.jsonl", "memory.json"
_FORMAT = 3

Evaluation = dict[str, Any]


class Journal:
    """The record of a training's evaluations, in the files of a directory.

    The directory is locked until the journal is closed, so only one task at a time can write there.
    A journal can be used in a `with` statement, which closes the journal at the end.

    Args:
        directory: The directory of the files; it is created if it does not exist.
        export_dir: The directory to which exporters write models.
        exporters: The exporters, each of which gets each evaluated model.

    Attributes:
        evaluated: The name of the last checkpoint that was evaluated or skipped, or None.
        training: The ID of the training to which this checkpoint belongs; None if it is not known.
        evaluations: The records of all evaluations of this training so far, including those of
            earlier runs; they are equal to the lines of `evaluations.jsonl`.

    Raises:
        DirectoryInUseError: If another live task writes there.
        ValueError: If `memory.json` or `evaluations.jsonl` was not written by kfit.
        OSError: If the directory cannot be written to.
    """

    def __init__(self, directory: str, export_dir: str, exporters: Sequence[Exporter] = ()) -> None:
        self._directory = directory
        self._export_dir = export_dir
        self._exporters = named(exporters)
        self._writer: Any = None
        os.makedirs(directory, exist_ok=True)
        try:
            self._lock = DirectoryLock(directory)
        except DirectoryInUseError as error:
            raise DirectoryInUseError(
                f"{error} If an evaluator runs that the cluster does not list, all tasks must "
                "have EvalSpec(evaluator=True)."
            ) from None
        try:
            memory = read_memory(directory)
            self._mark = uuid.uuid4().hex if memory is None else memory["mark"]
            self.evaluated = evaluated_of(memory)
            self.training = None if memory is None else memory["training"]
            self._earlier = 0 if memory is None else memory["earlier"]
            self._rewind(memory or {"lines": 0, "events": {}, "exporters": {}}, memory is None)
            if memory is None:
                self._commit(None)  # stores the mark by which kfit's files are recognized
            self.evaluations = self._read_lines()[self._earlier :]
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the TensorBoard file and unlocks the directory; may be called more than once."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._lock.release()

    def belong_to(self, training: str | None) -> None:
        """Notes the training whose checkpoints are evaluated from now on.

        If it is not the one whose checkpoints were evaluated so far, it has begun anew: the user
        has deleted its checkpoints. Then all checkpoints are evaluated, the exporters are reset,
        and a message says so. The records of the earlier training stay in the files.

        Args:
            training: The ID of the training; None if it is not known.
        """
        if training is None or training == self.training:
            return
        begins_anew = self.training is not None and self.evaluated is not None
        self.training = training
        if not begins_anew:
            return
        self._earlier += len(self.evaluations)
        self.evaluations = []
        for exporter in self._exporters.values():
            exporter.reset()
        self._commit(None)
        print(
            "kfit: training has begun anew, so its checkpoints are evaluated and exported from the "
            f"first one on. {self._directory} keeps the results of the earlier training, too.",
            flush=True,
        )

    def write(self, name: SnapshotName, evaluation: Evaluation, model: keras.Model) -> None:
        """Writes the results of an evaluation to the files, and calls the exporters.

        If a crash interrupts it, the evaluation counts as not done, and is repeated.

        Args:
            name: The name of the checkpoint that was evaluated.
            evaluation: The record of the evaluation; its metrics are numbers or arrays.
            model: The model with the checkpoint's weights, for the exporters.
        """
        plain = {**evaluation, "metrics": _plain(evaluation["metrics"])}
        line = without_nan(plain)
        self._write_points(plain)
        with open(self._path(LINES), "ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        for exporter in self._exporters.values():
            exporter.export(model, self._export_dir, plain)
        self._commit(name)
        self.evaluations.append(line)

    def pass_over(self, name: SnapshotName) -> None:
        """Records that a checkpoint is skipped, so that it is never evaluated."""
        self._commit(name)

    def _commit(self, name: SnapshotName | None) -> None:
        memory = {
            "format": _FORMAT,
            "mark": self._mark,
            "training": self.training,
            "evaluated": None if name is None else str(name),
            "earlier": self._earlier,
            "lines": os.path.getsize(path) if os.path.exists(path := self._path(LINES)) else 0,
            "events": {os.path.basename(p): os.path.getsize(p) for p in self._event_files()},
            "exporters": {name: _state_of(name, each) for name, each in self._exporters.items()},
        }
        with whole_path(self._path(MEMORY)) as aside, open(aside, "w") as file:
            json.dump(memory, file, indent=1)
        self.evaluated = name

    def _rewind(self, memory: dict[str, Any], is_new: bool) -> None:
        """Goes back to the last complete evaluation when a journal is opened.

        If a crash has interrupted a further evaluation, its results are removed. The states of the
        exporters are restored or, if their number has changed, reset.

        Args:
            memory: The content of `memory.json`, which describes the journal after the last
                complete evaluation.
            is_new: Whether the journal is new, so that `memory` describes an empty journal.
        """
        self._rewind_lines(memory["lines"], is_new)
        for path in self._event_files():
            kept = memory["events"].get(os.path.basename(path))
            if kept is None:
                remove(path)
            else:
                shorten(path, kept)
        self._restore_exporters(memory["exporters"], has_lines=memory["lines"] > 0)

    def _restore_exporters(self, states: dict[str, Any], *, has_lines: bool) -> None:
        """Restores the states of the exporters by their names; one without a state is reset.

        Args:
            states: The saved states by the names of their exporters.
            has_lines: Whether there were evaluations, so that a missing state is told of.
        """
        for name, exporter in self._exporters.items():
            if name not in states:
                exporter.reset()
                continue
            try:
                exporter.load_state_dict(states[name])
            except Exception as error:
                raise ValueError(
                    f"The exporter {name!r} does not take the state that {self._path(MEMORY)} has "
                    f"for it ({error}). Give it another name, or, to evaluate all checkpoints "
                    f"again, move {self._directory} away."
                ) from error
        new = [name for name in self._exporters if name not in states]
        gone = [name for name in states if name not in self._exporters]
        told = [f"{name!r} is new, and begins without a state" for name in new]
        told += [f"{name!r} is gone, and so is its state, such as the best value" for name in gone]
        if told and has_lines:
            warn_user(
                f"`exporters` are others than when {self._directory} was written: "
                f"{'; '.join(told)}."
            )

    def _rewind_lines(self, kept: int, is_new: bool) -> None:
        """Removes the last line of `evaluations.jsonl` if its evaluation was interrupted.

        An evaluation first writes its line, and is complete when `memory.json` is written. So after
        a crash at most one line may follow those of the complete evaluations. This line is removed,
        since its evaluation will be repeated.

        Args:
            kept: The size in bytes of the lines of complete evaluations.
            is_new: Whether the journal is new, so that no line may exist yet.

        Raises:
            ForeignFileError: If the file has other contents, which kfit did not write.
        """
        path = self._path(LINES)
        if not os.path.lexists(path):
            return
        if os.path.islink(path) or not os.path.isfile(path):
            raise self._foreign(path)
        with open(path, "rb") as file:
            file.seek(min(kept, os.path.getsize(path)))
            tail = file.read()
        if tail and (is_new or not _is_one_line(tail)):
            raise self._foreign(path)
        shorten(path, kept)

    def _foreign(self, path: str) -> ForeignFileError:
        return ForeignFileError(
            f"{path} holds data that kfit did not write. Move it away, or give the EvalSpec "
            "another `name`."
        )

    def _read_lines(self) -> list[Evaluation]:
        path, found = self._path(LINES), []
        try:
            with open(path, "rb") as file:
                for line in file:
                    evaluation = parse_json(line)
                    _check_line(evaluation, "it")
                    found.append(evaluation)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise ForeignFileError(
                f"Line {len(found) + 1} of {path} is not one that kfit wrote ({error}). To "
                f"evaluate all checkpoints again, move {self._directory} away."
            ) from error
        return found

    def _write_points(self, evaluation: Evaluation) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(
                self._directory, filename_suffix=event_suffix(self._mark)
            )
        with self._writer.as_default(evaluation["step"]):
            for name, value in _curves(evaluation["metrics"]):
                tf.summary.scalar(name, value)
        self._writer.flush()

    def _event_files(self) -> list[str]:
        pattern = f"events.out.tfevents.*{event_suffix(self._mark)}"
        return sorted(glob.glob(os.path.join(glob.escape(self._directory), pattern)))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def read_memory(directory: str) -> dict[str, Any] | None:
    """Reads `memory.json`, the file that says which evaluations in the journal are complete.

    Args:
        directory: The directory of the journal.

    Returns:
        The content of the file; None if there is no such file.

    Raises:
        ValueError: If the file was not written by kfit.
    """
    path = os.path.join(directory, MEMORY)
    try:
        memory = _of_this_form(read_json(path))
        _check_memory(memory, "it")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _not_written_by_kfit(path, directory, error) from error
    return memory


def _not_written_by_kfit(path: str, directory: str, error: Exception) -> ValueError:
    return ValueError(
        f"{path} is not a file that kfit wrote ({error}). To evaluate all checkpoints again, move "
        f"{directory} away."
    )


def _of_this_form(memory: Any) -> Any:
    """Returns the content of `memory.json` in the form of this version of kfit.

    Format 2 has no ID of the training, and the states of exporters without their names. They are
    left out, so that the exporters are reset.
    """
    if not isinstance(memory, dict) or memory.get("format") != 2:
        return memory
    return {**memory, "format": _FORMAT, "training": None, "earlier": 0, "exporters": {}}


def _of_this_format(value: Any, place: str) -> None:
    if value != _FORMAT:
        raise ValueError(f"{place} is {value!r:.50}; this kfit reads {_FORMAT}")


_check_memory = record(
    {
        "format": _of_this_format,
        "mark": check_mark,
        "training": optional(check_id),
        "evaluated": optional(check_name),
        "earlier": count,
        "lines": count,
        "events": each_value(count),
        "exporters": each_value(is_a(dict)),
    }
)
"""Checks that JSON has the form of `memory.json`."""


def _check_line(value: Any, place: str) -> None:
    """Checks that JSON has the form of a line of `evaluations.jsonl`, as far as kfit reads it."""
    is_a(dict)(value, place)
    count(value.get("step"), f"{place}['step']")
    is_a(dict)(value.get("metrics"), f"{place}['metrics']")


def evaluated_of(memory: dict[str, Any] | None, training: str | None = None) -> SnapshotName | None:
    """Returns the name of the last checkpoint that was evaluated or skipped, or None.

    Args:
        memory: What `read_memory` returned: the content of `memory.json`, or None.
        training: The ID of the training. None was evaluated of it if `memory` is of another one.
    """
    if memory is None or memory["evaluated"] is None:
        return None
    if None not in (training, memory["training"]) and training != memory["training"]:
        return None
    return SnapshotName.parse(memory["evaluated"])


def _state_of(name: str, exporter: Exporter) -> dict[str, Any]:
    """Returns the state of an exporter in the form in which `memory.json` has it.

    Raises:
        ValueError: If JSON cannot encode it; the message names the exporter.
    """
    state = _plain(exporter.state_dict())
    try:
        is_a(dict)(state, "it")
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`state_dict` of the exporter {name!r} must return a dict that JSON can encode: "
            f"{error}. Received: {state!r:.200}"
        ) from error
    return state


def _curves(metrics: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers among metrics with the names of their curves.

    The elements of an array have curves of their own, "f1/0", "f1/1" and so on, and so have the
    parts of a dict.
    """
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from _curves(value, f"{prefix}{name}/")
        elif np.asarray(value).dtype.kind in "biuf":
            for suffix, number in elements(value):
                yield f"{prefix}{name}{suffix}", number


def _is_one_line(text: bytes) -> bool:
    """Returns whether a text is one line of `evaluations.jsonl`, complete or cut off by a crash."""
    if not text.endswith(b"\n"):
        return text.startswith(b'{"') and b"\n" not in text
    try:
        _check_line(parse_json(text), "it")
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Converts arrays, and NumPy's numbers, to Python numbers and lists, which JSON can encode."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
