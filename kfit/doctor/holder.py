"""Which process listens on a port of this host, as Linux tells those who may know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_LISTEN = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""


def who_listens(port: int) -> str:
    """Returns "process 123 (python train.py)", or "" where that cannot be known."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return ""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) in inodes:
                        return _described(folder.parent)
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    """The names under which processes hold sockets that listen on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                # Number, local address, remote address, state, ..., and the inode tenth.
                values = line.split()
                if values[1].endswith(f":{port:04X}") and values[3] == _LISTEN:
                    yield f"socket:[{values[9]}]"


def _described(process: Path) -> str:
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    command = " ".join(words).strip()
    return f"process {process.name} ({command[:60]})"
