"""Finds the cluster that this process was started in.

It reads the environment variables of the programs that start tasks: TensorFlow's TF_CONFIG, kfit's
own (for Kubernetes and others), Slurm's and SageMaker's. It uses only the standard library.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping

from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.cluster.slurm_step import slurm_cluster
from kfit.cluster.tf_config import describes_nothing

Environ = Mapping[str, str]


def current_cluster(environ: Environ = os.environ) -> Cluster | None:
    """Finds the cluster that this process was started in.

    It uses the first of these descriptions that exists: TF_CONFIG, as TensorFlow, Kubeflow and
    Vertex AI set it; KFIT_WORKERS, a list of addresses, with KFIT_INDEX or the JOB_COMPLETION_INDEX
    of Kubernetes; the variables of a Slurm step of several tasks; and SM_HOSTS with
    SM_CURRENT_HOST, as SageMaker sets them. KFIT_CLUSTER chooses one of them ("tf_config",
    "workers", "slurm" or "sagemaker") or "none".

    Args:
        environ: The environment variables to read.

    Returns:
        The cluster, or None if no variables describe one: this process then trains alone.

    Raises:
        ClusterError: If a description is wrong, or the one that KFIT_CLUSTER chooses is missing.
    """
    return _resolved(environ)[1]


def cluster_source(environ: Environ = os.environ) -> str | None:
    """Returns what describes the cluster that `current_cluster` finds, for messages.

    Examples are "TF_CONFIG" and "Slurm". The result is None if there is no cluster.
    """
    name, cluster = _resolved(environ)
    return None if cluster is None else _SOURCES[name]


def start_timeout_of(environ: Environ = os.environ) -> float:
    """Returns how many seconds to wait for the other tasks of a cluster: KFIT_START_TIMEOUT, or 60.

    Raises:
        ValueError: If KFIT_START_TIMEOUT is not a number of seconds above 0.
    """
    text = environ.get("KFIT_START_TIMEOUT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"`KFIT_START_TIMEOUT` must be a number of seconds above 0. Got: {text!r}")
    return seconds


def described_clusters(environ: Environ = os.environ) -> dict[str, Cluster | None]:
    """Returns the cluster that each kind of description gives, by the name of the kind.

    The names are those that `cluster_source` returns, such as "TF_CONFIG". The value is None if
    such a description is missing or wrong. `current_cluster` uses the first description that
    exists. If another one differs from the first, the variables of that other one are usually left
    over from something else.
    """
    found: dict[str, Cluster | None] = {}
    for name, resolve in _RESOLVERS.items():
        try:
            found[_SOURCES[name]] = resolve(environ)
        except ClusterError:
            found[_SOURCES[name]] = None
    return found


def _resolved(environ: Environ) -> tuple[str, Cluster | None]:
    chosen = environ.get("KFIT_CLUSTER", "").strip()
    if chosen == "none":
        return chosen, None
    if chosen and chosen not in _RESOLVERS:
        raise ClusterError(f"`KFIT_CLUSTER` is {chosen!r}; expected one of {[*_RESOLVERS, 'none']}")
    for name, resolve in _RESOLVERS.items():
        if chosen in ("", name):
            cluster = resolve(environ)
            if cluster is not None:
                return name, cluster
    if chosen:
        raise ClusterError(f"`KFIT_CLUSTER` is {chosen!r}, but that describes no cluster here")
    return "none", None


def _from_tf_config(environ: Environ) -> Cluster | None:
    # As in TensorFlow, an object with neither `cluster` nor `task` describes no cluster.
    text = environ.get("TF_CONFIG", "").strip()
    return None if not text or describes_nothing(text) else Cluster.from_tf_config(text)


def _from_workers(environ: Environ) -> Cluster | None:
    text = environ.get("KFIT_WORKERS", "").strip()
    if not text:
        return None
    name = "KFIT_INDEX" if environ.get("KFIT_INDEX") else "JOB_COMPLETION_INDEX"
    index = environ.get(name, "")
    if not re.fullmatch("[0-9]{1,9}", index):
        raise ClusterError(
            f"`KFIT_WORKERS` lists addresses, but `{name}`, which says which of them is this "
            f"task's, is {index!r}; expected a whole number from 0 up. Set KFIT_INDEX, or run an "
            "indexed Job of Kubernetes"
        )
    try:
        addresses = tuple(part.strip() for part in text.split(","))
        return Cluster({"worker": addresses}, Task("worker", int(index)))
    except ClusterError as error:
        raise ClusterError(f"`KFIT_WORKERS` and `{name}`: {error}") from None


def _from_sagemaker(environ: Environ) -> Cluster | None:
    """Returns the cluster of a SageMaker training job: one worker on each host, sorted by name.

    TensorFlow sorts them in the same way. They listen on KFIT_PORT, or else on 2223, the port of
    TensorFlow's SageMakerClusterResolver. The result is None if there are not several hosts.
    """
    text = environ.get("SM_HOSTS", "").strip()
    if not text:
        return None
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ClusterError(f"`SM_HOSTS` is {text!r}; expected a JSON list such as '[\"algo-1\"]'")
    if len(hosts) < 2:
        return None
    here, hosts = environ.get("SM_CURRENT_HOST", ""), sorted(hosts)
    if here not in hosts:
        raise ClusterError(
            f"`SM_CURRENT_HOST` is {here!r}; expected one of SM_HOSTS, {', '.join(hosts)}"
        )
    port = environ.get("KFIT_PORT") or "2223"
    try:
        addresses = tuple(f"{host}:{port}" for host in hosts)
        return Cluster({"worker": addresses}, Task("worker", hosts.index(here)))
    except ClusterError as error:
        raise ClusterError(f"`SM_HOSTS` and `KFIT_PORT`: {error}") from None


_RESOLVERS: dict[str, Callable[[Environ], Cluster | None]] = {
    "tf_config": _from_tf_config,
    "workers": _from_workers,
    "slurm": slurm_cluster,
    "sagemaker": _from_sagemaker,
}
_SOURCES = {
    "tf_config": "TF_CONFIG",
    "workers": "KFIT_WORKERS",
    "slurm": "Slurm",
    "sagemaker": "SageMaker",
}
