"""Writes a training job for Kubernetes: an indexed Job, and a Service for the pods' host names.

A NetworkPolicy keeps other pods away from those of the job, since TensorFlow's servers run whatever
a caller sends them.

Each pod runs one task. Pod i of an indexed Job has the host name `NAME-i` in the domain of a
headless Service. If the pod is replaced, the new pod has the same name. So all addresses are known
before any pod exists, and KFIT_WORKERS is set to them. Each pod reads its own index from
JOB_COMPLETION_INDEX. (In the documentation of Kubernetes: "Job with Pod-to-Pod Communication", "Pod
failure policy".)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfit.argument_checks import CommandError
from kfit.cluster import secret
from kfit.manifest.job import LONGEST_NAME, Job

# Seconds that a pod has to end after the grace period of `kfit run`. At the end of that period,
# `kfit run` kills its tasks.
_LEEWAY = 15
# The exit codes of tasks that a signal told to stop, and that have saved: 128 + the number of
# SIGHUP, SIGUSR1 or SIGTERM.
_STOPPED = (129, 138, 143)
_USAGE_ERROR = 2
# The key in the Kubernetes Secret under which the secret of the run is stored.
_SECRET_KEY = "secret"
_JOB_LABEL = "job-name"
"""The label by which Kubernetes marks the pods of a Job with the Job's name."""
_QUANTITY = r"[0-9]+(\.[0-9]+)?"


@dataclass(frozen=True)
class PodOptions:
    """Options of a job's pods, which only Kubernetes needs.

    Args:
        image: The container image, with kfit and the program in it.
        namespace: The namespace; None for the default of `kubectl`.
        port: The port on which each task listens.
        backup_claim: The name of a PersistentVolumeClaim to mount at the job's `backup_dir`; None
            to mount nothing.
    """

    image: str
    namespace: str | None = None
    port: int = 2222
    backup_claim: str | None = None


def kubernetes_documents(job: Job, options: PodOptions) -> list[dict[str, Any]]:
    """Returns a training job as objects of the Kubernetes API: a Service and a Job.

    For several workers there is also a Secret, by which they recognize each other's messages, and a
    NetworkPolicy, so that no other pod reaches them.

    Args:
        job: The description of the training job.
        options: The options of the job's pods.

    Raises:
        CommandError: If Kubernetes would not accept a value of the job or its pods.
    """
    check_job(job, options, longest_suffix=f"-{job.workers - 1}")
    workers = ",".join(f"{job.name}-{i}.{job.name}:{options.port}" for i in range(job.workers))
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, options),
        "spec": {
            "clusterIP": "None",
            # Pods resolve the names of their peers before these count as ready.
            "publishNotReadyAddresses": True,
            "selector": {_JOB_LABEL: job.name},
            "ports": [{"name": "kfit", "port": options.port}],
        },
    }
    has_peers = job.workers > 1
    variables = {"KFIT_WORKERS": workers} if has_peers else {}
    pod = pod_spec(job, options, "kfit", variables, has_peers=has_peers)
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimit": job.max_restarts,
        "podFailurePolicy": {
            "rules": [
                # The node is drained, or the pod is preempted: this is not a failure.
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                # The task was told to stop: all tasks stop after the same step, and start again.
                {
                    "action": "Ignore",
                    "onExitCodes": {"operator": "In", "values": list(_STOPPED)},
                },
                # A restart does not help against a wrong command line.
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
    if not has_peers:
        return [service, manifest]
    policy = network_policy(job, options, _JOB_LABEL)
    return [service, policy, secret_document(job, options), manifest]


def network_policy(job: Job, options: PodOptions, label: str) -> dict[str, Any]:
    """Returns a Kubernetes NetworkPolicy by which only the pods of a job can connect to each other.

    Args:
        job: The description of the training job.
        options: The options of the job's pods.
        label: The label whose value is the job's name on all pods of the job, and on no other pod.
    """
    pods = {"podSelector": {"matchLabels": {label: job.name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, options),
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }


def secret_document(job: Job, options: PodOptions) -> dict[str, Any]:
    """Returns a Kubernetes Secret with a new random secret for the job's run.

    The tasks sign their messages to each other with it.

    Args:
        job: The description of the training job.
        options: The options of the job's pods.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, options),
        "stringData": {_SECRET_KEY: secret.new_secret()},
    }


def metadata(job: Job, options: PodOptions) -> dict[str, Any]:
    """Returns the metadata of a Kubernetes object: its name, and its namespace if one is given."""
    return {"name": job.name} | ({"namespace": options.namespace} if options.namespace else {})


def pod_spec(
    job: Job,
    options: PodOptions,
    container: str,
    variables: Mapping[str, str],
    *,
    has_peers: bool,
) -> dict[str, Any]:
    """Returns the Kubernetes specification of a pod, in which one container runs one task of a job.

    Args:
        job: The description of the training job.
        options: The options of the job's pods.
        container: The name of the container.
        variables: Environment variables to set, in addition to those of the job.
        has_peers: Whether the job has several tasks, which need the secret of `secret_document`.
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
        # NCCL exchanges gradients through /dev/shm, and by default a container has only 64 MB.
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    environment: list[dict[str, Any]] = [
        {"name": name, "value": _literal(value)}
        for name, value in {**job.variables(), **variables}.items()
    ]
    if has_peers:
        reference = {"secretKeyRef": {"name": job.name, "key": _SECRET_KEY}}
        environment.append({"name": secret.VARIABLE, "valueFrom": reference})
    main: dict[str, Any] = {
        "name": container,
        "image": options.image,
        "command": [_literal(word) for word in _command(job)],
    }
    if environment:
        main["env"] = environment
    if limits:
        main["resources"] = {"limits": limits}
    if mounts:
        main["volumeMounts"] = mounts
    spec: dict[str, Any] = {
        # Without this, Kubernetes sets variables for each Service in the namespace, such as
        # KFIT_PORT for one that is named "kfit".
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": job.grace + _LEEWAY,
        "containers": [main],
    }
    return spec | ({"volumes": volumes} if volumes else {})


def check_job(job: Job, options: PodOptions, *, longest_suffix: str) -> None:
    """Checks a training job for values that Kubernetes would refuse or misunderstand.

    Args:
        job: The description of the training job.
        options: The options of the job's pods.
        longest_suffix: The longest text that is appended to the job's name to get the host name of
            a pod. Kubernetes limits the length of host names.

    Raises:
        CommandError: If there is such a value. Also if `options.backup_claim` names a volume, but
            `job.backup_dir`, where it is mounted, is not an absolute path.
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
        given = "missing" if job.backup_dir is None else repr(job.backup_dir)
        raise CommandError(
            f"`--backup-dir` is {given}; expected the absolute path at which `--backup-claim` is "
            "mounted, the `backup_dir` of BackupAndRestore"
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
        # A pod that fails would end the Job, and remove the other pods with their output.
        return ["sh", "-c", shlex.join(job.command()) + " || true"]
    return job.command()


def _literal(text: str) -> str:
    """Escapes "$" for Kubernetes, which replaces $(NAME) by a variable, and $$ by "$"."""
    return text.replace("$", "$$")
