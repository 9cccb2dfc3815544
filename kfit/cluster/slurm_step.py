"""The cluster of a Slurm job step: the tasks that one `srun` has started, and their hosts.

This module reads the environment variables that `srun` sets for each task (`man srun`, "OUTPUT
ENVIRONMENT VARIABLES"). A batch script that runs `python` without `srun` does not have them, and is
therefore no cluster, however many tasks its job has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kfit.cluster.cluster import Cluster, ClusterError, Task

_LOWEST_PORT, _PORTS = 12_000, 18_000
"""The lowest base port, and the number of base ports. Tasks get ports below those that operating
systems use for outgoing connections."""

_MOST = 100_000
"""The greatest number of hosts and of tasks, so that a wrong text does not take all memory."""
_MOST_RANGES = 8
"""The greatest number of ranges in brackets in the name of one host."""


def slurm_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of the tasks that the same `srun` has started. All of them are workers.

    The order of the workers is that of the ids that Slurm gives to the tasks. The first task of a
    host listens on a base port, the second task on the next port, and so on. The base port is
    computed from the ids of the Slurm job and job step, so that two jobs on one host rarely use the
    same ports. KFIT_PORT sets a different base port.

    Args:
        environ: The environment variables that Slurm has set.

    Returns:
        The cluster; None if this process was not started by `srun` with several tasks.

    Raises:
        ClusterError: If variables are missing, invalid or contradict each other. The message names
            them.
    """
    if _number(environ, "SLURM_STEP_NUM_TASKS", 1) < 2:
        return None
    index = _number(environ, "SLURM_PROCID")
    hosts = list(expand_hosts(_text(environ, "SLURM_STEP_NODELIST")))
    counts = tasks_per_host(_text(environ, "SLURM_STEP_TASKS_PER_NODE"))
    total = _number(environ, "SLURM_STEP_NUM_TASKS")
    if total > _MOST:
        raise ClusterError(f"`SLURM_STEP_NUM_TASKS` is {total:,}; kfit starts at most {_MOST:,}")
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
    """Yields each host name in a list of hosts that Slurm has abbreviated.

    For example "a[1-2,07],b" means a1, a2, a07 and b.

    Raises:
        ClusterError: If the text does not have this form, or lists more than 100,000 hosts.
    """
    host = r"(?:[^,\s\[\]]|\[[^\s\[\]]+\])+"
    parts = re.findall(host, text)
    has_form = re.fullmatch(f"{host}(,{host})*", text)
    if not has_form or any(part.count("[") > _MOST_RANGES for part in parts):
        raise ClusterError(f"`SLURM_STEP_NODELIST` is {text!r}; expected hosts such as 'a[1-3],b'")
    expanded = (each for part in parts for each in _expand(part))
    for number, each in enumerate(expanded):
        if number >= _MOST:
            raise ClusterError(f"`SLURM_STEP_NODELIST` is {text!r}, which is over {_MOST:,} hosts")
        yield each


def _expand(part: str) -> Iterator[str]:
    found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if found is None:
        yield part
        return
    before, ranges, rest = found.groups()
    for item in ranges.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", item)
        if bounds is None or int(bounds[2] or bounds[1]) < int(bounds[1]):
            raise ClusterError(
                f"`SLURM_STEP_NODELIST` holds the range {item!r}; expected numbers such as '1-3'"
            )
        first, last = bounds[1], bounds[2] or bounds[1]
        for number in range(int(first), int(last) + 1):
            for end in _expand(rest):
                yield f"{before}{number:0{len(first)}d}{end}"


def tasks_per_host(text: str) -> list[int]:
    """Returns the number of tasks on each host, from a text that Slurm has abbreviated.

    For example "2(x3),1" means two tasks on each of three hosts, and one task on the fourth.

    Raises:
        ClusterError: If the text does not have this form, or lists more than 100,000 hosts.
    """
    counts: list[int] = []
    for item in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", item)
        if found is None:
            raise ClusterError(
                f"`SLURM_STEP_TASKS_PER_NODE` is {text!r}; expected numbers such as '2(x3),1'"
            )
        times = int(found[2] or 1)
        if len(counts) + times > _MOST:
            raise ClusterError(
                f"`SLURM_STEP_TASKS_PER_NODE` is {text!r}, which is over {_MOST:,} hosts"
            )
        counts += [int(found[1])] * times
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
    if not re.fullmatch("[0-9]{1,18}", text):  # ids of jobs have up to ten
        raise ClusterError(f"`{name}` is {text!r}; expected a whole number")
    return int(text)
