"""Runs all checks of `kfit doctor` in order, and compares this task with the other tasks."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kfit.cluster.cluster import Cluster
from kfit.cluster.resolvers import cluster_source
from kfit.cluster.sockets import digest
from kfit.doctor.description import check_description
from kfit.doctor.environment import check_environment
from kfit.doctor.findings import Examination, Finding
from kfit.doctor.gpus import Gpus, compare_gpus, look_for_gpus
from kfit.doctor.peer_reports import exchange_reports, tasks_of
from kfit.doctor.report import Report
from kfit.doctor.storage import check_backup, compare_shared, sees_probe, shared_probe
from kfit.doctor.threads import check_threads, own_cpus, own_threads
from kfit.doctor.versions import (
    check_versions,
    compare_clocks,
    compare_versions,
    installed_versions,
)

DEFAULT_TIMEOUT = 8.0
"""Seconds to wait for the doctors of the other tasks, so that all checks take below ten seconds."""


@dataclass(frozen=True)
class Options:
    """The options of `kfit doctor`: what to check, and how long to wait for other tasks.

    Args:
        timeout: Seconds to wait for the other tasks that run `kfit doctor`.
        backup_dir: The directory of BackupAndRestore, in which a test file is written; None skips
            this check.
        shared_dir: A directory in which all tasks should see the same files; None skips this check.
        gpus: Whether to ask TensorFlow for GPUs even if this host has no GPU device.
    """

    timeout: float = DEFAULT_TIMEOUT
    backup_dir: str | None = None
    shared_dir: str | None = None
    gpus: bool = False


def examine(options: Options, environ: Mapping[str, str] = os.environ) -> Examination:
    """Checks this task, and compares it with the other tasks that run `kfit doctor` now.

    Args:
        options: What to check, and how long to wait for the other tasks.
        environ: The environment variables.

    Returns:
        The findings of all checks, and the reports of all tasks that answered.
    """
    began = time.monotonic()
    cluster, findings = check_description(environ)
    versions = installed_versions()
    findings += check_environment(environ, cluster)
    findings += check_versions(versions)
    gpus = look_for_gpus(environ, ask=options.gpus)
    findings += gpus.findings
    if options.backup_dir is not None:
        is_chief = cluster is None or cluster.is_chief
        findings += check_backup(options.backup_dir, is_chief=is_chief, environ=environ)
    with shared_probe(options.shared_dir) as (probe, wrong):
        findings += wrong
        own = _report(environ, cluster, versions, gpus)
        own = replace(own, shared_directory=options.shared_dir or "", probe=probe)
        reports = {own.task: own}
        if cluster is not None and str(cluster.task) not in tasks_of(cluster):
            # The other tasks do not know this task's address, and do not wait for its calls.
            text = f"the cluster lists no address for {cluster.task}: nothing is compared with it"
            findings.append(Finding("address", True, text))
        elif cluster is not None:
            found, reports = _with_peers(cluster, own, options)
            findings += found
    findings += check_threads(own, reports)
    return Examination(
        task=None if cluster is None else str(cluster.task),
        source=None if cluster is None else cluster_source(environ),
        findings=findings,
        reports={name: asdict(report) for name, report in reports.items()},
        seconds=round(time.monotonic() - began, 2),
    )


def _with_peers(
    cluster: Cluster, own: Report, options: Options
) -> tuple[list[Finding], dict[str, Report]]:
    """Exchanges reports with the other tasks that run `kfit doctor`, and compares all reports.

    Args:
        cluster: The cluster, in which this task must have an address.
        own: The report of this task about itself.
        options: What to check, and how long to wait for the other tasks.

    Returns:
        The findings; and the reports of all tasks that answered and of this task, by their names.
    """
    directory = options.shared_dir
    met = exchange_reports(
        cluster,
        own,
        options.timeout,
        lambda report: directory is None or sees_probe(directory, report),
    )
    reports = {**met.reports(), own.task: own}
    found = list(met.findings)
    found += compare_versions(reports)
    found += compare_clocks(met.peers.values())
    found += compare_gpus(own, reports, in_step=not cluster.has_ps)
    if directory is not None and own.probe:
        found += compare_shared(directory, met.unseen, reports)
    return found, reports


def _report(
    environ: Mapping[str, str], cluster: Cluster | None, versions: dict[str, str], gpus: Gpus
) -> Report:
    """Returns the report of this task about itself, which is sent to the other tasks."""
    cpus = own_cpus()
    return Report(
        task="this process" if cluster is None else str(cluster.task),
        cluster="" if cluster is None else digest(cluster),
        tasks=0 if cluster is None else len(tasks_of(cluster)),
        process=secrets.token_hex(8),
        host=socket.gethostname(),
        machine=_machine(),
        seconds=time.time(),
        versions=versions,
        cpus=cpus,
        threads=own_threads(environ, len(cpus)),
        gpus=gpus.count,
        visible_gpus=gpus.visible,
        source="" if cluster is None else cluster_source(environ) or "",
    )


def _machine() -> str:
    """Returns an identifier of this host or container, which is equal for all processes in it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname() + " " + (boot.read_text().strip() if boot.exists() else "")
