"""Programs that find another disk in a folder: a small one, or one that cannot be written.

The disk is a tmpfs of Linux in a mount namespace of the program alone, and is gone with it.
"""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'


def with_disk(folder: Path, options: str, command: Sequence[str]) -> list[str]:
    """A command that runs another one with a disk mounted on a folder.

    Args:
        folder: The folder, which exists.
        options: Options of the mount, such as "size=4m" or "ro".
        command: The command to run.
    """
    return ["unshare", "-rm", "sh", "-c", _MOUNT, "sh", options, str(folder), *command]


@functools.cache
def why_not() -> str:
    """Why no disk can be mounted here; empty if one can."""
    if shutil.which("unshare") is None:
        return "there is no `unshare`, by which a program gets mounts of its own"
    done = subprocess.run(
        with_disk(Path("/mnt"), "size=1m", ["true"]), capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"nothing can be mounted here: {done.stderr.strip()}"
