"""The addresses that tasks were given as those of the cluster, and how two lists of them differ.

All tasks must have the same addresses in the same order. A task tells another one what it was given
by a hash of all addresses and by some of them, so that an error can name the addresses that differ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from kfit.cluster import sockets
from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.cluster.printable import printable
from kfit.cluster.resolvers import cluster_source

# How many addresses that differ are named, and how many of a list of which none is known to.
_MOST_NAMED = 3
_MOST_LISTED = 8
# The most addresses to send with a message: so many that it is shorter than the longest line that a
# task reads.
_MOST_SENT = 32


class AddressList:
    """The addresses of a cluster that this task was given.

    Args:
        cluster: The description of the cluster. This task must be one of its tasks.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._me = str(cluster.task)
        self._addresses = addresses_by_name(cluster)
        self._listed = [address for _, address in cluster.workers]

    def sent_to(self, receiver: str) -> dict[str, str]:
        """Returns the addresses to send to another task, by the names of the tasks.

        They are the first 32, and those of this task and of the receiver.

        Args:
            receiver: The name of the other task.
        """
        names = [*self._addresses][:_MOST_SENT]
        names += [name for name in (self._me, receiver) if name in self._addresses]
        return {name: self._addresses[name] for name in names}

    def difference(self, its: Mapping[str, str], its_source: str, own_source: str | None) -> str:
        """Returns how the addresses of another process differ from those of this task.

        Args:
            its: The addresses that the other process has sent.
            its_source: What describes the cluster to it, such as "TF_CONFIG"; empty if that is
                unknown.
            own_source: What describes the cluster to this task; None or empty likewise.
        """
        own = self._addresses
        # What is missing from a long list may only not have been sent.
        expected = [*own][:_MOST_SENT] if len(its) < _MOST_SENT else []
        differing = [
            name for name in dict.fromkeys([*expected, *its]) if own.get(name) != its.get(name)
        ]
        there = printable(its_source) or "TF_CONFIG (or KFIT_WORKERS)"
        is_other = its_source and its_source != (own_source or its_source)
        here = f"the {own_source}" if is_other else "that"
        if not differing:
            more = f" and {len(self._listed) - _MOST_LISTED} more"
            listed = ", ".join(self._listed[:_MOST_LISTED])
            return (
                f"its {there} lists other addresses than {here} of this task, {self._me}, which "
                f"lists {listed}{more * (len(self._listed) > _MOST_LISTED)}"
            )
        more = f"; {len(differing) - _MOST_NAMED} more differ" * (len(differing) > _MOST_NAMED)
        return (
            f"its {there} lists {_entries(differing, its)}, {here} of this task, {self._me}, "
            f"{_entries(differing, own)}{more}"
        )


def addresses_by_name(cluster: Cluster) -> dict[str, str]:
    """Returns the addresses that tasks compare, by the names of the tasks."""
    return {
        str(Task(kind, index)): address
        for kind in sockets.COMPARED
        for index, address in enumerate(cluster.addresses.get(kind, ()))
    }


def source_or_none(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns what describes the cluster, such as "TF_CONFIG"; None if the program alone does.

    Args:
        environ: The environment variables.
    """
    try:
        return cluster_source(environ)
    except ClusterError:  # the program has given another description
        return None


def _entries(names: list[str], addresses: Mapping[str, str]) -> str:
    """Returns the addresses of some tasks as a text for an error message, at most three."""
    shown = [
        f"{printable(addresses.get(name, 'no address'))} for {printable(name)}"
        for name in names[:_MOST_NAMED]
    ]
    return " and ".join(shown)
