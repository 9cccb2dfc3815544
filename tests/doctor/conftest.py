"""Reports of tasks that the tests make up, and what a check says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kfit.cluster.cluster import Cluster
from kfit.cluster.sockets import digest
from kfit.doctor.findings import Finding
from kfit.doctor.report import Report

PLAIN = Report(
    task="worker 0",
    cluster="",
    tasks=2,
    process="made up",
    host="here",
    machine="here 1",
    seconds=0.0,
    versions={"python": "3.11.2", "kfit": "1.0", "tensorflow": "2.21.0"},
    cpus=[0, 1, 2, 3],
    threads=2,
    gpus=0,
    visible_gpus=[],
)


@pytest.fixture(scope="session")
def report_of() -> Callable[..., Report]:
    """Makes a report, of a task of a cluster or of any other."""

    def make(cluster: Cluster | None = None, **changed: Any) -> Report:
        if cluster is not None:
            task = str(cluster.task)
            known = {"task": task, "cluster": digest(cluster), "process": task}
            changed = {**known, **changed}
        return replace(PLAIN, **changed)

    return make


@pytest.fixture(scope="session")
def texts() -> Callable[[list[Finding]], str]:
    """The texts of the problems that a check has found, a line each."""
    return lambda found: "\n".join(each.text for each in found if not each.ok)
