"""Checks that the tasks of a host do not compute on more threads than the host has CPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from kfit.doctor.findings import Finding
from kfit.doctor.report import Report


def own_cpus() -> list[int]:
    """Returns the numbers of the CPUs that this process may use.

    A job scheduler may have restricted the process to some CPUs of the host.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_threads(environ: Mapping[str, str], cpus: int) -> int:
    """Returns the number of threads that TensorFlow uses for one operation.

    It is TF_NUM_INTRAOP_THREADS if that variable is set, else the number of CPUs.
    """
    text = environ.get("TF_NUM_INTRAOP_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else cpus


def cpu_limit(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Returns the limit of this container's CPU time, in CPUs; infinity if there is no limit."""
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
    """Compares the number of threads of all tasks on this host with the number of its CPUs.

    Args:
        own: This task's report.
        reports: The reports of all tasks that answered.
        limit: The limit of this container's CPU time, in CPUs; None reads it from the system.
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
