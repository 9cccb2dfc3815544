"""The cluster of a Slurm job step: the tasks that `srun` has started, and their hosts.

It reads the variables of the step (`man srun`, "OUTPUT ENVIRONMENT VARIABLES"), which only tasks
that `srun` has started have. A batch script that runs `python` directly is therefore not a
cluster, however many tasks its job has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kfit.cluster.cluster import Cluster, ClusterError, Task

_LOWEST_PORT, _PORTS = 12_000, 18_000
"""The lowest base port, and the number of base ports. Tasks get ports below those that operating
systems use for outgoing connections."""


def slurm_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of the tasks of this job step. All of them are workers.

    The workers are in the order of the ids that Slurm gives to the tasks. The k-th task of a host
    listens on the k-th port from a base port. The base is computed from the ids of the job and the
    step, so that two jobs on one host rarely collide; KFIT_PORT sets another one.

    Args:
        environ: The environment variables.

    Returns:
        The cluster, or None outside of a step of several tasks.

    Raises:
        ClusterError: If the variables contradict each other; the message names them.
    """
    if _number(environ, "SLURM_STEP_NUM_TASKS", 1) < 2:
        return None
    index = _number(environ, "SLURM_PROCID")
    hosts = list(expand_hosts(_text(environ, "SLURM_STEP_NODELIST")))
    counts = tasks_per_host(_text(environ, "SLURM_STEP_TASKS_PER_NODE"))
    total = _number(environ, "SLURM_STEP_NUM_TASKS")
    if len(counts) != len(hosts) or sum(counts) != total:
        raise ClusterError(
            f"`SLURM_STEP_TASKS_PER_NODE` is {environ['SLURM_STEP_TASKS_PER_NODE']!r}, which does "
            f"not give {total} tasks on the {len(hosts)} hosts of SLURM_STEP_NODELIST, "
            f"{environ['SLURM_STEP_NODELIST']!r}"
        )
    first = _base_port(environ)
    addresses, place = [], []
    for node, (host, count) in enumerate(zip(hosts, counts, strict=True)):
        addresses += [f"{host}:{first + local}" for local in range(count)]
        place += [(node, local) for local in range(count)]
    if index >= total:
        raise ClusterError(f"`SLURM_PROCID` is {index}; expected 0 to {total - 1}")
    given = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_LOCALID")
    if given != place[index]:
        raise ClusterError(
            f"task {index} of the Slurm step runs as task {given[1]} of host {given[0]}; with "
            f"tasks in blocks it would be task {place[index][1]} of host {place[index][0]}. Start "
            "it with `srun --distribution=block`"
        )
    return Cluster({"worker": tuple(addresses)}, Task("worker", index))


def expand_hosts(text: str) -> Iterator[str]:
    """Yields the host names of a text in Slurm's short form, such as "a[1-3,07],b".

    Leading zeros of numbers are kept.

    Raises:
        ClusterError: If the text is not of that form.
    """
    host = r"(?:[^,\s\[\]]|\[[^\s\[\]]+\])+"
    if not re.fullmatch(f"{host}(,{host})*", text):
        raise ClusterError(f"`SLURM_STEP_NODELIST` is {text!r}; expected hosts such as 'a[1-3],b'")
    for part in re.findall(host, text):
        yield from _expand(part)


def _expand(part: str) -> Iterator[str]:
    found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if found is None:
        yield part
        return
    before, ranges, rest = found.groups()
    for item in ranges.split(","):
        bounds = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", item)
        if bounds is None:
            raise ClusterError(
                f"`SLURM_STEP_NODELIST` holds the range {item!r}; expected numbers such as '1-3'"
            )
        first, last = bounds[1], bounds[2] or bounds[1]
        for number in range(int(first), int(last) + 1):
            for end in _expand(rest):
                yield f"{before}{number:0{len(first)}d}{end}"


def tasks_per_host(text: str) -> list[int]:
    """Expands Slurm's short form of the numbers of tasks on each host, such as "2(x3),1".

    This example means 2, 2, 2 and 1.

    Raises:
        ClusterError: If the text is not of that form.
    """
    counts: list[int] = []
    for item in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", item)
        if found is None:
            raise ClusterError(
                f"`SLURM_STEP_TASKS_PER_NODE` is {text!r}; expected numbers such as '2(x3),1'"
            )
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _base_port(environ: Mapping[str, str]) -> int:
    if environ.get("KFIT_PORT"):
        return _number(environ, "KFIT_PORT")
    job, step = _number(environ, "SLURM_JOB_ID", 0), _number(environ, "SLURM_STEP_ID", 0)
    return _LOWEST_PORT + (job * 131 + step * 17) % _PORTS


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ClusterError(
            f"`{name}` is not set, though SLURM_STEP_NUM_TASKS is "
            f"{environ.get('SLURM_STEP_NUM_TASKS')!r}: start the tasks with `srun`, or set "
            "KFIT_CLUSTER=none to train alone in each"
        )
    return environ[name]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not environ.get(name):
        return default
    text = _text(environ, name)
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ClusterError(f"`{name}` is {text!r}; expected a whole number")
    return int(text)
