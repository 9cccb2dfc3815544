"""Saves snapshots on a disk that becomes full, and again when there is space; without TensorFlow.

    full_disk.py FOLDER

prints `RESULT {...}`: the error, and what was found on the disk after it and at the end.
"""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.store import Store

LEFT = 1 << 18
"""The bytes that the ballast leaves on the disk: a quarter of a snapshot."""


def snapshot(step: int) -> Snapshot:
    return Snapshot({"step": step}, {"variables": [np.full(1 << 18, step, "float32")]})


def fill(ballast: Path) -> None:
    """Fills the disk with a file, up to `LEFT` bytes."""
    free = os.statvfs(ballast.parent)
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - LEFT)


def main() -> None:
    folder = Path(sys.argv[1])
    backup, ballast = folder / "backup", folder / "ballast"
    backup.mkdir()
    told: dict[str, Any] = {}
    store = Store(str(backup))
    for step in (1, 2):
        store.save(snapshot(step))
    fill(ballast)
    try:
        store.save(snapshot(3))
    except OSError as error:
        told["error"] = errno.errorcode[error.errno or 0]
    told["names"] = os.listdir(backup)
    told["after"] = found(Store(str(backup)))
    ballast.unlink()
    store.save(snapshot(4))
    told["later"] = found(Store(str(backup)))
    print("RESULT", json.dumps(told))


def found(store: Store) -> Any:
    """The step and the values of the newest snapshot, and the damages."""
    newest, damages = store.newest()
    assert newest is not None
    values = {float(value) for value in np.unique(newest.state["variables"][0])}
    return [newest.about["step"], sorted(values), damages]


if __name__ == "__main__":
    main()
