"""Checks that all tasks have equal and supported versions of packages, and equal clocks."""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import metadata

from kfit.doctor.findings import Finding
from kfit.doctor.peer_reports import Peer
from kfit.doctor.report import Report

# Distributions that install `import tensorflow`, in the order in which they are looked for.
_TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-intel",
    "tensorflow-macos",
    "tensorflow-rocm",
    "tensorflow-tpu",
    "tf-nightly",
    "tf-nightly-cpu",
)
# The tolerated difference of two clocks in seconds. Training does not depend on clocks, but logs,
# file times and certificates do.
_TOLERATED = 2.0


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python, kfit, Keras, NumPy and TensorFlow on this host, by name.

    The version of a package that is not installed is "".
    """
    found = {"python": platform.python_version()}
    for name in ("kfit", "keras", "numpy"):
        found[name] = _version(name)
    found["tensorflow"] = next((v for v in map(_version, _TENSORFLOWS) if v), "")
    return found


def check_versions(versions: Mapping[str, str]) -> list[Finding]:
    """Checks that kfit, TensorFlow and Keras are installed, in versions that kfit supports.

    Args:
        versions: The installed versions, as `installed_versions` returns them.

    Returns:
        A finding for each problem; if there is no problem, one finding that lists the versions.
    """
    found = []
    for name, (least, limit) in {"kfit": ("", ""), **_supported()}.items():
        version = versions.get(name, "")
        if not version:
            fix = f"pip install {name}" + (f"'>={least}'" if least else "")
            found.append(Finding("versions", False, f"{name} is not installed", fix, about=name))
            continue
        problem = ""
        if least and _numbers(version) < _numbers(least):
            problem = f"older than {least}, the oldest that kfit supports"
        elif limit and _numbers(version) >= _numbers(limit):
            problem = f"newer than kfit supports, which is below {limit}"
        if problem:
            fix = (
                f"pip install '{name}>={least},<{limit}'"
                if limit
                else f"pip install '{name}>={least}'"
            )
            text = f"{name} {version} is {problem}"
            found.append(Finding("versions", False, text, fix, about=name))
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return found or [Finding("versions", True, listed)]


def compare_versions(reports: Mapping[str, Report]) -> list[Finding]:
    """Checks that all tasks have the same versions of Python and the packages.

    Of Python's version only major and minor, such as 3.12, are compared.

    Args:
        reports: The reports of all tasks that answered, by the tasks' names.

    Returns:
        A finding for each package with different versions; if there is none, one finding without a
        problem. The list is empty if there is only one task.
    """
    if len(reports) < 2:
        return []
    found = []
    for name in next(iter(reports.values())).versions:
        groups = defaultdict(list)
        for task, report in reports.items():
            version = report.versions.get(name, "")
            short = ".".join(version.split(".")[:2]) if name == "python" else version
            groups[short or "none"].append(task)
        if len(groups) > 1:
            by_version = "; ".join(
                f"{version} on {', '.join(who)}" for version, who in groups.items()
            )
            found.append(
                Finding(
                    "same versions",
                    False,
                    f"the version of {name} differs between tasks: {by_version}",
                    f"install the same {name} on all of them, or start all from one image",
                    about=name,
                )
            )
    return found or [Finding("same versions", True, f"{len(reports)} tasks have the same versions")]


def compare_clocks(peers: Iterable[Peer]) -> list[Finding]:
    """Checks that the clocks of the other tasks that answered agree with this host's clock.

    Args:
        peers: What this task knows about the other tasks.

    Returns:
        A finding for each clock that differs; if there is none, one finding without a problem. The
        list is empty if no other task answered.
    """
    answered = [peer for peer in peers if peer.report is not None]
    found = []
    for peer in answered:
        ahead, uncertain = peer.clock
        if abs(ahead) - uncertain > _TOLERATED:
            side = "ahead of" if ahead > 0 else "behind"
            found.append(
                Finding(
                    "clocks",
                    False,
                    f"the clock of {peer.task} is {abs(ahead):.0f} s {side} this host's: times in "
                    "logs and of files will not agree",
                    "set both hosts' clocks by NTP (`timedatectl set-ntp true`)",
                    about=peer.task,
                )
            )
    if found or not answered:
        return found
    return [Finding("clocks", True, f"all within {_TOLERATED:g} s")]


def _version(distribution: str) -> str:
    try:
        # What a broken installation has left may have no version.
        return metadata.version(distribution) or ""
    except (metadata.PackageNotFoundError, KeyError):
        return ""


def _supported() -> dict[str, tuple[str, str]]:
    """Returns the range of versions of TensorFlow and of Keras that kfit supports.

    The range is read from the requirements of the installed kfit.

    Returns:
        For each of the two packages the oldest supported version, and the first version that is too
        new. Each is "" if there is no such limit.
    """
    try:
        lines = metadata.requires("kfit") or []
    except metadata.PackageNotFoundError:
        lines = []
    found = {"tensorflow": ("", ""), "keras": ("", "")}
    for line in lines:
        match = re.match(r"(tensorflow|keras)\b(?!-)([^;]*)", line)
        if match:
            least = re.search(r">=\s*([0-9.]+)", match[2])
            limit = re.search(r"<\s*([0-9.]+)", match[2])
            found[match[1]] = (least[1] if least else "", limit[1] if limit else "")
    return found


def _numbers(version: str) -> tuple[int, int, int]:
    """Returns the three numbers of a version: (2, 21, 0) for 2.21.0rc1 and for 2.21."""
    numbers = re.findall(r"\d+", re.split(r"[^0-9.]", version)[0])
    major, minor, patch = [*map(int, numbers[:3]), 0, 0, 0][:3]
    return major, minor, patch
