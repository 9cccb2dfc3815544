"""Describes the machine and the versions of a benchmark run."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib import metadata

_PACKAGES = ("tensorflow", "keras", "tf_keras", "torch", "lightning")


def description(rounds: int) -> str:
    """A sentence about the machine, the versions and the rounds, to print below the tables."""
    return f"{machine(*_PACKAGES)}; medians of up to {rounds} rounds."


def machine(*packages: str) -> str:
    """The date, the machine, and the versions of Python and the installed ones of some packages."""
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in packages if _is_installed(p))
    return (
        f"{dt.date.today()}, {len(os.sched_getaffinity(0))} cores of {_processor()}, "
        f"{_memory():.0f} GiB, {platform.system()}, Python {platform.python_version()}, {versions}"
    )


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
