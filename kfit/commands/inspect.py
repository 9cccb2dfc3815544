"""`kfit inspect`: checks the snapshots (saved states of a training) in a directory for damage."""

from __future__ import annotations

import time
from typing import Any

from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.store import SnapshotName, Store


def inspect(directory: str) -> dict[str, Any]:
    """Reads and checks all snapshots (saved states of a training) in a directory.

    No file is changed.

    Args:
        directory: The `backup_dir` of a `BackupAndRestore`.

    Returns:
        A dict that JSON can encode, with the keys `directory` and `snapshots`. `snapshots` is a
        list of dicts, one for each snapshot, with the oldest snapshot first. Each dict has the
        `name` of the snapshot and its `damage`: None for a good snapshot, otherwise a text that
        says what is wrong. The dict of a good snapshot also has `bytes` (its size on disk), `about`
        (a dict that describes the training), `callbacks` (a list of the names of the callbacks
        whose state was saved), and `parts`. `parts` has a dict for each part of the model's state,
        with the number of its `variables` and of its `bytes`.
    """
    store = Store(directory)
    return {
        "directory": directory,
        "snapshots": [_inspected(store, name) for name in store.names()],
    }


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
            lines.append(f"{snapshot['name']}  DAMAGED: {snapshot['damage']}")
            continue
        good = snapshot
        about = snapshot["about"]
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["created"]))
        lines.append(
            f"{snapshot['name']}  good  {_megabytes(snapshot['bytes'])}  {created}  "
            f"epoch {about['epoch'] + 1}, after {about['step_in_epoch']} of its steps"
        )
    if good is not None:
        about = good["about"]
        lines += [
            "",
            f"Training would resume from {good['name']}:",
            f"  model     {about['model']}",
            f"  strategy  {about['strategy']}, {about['num_replicas']} replicas on "
            f"{about['num_workers']} workers",
            "  data      " + ", ".join(f"{k} {v}" for k, v in about["data"].items()),
            "  versions  " + ", ".join(f"{k} {v}" for k, v in about["versions"].items()),
        ]
        lines += [
            f"  {part:<9} {held['variables']} variables, {_megabytes(held['bytes'])}"
            for part, held in good["parts"].items()
        ]
        lines.append(f"  callbacks {', '.join(good['callbacks']) or 'none with a state'}")
    return "\n".join(lines)


def _inspected(store: Store, name: SnapshotName) -> dict[str, Any]:
    try:
        manifest = store.verify(name)
        state = store.read(name).state
    except (DamagedSnapshotError, OSError) as error:
        return {"name": str(name), "damage": str(error)}
    parts: dict[str, dict[str, int]] = {}
    for entry in state["variables"]:
        part = parts.setdefault(entry["part"], {"variables": 0, "bytes": 0})
        part["variables"] += 1
        part["bytes"] += entry["value"].nbytes
    return {
        "name": str(name),
        "damage": None,
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "about": manifest.about,
        "parts": parts,
        "callbacks": [entry["callback"] for entry in state["callbacks"]],
    }


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"
