"""A job for Kubernetes: an indexed Job, and the Service that gives its pods names.

Pod i of an indexed Job is the host `NAME-i` in the domain of a headless Service, and stays so when
it is replaced; its index is in JOB_COMPLETION_INDEX. So KFIT_WORKERS can be written down before any
pod exists. (Kubernetes, "Job with Pod-to-Pod Communication", "Pod failure policy".)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfit.argument_checks import CommandError
from kfit.manifest.job import LONGEST_NAME, Job

# Seconds that a pod has beyond the grace of `kfit run`, which kills what is left at its end.
_LEEWAY = 15
# The exit codes of tasks that were told to stop and have saved: SIGHUP, SIGUSR1, SIGTERM.
_STOPPED = (129, 138, 143)
_USAGE_ERROR = 2
_QUANTITY = r"[0-9]+(\.[0-9]+)?"


@dataclass(frozen=True)
class PodOptions:
    """Where in Kubernetes a job runs, and on what.

    Args:
        image: The container image, with kfit and the program in it.
        namespace: The namespace; None leaves it to `kubectl`.
        port: The port on which the tasks listen.
        backup_claim: A PersistentVolumeClaim to mount at the job's `backup_dir`.
    """

    image: str
    namespace: str | None = None
    port: int = 2222
    backup_claim: str | None = None


def kubernetes_documents(job: Job, options: PodOptions) -> list[dict[str, Any]]:
    """Returns the Service and the Job, as Kubernetes' API has them.

    Raises:
        CommandError: If a name or a quantity is none that Kubernetes takes.
    """
    check_job(job, options, longest_suffix=f"-{job.workers - 1}")
    workers = ",".join(f"{job.name}-{i}.{job.name}:{options.port}" for i in range(job.workers))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, options),
        "spec": {
            "clusterIP": "None",
            # A pod looks its peers up before any of them counts as ready.
            "publishNotReadyAddresses": True,
            "selector": {"job-name": job.name},
            "ports": [{"name": "kfit", "port": options.port}],
        },
    }
    pod = pod_spec(job, options, "kfit", {"KFIT_WORKERS": workers} if job.workers > 1 else {})
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimit": job.max_restarts,
        "podFailurePolicy": {
            "rules": [
                # The node is drained, or the pod makes room for another: it is no failure.
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                # Its peers stop with it, after the same step, and are started again with it.
                {
                    "action": "Ignore",
                    "onExitCodes": {"operator": "In", "values": list(_STOPPED)},
                },
                # A wrong command line is as wrong the next time.
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "In", "values": [_USAGE_ERROR]},
                },
            ]
        },
        "template": {"spec": {"subdomain": job.name, "restartPolicy": "Never", **pod}},
    }
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, options),
        "spec": spec,
    }
    return [service, manifest]


def metadata(job: Job, options: PodOptions) -> dict[str, Any]:
    """The name of an object, and its namespace where one was given."""
    return {"name": job.name} | ({"namespace": options.namespace} if options.namespace else {})


def pod_spec(
    job: Job, options: PodOptions, container: str, variables: Mapping[str, str]
) -> dict[str, Any]:
    """Returns what a pod of the job runs and has.

    Args:
        job: The job.
        options: Where it runs.
        container: The name of the one container.
        variables: Environment variables besides those of the job.
    """
    limits: dict[str, str] = {}
    if job.cpus is not None:
        limits["cpu"] = job.cpus
    if job.memory is not None:
        limits["memory"] = job.memory
    if job.gpus:
        limits["nvidia.com/gpu"] = str(job.gpus)
    mounts, volumes = [], []
    if options.backup_claim is not None:
        mounts.append({"name": "backup", "mountPath": job.backup_dir})
        claim = {"claimName": options.backup_claim}
        volumes.append({"name": "backup", "persistentVolumeClaim": claim})
    if job.gpus:
        # NCCL exchanges gradients through it, and a container's own is 64 MB.
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    environment = {**job.variables(), **variables}
    main: dict[str, Any] = {
        "name": container,
        "image": options.image,
        "command": [_literal(word) for word in _command(job)],
    }
    if environment:
        main["env"] = [{"name": n, "value": _literal(v)} for n, v in environment.items()]
    if limits:
        main["resources"] = {"limits": limits}
    if mounts:
        main["volumeMounts"] = mounts
    spec: dict[str, Any] = {
        # Services of others must not set variables such as KFIT_PORT.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": job.grace + _LEEWAY,
        "containers": [main],
    }
    return spec | ({"volumes": volumes} if volumes else {})


def check_job(job: Job, options: PodOptions, *, longest_suffix: str) -> None:
    """Refuses what Kubernetes would refuse, or take for something else.

    Args:
        job: The job.
        options: Where it runs.
        longest_suffix: What is put behind the name of the job to make the name of a pod's host.

    Raises:
        CommandError: If a name or a quantity is none that Kubernetes takes.
    """
    _check_name("--name", job.name, longest_suffix)
    for option, name in (
        ("--namespace", options.namespace),
        ("--backup-claim", options.backup_claim),
    ):
        if name is not None:
            _check_name(option, name)
    if not options.image or re.search(r"\s", options.image):
        raise CommandError(
            f"`--image` is {options.image!r}; expected the name of a container image"
        )
    if not 1 <= options.port <= 65535:
        raise CommandError(f"`--port` is {options.port}; expected a number from 1 to 65535")
    if job.cpus is not None and not re.fullmatch(f"{_QUANTITY}m?", job.cpus):
        raise CommandError(f"`--cpus` is {job.cpus!r}; expected a number such as 8, 2.5 or 500m")
    if job.memory is not None and not re.fullmatch(f"{_QUANTITY}([KMGT]i|[kMGT])?", job.memory):
        raise CommandError(f"`--memory` is {job.memory!r}; expected a quantity such as 16Gi")
    if options.backup_claim is not None and not (job.backup_dir or "").startswith("/"):
        raise CommandError(
            f"`--backup-dir` is {job.backup_dir!r}; expected the absolute path at which "
            "`--backup-claim` is mounted, the `backup_dir` of BackupAndRestore"
        )


def _check_name(option: str, name: str, suffix: str = "") -> None:
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise CommandError(
            f"`{option}` is {name!r}; expected small letters, digits and '-', a letter first"
        )
    if len(name + suffix) > LONGEST_NAME:
        raise CommandError(
            f"`{option}` is {name!r}, and {name}{suffix} is longer than the {LONGEST_NAME} "
            "characters of a host's name; choose a shorter one"
        )


def _command(job: Job) -> list[str]:
    if job.doctor:
        # A pod that fails ends the Job and the other pods with their output.
        return ["sh", "-c", shlex.join(job.command()) + " || true"]
    return job.command()


def _literal(text: str) -> str:
    """Returns a text as Kubernetes must find it: it reads $(NAME), and $$ as one $."""
    return text.replace("$", "$$")
