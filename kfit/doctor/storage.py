"""Checks that the backup directory can be written to, and that a shared directory is shared.

A directory is shared if all tasks (processes) of the cluster see the same files in it. To find this
out, each task writes a test file with a random name, its probe, and looks for the probes of the
other tasks.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence

from kfit.argument_checks import is_url
from kfit.doctor.findings import Finding
from kfit.doctor.report import Report

_PROBE = ".kfit-doctor-"
_LEAST = 1 << 30
"""The free space in bytes that a backup directory must have at least, whatever the model's size."""
_VOLATILE = ("overlay", "tmpfs", "ramfs")


def check_backup(
    directory: str, *, is_chief: bool, environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """Checks that BackupAndRestore can write its snapshots to a directory.

    Args:
        directory: The `backup_dir` of BackupAndRestore. If the directory does not exist, it is
            created with its parents for the check, and removed afterwards.
        is_chief: Whether this task is the chief. On other tasks nothing is checked, since only the
            chief writes snapshots.
        environ: The environment variables, which show whether this task runs in Kubernetes.

    Returns:
        A list with one finding.
    """

    def finding(ok: bool, text: str, fix: str = "") -> list[Finding]:
        return [Finding("backup", ok, text, fix, about=directory)]

    if is_url(directory):
        return [_no_path("backup", directory)]
    if not is_chief:
        return finding(True, f"{directory}: only the chief writes there")
    missing = _missing(directory)
    try:
        os.makedirs(directory, exist_ok=True)
        with _probe(directory):
            free = shutil.disk_usage(directory).free
            needed = max(_LEAST, 2 * _largest_snapshot(directory))
            kind = _file_system(directory)
    except OSError as error:
        return finding(
            False,
            f"{directory} cannot be written: {error.strerror or error}",
            "give this user write access, make room, or choose another directory",
        )
    finally:
        for made in missing:
            with contextlib.suppress(OSError):
                os.rmdir(made)
    if free < needed:
        return finding(
            False,
            f"{directory} has {free / 1e9:.1f} GB of free space; expected {needed / 1e9:.1f} GB: "
            "a new snapshot is written before an old one is deleted",
            "make room, or choose another directory",
        )
    if kind in _VOLATILE and environ.get("KUBERNETES_SERVICE_HOST"):
        return finding(
            False,
            f"{directory} is in the pod itself ({kind}), and is gone when the pod is replaced",
            "mount a volume there (`kfit manifest kubernetes --backup-claim`)",
        )
    return finding(True, f"{directory} can be written, {free / 1e9:.0f} GB free")


@contextlib.contextmanager
def shared_probe(directory: str | None) -> Iterator[tuple[str, list[Finding]]]:
    """Context in which a test file of this task exists in the shared directory.

    The other tasks look for this file to find out whether they see the same directory.

    Args:
        directory: The directory that all tasks should see; None makes no file.

    Yields:
        The name of the file, or "" if there is none; and a list of findings, which is empty or has
        the problem that the file could not be created.
    """
    if directory is None:
        yield "", []
        return
    if is_url(directory):
        yield "", [_no_path("shared directory", directory)]
        return
    with contextlib.ExitStack() as held:
        try:
            name, found = held.enter_context(_probe(directory)), []
        except OSError as error:
            text = f"{directory} cannot be written: {error.strerror or error}"
            fix = "make it, and give this user write access, on all hosts"
            name, found = "", [Finding("shared directory", False, text, fix, about=directory)]
        yield name, found


def sees_probe(directory: str, report: Report) -> bool:
    """Returns whether this task sees the test file of another task in the shared directory.

    If the other task has no test file, the result is True. If the directory cannot be read, it is
    False.

    Args:
        directory: The directory that all tasks should see.
        report: The other task's report, which contains the name of the test file.
    """
    # List the directory: network file systems cache for a while that a name does not exist.
    with contextlib.suppress(OSError):
        return not report.probe or report.probe in os.listdir(directory)
    return False


def compare_shared(
    directory: str, unseen: Sequence[str], reports: Mapping[str, Report]
) -> list[Finding]:
    """Checks that all tasks that answered see the same shared directory.

    Args:
        directory: The path of the directory.
        unseen: The names of the tasks whose test files this task does not see in the directory.
        reports: The reports of all tasks that answered, by the tasks' names.

    Returns:
        A list with one finding.
    """
    if unseen:
        return [
            Finding(
                "shared directory",
                False,
                f"{directory} is not shared: this task does not see the file that "
                f"{', '.join(sorted(unseen))} wrote there",
                "mount the same file system there on all hosts, or name a path on one",
                about=directory,
            )
        ]
    tell = sum(bool(report.probe) for report in reports.values())
    return [Finding("shared directory", True, f"{directory}: {tell} tasks see it", about=directory)]


@contextlib.contextmanager
def _probe(directory: str) -> Iterator[str]:
    """Context in which a test file with a random name exists in a directory; yields this name.

    Raises:
        OSError: If the file cannot be written and synced to the disk.
    """
    name = _PROBE + secrets.token_hex(8)
    path = os.path.join(directory, name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        try:
            os.write(descriptor, b"\0" * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _no_path(check: str, directory: str) -> Finding:
    return Finding(
        check,
        False,
        f"{directory} is a URL; expected a path of a file system, whose files kfit can rename and "
        "lock",
        "give a folder of a mounted disk, such as one by gcsfuse or a persistent volume",
        about=directory,
    )


def _missing(directory: str) -> list[str]:
    """Returns the paths that must be created for a directory to exist, the innermost first.

    They are the directory itself and those of its parents that do not exist.
    """
    path, missing = os.path.abspath(directory), []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _largest_snapshot(directory: str) -> int:
    """Returns the size in bytes of the largest snapshot of earlier runs; 0 if there is none.

    By this size the needed free space is estimated. Every subdirectory counts as a snapshot, but
    for those that this user may not read, such as `lost+found`, or that are deleted meanwhile.
    """
    largest = 0
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(PermissionError, FileNotFoundError):
                files = [f for f in os.scandir(entry.path) if f.is_file(follow_symlinks=False)]
                largest = max(largest, sum(f.stat(follow_symlinks=False).st_size for f in files))
    return largest


def _file_system(directory: str) -> str:
    """Returns the type of the file system that contains a directory, such as "tmpfs".

    The type is read from /proc/mounts. The result is "" if the type is unknown.
    """
    path = os.path.realpath(directory)
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, where, what, *_ = line.split()
            where = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), where)
            inside = path == where or path.startswith(where.rstrip("/") + "/")
            if inside and len(where) >= len(best):
                best, kind = where, what
    return kind
