"""Checks that the tasks of a host do not compute on more threads than the host has CPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from kfit.doctor.findings import Finding
from kfit.doctor.report import Report


def own_cpus() -> list[int]:
    """Returns the indices of the CPUs that this process may use.

    These may be only some of the host's CPUs, if a job scheduler has restricted the process.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_threads(environ: Mapping[str, str], cpus: int) -> int:
    """Returns the number of threads that TensorFlow will use for one operation.

    It is the value of TF_NUM_INTRAOP_THREADS or, if this is not set or 0, the number of CPUs.

    Args:
        environ: The environment variables.
        cpus: The number of CPUs that this process may use.
    """
    text = environ.get("TF_NUM_INTRAOP_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else cpus


def cpu_limit(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Returns how many CPUs this container may use at a time, such as 2.5; infinity for no limit.

    Args:
        groups: The directory in which Linux describes the limits of the container (its cgroup).
    """
    try:
        quota, period = (groups / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota = (groups / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (groups / "cpu" / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):
        return math.inf


def check_threads(
    own: Report, reports: Mapping[str, Report], limit: float | None = None
) -> list[Finding]:
    """Checks that all tasks on this host together do not use more threads than there are CPUs.

    If each task uses only one thread, the finding is no problem, even if there are fewer CPUs than
    tasks: a task cannot use fewer threads.

    Args:
        own: The report of this task about itself.
        reports: The reports of all tasks that answered, by the tasks' names.
        limit: How many CPUs this container may use at a time; None asks the system.

    Returns:
        A list with one finding.
    """
    limit = cpu_limit() if limit is None else limit
    here = {own.task: own} | {
        name: report for name, report in reports.items() if report.machine == own.machine
    }
    cpus = len({cpu for report in here.values() for cpu in report.cpus})
    allowed = max(1, math.ceil(min(cpus, limit)))
    threads = sum(report.threads for report in here.values())
    tasks = f"{len(here)} tasks on this host" if len(here) > 1 else "this task"
    of = f"{allowed} CPU{'s' if allowed > 1 else ''}"
    if threads <= allowed or all(report.threads == 1 for report in here.values()):
        return [
            Finding("threads", True, f"{tasks}: {threads} thread{'s' if threads > 1 else ''}, {of}")
        ]
    share = max(1, allowed // len(here))
    return [
        Finding(
            "threads",
            False,
            f"{tasks} would compute on {threads} threads, for {of}: they slow each other down",
            f"set TF_NUM_INTRAOP_THREADS={share} and OMP_NUM_THREADS={share} for each "
            "(`kfit run --workers` does), or give each task CPUs of its own",
        )
    ]
