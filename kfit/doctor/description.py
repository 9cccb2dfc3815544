"""Checks the environment variables that describe the cluster, such as `TF_CONFIG`."""

from __future__ import annotations

from collections.abc import Mapping

from kfit.cluster.cluster import Cluster, ClusterError, split_address
from kfit.cluster.resolvers import cluster_source, current_cluster, described_clusters
from kfit.cluster.sockets import is_loopback
from kfit.doctor.findings import Finding

_EXPECTED = "expected "


def check_description(environ: Mapping[str, str]) -> tuple[Cluster | None, list[Finding]]:
    """Reads the cluster of this process from the environment variables, and checks these.

    Args:
        environ: The environment variables.

    Returns:
        The cluster, and the findings of the checks. The cluster is None if no variables describe
        one, or if the description is invalid.
    """
    try:
        cluster = current_cluster(environ)
    except ClusterError as error:
        text, _, fix = str(error).partition("; ")
        if fix.startswith(_EXPECTED):
            fix = f"give {fix.removeprefix(_EXPECTED)}"
        return None, [Finding("cluster", False, text, fix)]
    if cluster is None:
        return None, [_alone(environ)]
    source = cluster_source(environ)
    count = sum(len(listed) for listed in cluster.addresses.values())
    plural = "s" if count != 1 else ""
    found = [
        Finding("cluster", True, f"{source} lists {count} task{plural}; this is {cluster.task}")
    ]
    return cluster, found + _contradictions(environ, cluster) + _only_here(cluster)


def _alone(environ: Mapping[str, str]) -> Finding:
    """Returns the finding for a process for which no environment variables describe a cluster.

    Usually this is no problem. It is a problem if Slurm or Kubernetes has started this process for
    a job of several processes, since each of these would train alone.
    """
    if environ.get("KFIT_CLUSTER", "").strip() != "none":
        tasks = environ.get("SLURM_NTASKS", "1")
        if tasks not in ("", "1") and "SLURM_STEP_NUM_TASKS" not in environ:
            return Finding(
                "cluster",
                False,
                f"this is the batch script of a Slurm job of {tasks} tasks, not one of the tasks: "
                "it would train alone",
                "start it with `srun`, or set KFIT_CLUSTER=none",
            )
        if environ.get("JOB_COMPLETION_INDEX"):
            return Finding(
                "cluster",
                False,
                "this is a pod of an indexed Job of Kubernetes, but KFIT_WORKERS is not set: each "
                "pod would train alone",
                "list the addresses of all pods in KFIT_WORKERS (`kfit manifest kubernetes` does), "
                "or set KFIT_CLUSTER=none",
            )
    return Finding("cluster", True, "nothing describes a cluster: training is on this host alone")


def _contradictions(environ: Mapping[str, str], cluster: Cluster) -> list[Finding]:
    if environ.get("KFIT_CLUSTER"):
        return []
    others = [
        name for name, other in described_clusters(environ).items() if other not in (cluster, None)
    ]
    taken = cluster_source(environ)
    return [
        Finding(
            "cluster",
            False,
            f"{taken} and {name} describe two clusters that differ; kfit takes {taken}",
            "unset the one that is not wanted, or choose one with KFIT_CLUSTER",
            about=name,
        )
        for name in others
        if name != taken
    ]


def _only_here(cluster: Cluster) -> list[Finding]:
    """Checks that a cluster on several hosts has no loopback address, such as localhost.

    On each host a loopback address means this host itself, so tasks on other hosts cannot connect
    to it. If all addresses are loopback addresses, the cluster is on one host, and this is right.

    Returns:
        A list with the problem, or an empty list.
    """
    addresses = [address for listed in cluster.addresses.values() for address in listed]
    here = [address for address in addresses if is_loopback(split_address(address)[0])]
    if not here or len(here) == len(addresses):
        return []
    return [
        Finding(
            "cluster",
            False,
            f"{', '.join(here)} means the host itself on every host, while other tasks are on "
            "hosts with a name",
            "give the name or the address by which the other hosts can reach it",
        )
    ]
