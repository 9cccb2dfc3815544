"""Finds out from the environment variables to which cluster this process belongs.

Programs that start the tasks (processes) of a cluster set such variables. The variables that are
read are TensorFlow's TF_CONFIG, kfit's own (for Kubernetes and others), Slurm's and SageMaker's.
The module uses only the standard library.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping

from kfit.cluster.addresses import show
from kfit.cluster.cluster import Cluster, ClusterError, Task, split_address
from kfit.cluster.slurm_step import slurm_cluster
from kfit.cluster.tf_config import describes_nothing
from kfit.cluster.variables import misspelled_variables

Environ = Mapping[str, str]


def current_cluster(environ: Environ = os.environ) -> Cluster | None:
    """Returns the cluster to which this process belongs, as environment variables describe it.

    There are four kinds of description, and the first that exists is used:

    1. TF_CONFIG, as Kubeflow and Vertex AI set it;
    2. KFIT_WORKERS, a list of addresses, with KFIT_INDEX or Kubernetes' JOB_COMPLETION_INDEX;
    3. the variables that Slurm sets for each task of a job step (an `srun`) with several tasks;
    4. SM_HOSTS with SM_CURRENT_HOST, as SageMaker sets them.

    If KFIT_CLUSTER is "tf_config", "workers", "slurm" or "sagemaker", only this kind is used. If it
    is "none", there is no cluster.

    Args:
        environ: The environment variables to read.

    Returns:
        The cluster; None if no variables describe a cluster, so that this process trains alone.

    Raises:
        ClusterError: If a description is wrong, or the kind that KFIT_CLUSTER chooses is missing.
    """
    return _resolved(environ)[1]


def cluster_source(environ: Environ = os.environ) -> str | None:
    """Returns the name of what describes the cluster of this process, for messages to the user.

    Examples are "TF_CONFIG", "Slurm" and "`kfit run`": a program that sets TF_CONFIG for the user
    gives its name by KFIT_STARTED_BY. The result is None if `current_cluster` finds no cluster.

    Raises:
        ClusterError: If a description is wrong, or the kind that KFIT_CLUSTER chooses is missing.
    """
    name, cluster = _resolved(environ)
    if cluster is None:
        return None
    return environ.get("KFIT_STARTED_BY") or _SOURCES[name]


def workers_listed(cluster: Cluster, environ: Environ = os.environ) -> str:
    """Returns for messages how many workers a cluster has, and what says so.

    Examples are "TF_CONFIG lists 1 worker" and "`kfit run` starts 2 workers".

    Args:
        cluster: The cluster that `current_cluster` has found.
        environ: The environment variables that describe it.
    """
    verb = "starts" if environ.get("KFIT_STARTED_BY") else "lists"
    plural = "" if cluster.num_workers == 1 else "s"
    return f"{cluster_source(environ)} {verb} {cluster.num_workers} worker{plural}"


def start_timeout_of(environ: Environ = os.environ) -> float:
    """Returns how many seconds to wait at the start until all tasks of the cluster are up.

    It is the value of the environment variable KFIT_START_TIMEOUT; by default 60.

    Raises:
        ClusterError: If KFIT_START_TIMEOUT is not a number of seconds above 0.
    """
    text = environ.get("KFIT_START_TIMEOUT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ClusterError(
            f"`KFIT_START_TIMEOUT` must be a number of seconds above 0. Got: {text!r}"
        )
    return seconds


def described_clusters(environ: Environ = os.environ) -> dict[str, Cluster | None]:
    """Returns what each kind of environment variables says about the cluster of this process.

    `current_cluster` uses only the first description that exists. `kfit doctor` compares all of
    them: a second description that differs is usually left over from something else.

    Returns:
        The described cluster for each kind, by its name, such as "TF_CONFIG" or "Slurm"; None for a
        kind whose variables are missing or wrong.
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
    if not chosen:
        _refuse_lonely_index(environ)
    if chosen:
        raise ClusterError(f"`KFIT_CLUSTER` is {chosen!r}, but that describes no cluster here")
    return "none", None


def _refuse_lonely_index(environ: Environ) -> None:
    """Refuses KFIT_INDEX in a process that nothing else describes as a task of a cluster.

    The list of addresses is missing or misspelled then, and each task would train alone.
    JOB_COMPLETION_INDEX does not count: Kubernetes sets it in every indexed Job.
    """
    index = environ.get("KFIT_INDEX")
    if not index:
        return
    misspelled = [name for name, meant in misspelled_variables(environ) if meant == "KFIT_WORKERS"]
    fix = (
        f"did you mean `KFIT_WORKERS` by `{misspelled[0]}`?"
        if misspelled
        else "list the addresses of all tasks in KFIT_WORKERS, or unset KFIT_INDEX"
    )
    raise ClusterError(
        f"`KFIT_INDEX` is {index!r}, but KFIT_WORKERS is not set, so this task would train alone; "
        f"{fix}"
    )


def _from_tf_config(environ: Environ) -> Cluster | None:
    # As in TensorFlow, an object with neither `cluster` nor `task` describes no cluster.
    text = environ.get("TF_CONFIG", "").strip()
    return None if not text or describes_nothing(text) else Cluster.from_tf_config(text)


def _from_workers(environ: Environ) -> Cluster | None:
    text = environ.get("KFIT_WORKERS", "").strip()
    if not text:
        return None
    if separator := re.search(r"(?<![,\s])\s+(?![,\s])|;", text):
        raise ClusterError(
            f"`KFIT_WORKERS` is {show(text)}, which has {separator[0]!r} between addresses; "
            "separate them by commas, as in 'host0:2222,host1:2222'"
        )
    addresses = tuple(part.strip() for part in text.split(","))
    for place, address in enumerate(addresses):
        split_address(address, f"KFIT_WORKERS[{place}]")
    is_of_job = "JOB_COMPLETION_INDEX" in environ and not environ.get("KFIT_INDEX")
    name = "JOB_COMPLETION_INDEX" if is_of_job else "KFIT_INDEX"
    index = environ.get(name, "")
    if not re.fullmatch("[0-9]{1,9}", index) or int(index) >= len(addresses):
        raise ClusterError(
            f"`{name}` is {repr(index) if index else 'not set'}; expected the place of this task "
            f"among the {len(addresses)} addresses of KFIT_WORKERS, a whole number from 0 to "
            f"{len(addresses) - 1}"
        )
    try:
        return Cluster({"worker": addresses}, Task("worker", int(index)))
    except ClusterError as error:
        raise ClusterError(f"`KFIT_WORKERS` and `{name}`: {error}") from None


def _from_sagemaker(environ: Environ) -> Cluster | None:
    """Returns the cluster of a SageMaker training job, which has one worker on each host.

    The workers are sorted by the names of their hosts, as TensorFlow sorts them. They listen on the
    port KFIT_PORT; by default on 2223, the port of TensorFlow's SageMakerClusterResolver. The
    result is None if the job has only one host, or if this is no SageMaker job.
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
