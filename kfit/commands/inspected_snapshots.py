"""Reads and checks the snapshots (saved states of a training) in a directory: `kfit inspect`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any

from kfit.argument_checks import CommandError
from kfit.checkpoint.at_exit import next_run_deletes
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.store import SnapshotName, Store
from kfit.checkpoint.training_schema import check_training
from kfit.verification.report import printable

_NEEDED: dict[str, type | tuple[type, ...]] = {
    "step": int,
    "epoch": int,
    "step_in_epoch": int,
    "created": (int, float),
    "model": str,
    "strategy": str,
    "num_replicas": int,
    "num_workers": int,
    "data": dict,
    "versions": dict,
}
"""What the description of a snapshot must hold to be shown, and of which type."""

WHY_NONE = (
    "BackupAndRestore deletes its snapshots when the program has ended well, unless it has "
    "`delete_checkpoint=False`"
)
"""The usual reason why there is no snapshot, for error messages."""


def inspect(directory: str, only: str | None = None) -> dict[str, Any]:
    """Reads and checks the snapshots (saved states of a training) in a directory.

    No file is changed.

    Args:
        directory: The `backup_dir` of a `BackupAndRestore`.
        only: The name or the step of the only snapshot to read; None for all.

    Returns:
        A dict that JSON can encode, with the keys `directory`, `run_has_ended` and `snapshots`.
        `run_has_ended` is True if the run that saved the snapshots has ended well, so that the next
        run deletes them. `snapshots` is a list of dicts, one for each snapshot, with the oldest
        snapshot first. Each dict has the `name` of the snapshot, its `step`, and its `damage`: None
        for a good snapshot, otherwise a text that says what is wrong. The dict of a good snapshot
        also has `bytes` (its size on disk), `files` (a list with the `name`, the `bytes` and the
        `sha256` of each file that the manifest names), `age` (in seconds), `about` (a dict that
        describes the training), `callbacks` (a list of the names of the callbacks whose state was
        saved), and `parts`. `parts` has a dict for each part of the model's state, with the number
        of its `variables` and of its `bytes`.

    Raises:
        CommandError: If there is no snapshot, or none of this name or step.
    """
    store = Store(directory, check=check_training)
    names = store.names()
    if not names:
        raise CommandError(f"`directory` is {directory!r}, which holds no snapshot. {WHY_NONE}")
    if only is not None:
        names = [chosen(store, only, "--snapshot")]
    return {
        "directory": directory,
        "run_has_ended": next_run_deletes(directory),
        "snapshots": [_inspected(store, name) for name in names],
    }


def directory_of_snapshots(directory: str) -> str:
    """Returns the directory that holds snapshots: a given one, or else the only one within it.

    Args:
        directory: The `backup_dir` of a `BackupAndRestore`, or a directory that holds it, such as
            that of the script.

    Raises:
        CommandError: If several directories within the given one hold snapshots.
    """
    if Store(directory, check=check_training).names():
        return directory
    within = [entry.path for entry in os.scandir(directory) if entry.is_dir()]
    found = sorted(path for path in within if Store(path, check=check_training).names())
    if len(found) > 1:
        raise CommandError(
            f"`directory` is {directory!r}, which holds no snapshot itself; expected one of "
            f"{', '.join(map(repr, found))}"
        )
    return found[0] if found else directory


def chosen(store: Store, text: str, option: str) -> SnapshotName:
    """Returns the snapshot with a name or a step; of several with this step, the newest.

    Args:
        store: The directory.
        text: The name or the step.
        option: The option that the user gave, for the error message.

    Raises:
        CommandError: If there is no such snapshot.
    """
    names = store.names()
    found = [name for name in names if text in (str(name), str(name.step))]
    if not found:
        listed = ", ".join(f"{name} (step {name.step})" for name in names)
        raise CommandError(f"`{option}` is {text!r}; the directory holds {listed or 'no snapshot'}")
    return found[-1]


def as_text(found: dict[str, Any]) -> str:
    """Returns the result of `inspect` as text for a user.

    The text has a line for each snapshot (saved state of a training), and the details of the newest
    snapshot that is not damaged.

    Args:
        found: The dict that `inspect` has returned.
    """
    lines = []
    good: dict[str, Any] | None = None
    for snapshot in found["snapshots"]:
        if snapshot["damage"]:
            lines.append(f"{snapshot['name']}  DAMAGED: {printable(snapshot['damage'])}")
            continue
        good = snapshot
        about = snapshot["about"]
        lines.append(
            f"{snapshot['name']}  good  step {about['step']}  {_place(about)}  "
            f"{_ago(snapshot['age'])} ({_clock(about['created'])})  {_megabytes(snapshot['bytes'])}"
        )
    if found["run_has_ended"]:
        lines += ["", "The run that saved them has ended well: the next run deletes them."]
    if good is not None:
        lines += ["", *_details(good)]
    return "\n".join(lines)


def _place(about: dict[str, Any]) -> str:
    """Returns the epoch and the step in it at which training resumes, as text."""
    epochs, steps = about["epoch"], about["step_in_epoch"]
    if steps and steps == about["data"].get("steps an epoch"):
        return f"epoch {epochs + 1}, after all {steps} of its steps, before `on_epoch_end`"
    if steps or not epochs:
        return f"epoch {epochs + 1}, after {steps} of its steps"
    return f"at the end of epoch {epochs}"


def _details(good: dict[str, Any]) -> list[str]:
    about = good["about"]
    lines = [
        f"The newest good snapshot, {good['name']}:",
        f"  model     {printable(about['model'])}",
        f"  strategy  {printable(about['strategy'])}, "
        f"{_counted(about['num_replicas'], 'replica')} on "
        f"{_counted(about['num_workers'], 'worker')}",
        "  data      " + _listed(about["data"]),
        "  versions  " + _listed(about["versions"]),
        "  files     sizes and SHA-256 checksums are those that were written:",
    ]
    lines += [
        f"    {file['sha256']}  {printable(file['name'])}, {_megabytes(file['bytes'])}"
        for file in good["files"]
    ]
    lines.append("  variables of each part:")
    lines += [
        f"    {part:<9} {_counted(held['variables'], 'variable')}, {_megabytes(held['bytes'])}"
        for part, held in good["parts"].items()
    ]
    callbacks = ", ".join(printable(name) for name in good["callbacks"])
    lines.append(f"  callbacks {callbacks or 'none with a state'}")
    return lines


def _inspected(store: Store, name: SnapshotName) -> dict[str, Any]:
    begun = {"name": str(name), "step": name.step}
    try:
        manifest = store.verify(name)
        state = store.read(name).state
        _check(manifest.about)
        parts: dict[str, dict[str, int]] = {}
        for entry in state["variables"]:
            part = parts.setdefault(printable(str(entry["part"])), {"variables": 0, "bytes": 0})
            part["variables"] += 1
            part["bytes"] += entry["value"].nbytes
        callbacks = [str(entry["callback"]) for entry in state["callbacks"]]
    except (DamagedSnapshotError, OSError) as error:
        return {**begun, "damage": str(error)}
    except (KeyError, TypeError, AttributeError) as error:
        return {**begun, "damage": f"its state has not the form that kfit writes: {error!r}"}
    return {
        **begun,
        "damage": None,
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "files": [
            {"name": name, "bytes": entry.size, "sha256": entry.sha256}
            for name, entry in manifest.files.items()
        ],
        "age": max(0.0, time.time() - manifest.about["created"]),
        "about": manifest.about,
        "parts": parts,
        "callbacks": callbacks,
    }


def _check(about: Mapping[str, Any]) -> None:
    for key, kind in _NEEDED.items():
        if not isinstance(about.get(key), kind):
            raise DamagedSnapshotError(f"the manifest's {key!r} is {about.get(key)!r}")
    if not math.isfinite(about["created"]):
        raise DamagedSnapshotError(f"the manifest's 'created' is {about['created']!r}")


def _listed(values: Mapping[str, Any]) -> str:
    known = {key: value for key, value in values.items() if value is not None}
    return ", ".join(printable(f"{key} {value}") for key, value in known.items())


def _clock(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds} s since 1970"


def _ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("min", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1 and unit != 'min')} ago"
    return f"{int(seconds)} s ago"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _megabytes(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"
