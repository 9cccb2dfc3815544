"""Runs of `programs/everything.py` under `kfit run`, and what such a run leaves behind.

The tests that kill a training at chosen moments share it with the soak test, which draws them.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kfit.checkpoint.store import SnapshotName

PROGRAM = Path(__file__).parent / "programs" / "everything.py"
BACKUP = "backup"


def kfit_run(strategy: str, folder: Path, *options: str, run: Sequence[str] = ()) -> list[str]:
    """The command that trains in a folder.

    Args:
        strategy: The strategy of the program.
        folder: Where the program writes.
        *options: Further options of the program.
        run: Options of `kfit run`.
    """
    command = [sys.executable, "-m", "kfit", "run", *run]
    return [*command, str(PROGRAM), strategy, str(folder), *options]


def start(
    command: Sequence[str], folder: Path, output: Path, **variables: str
) -> subprocess.Popen[bytes]:
    """Starts a command in a folder, and appends all it prints to a file.

    Args:
        command: The command.
        folder: Its working directory, which is made if it is not there.
        output: The file.
        **variables: Environment variables, added to those of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unwanted = ("TF_CONFIG", "PYTHONSAFEPATH")
    environ: Mapping[str, str] = {k: v for k, v in os.environ.items() if k not in unwanted}
    with open(output, "ab") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
            cwd=folder,
        )


def digests(text: str) -> list[str]:
    """The digests that the tasks of a run have printed at the end of their training."""
    return re.findall(r"DIGEST (\w+) EPOCHS", text)


def snapshots(folder: Path) -> list[SnapshotName]:
    """The snapshots of a training that are on the disk, the oldest first."""
    try:
        names = [SnapshotName.parse(name) for name in os.listdir(folder / BACKUP)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name is not None)
