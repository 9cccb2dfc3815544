"""The tasks of a cluster and their addresses, and the checks that both must pass.

The rules are those of TensorFlow's `multi_worker_util`, made stricter wherever TensorFlow would
hang or silently train on one task alone. The module uses only the standard library. So a wrong
configuration raises an error before TensorFlow is imported, which takes seconds.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TASK_TYPES = ("chief", "worker", "ps", "evaluator")


class ClusterError(ValueError):
    """An error for a wrong description of the cluster, or of this task's place in it."""


@dataclass(frozen=True)
class Task:
    """One task (process) of a cluster: its type, and its index among the tasks of that type."""

    type: str
    id: int

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


def split_address(address: str, key: str = "address") -> tuple[str, int]:
    """Splits an address into host and port: `host:port`, `1.2.3.4:port` or `[v6]:port`.

    Args:
        address: The address as written in the configuration.
        key: The name of the address in error messages.

    Returns:
        The host, without brackets, and the port.

    Raises:
        ClusterError: If it is not an address that another task can connect to.
    """
    found = f"`{key}` is {show(address)}"
    if "://" in address:
        raise ClusterError(
            f"{found}; expected `host:port` without a scheme: write "
            f"{show(address.split('://', 1)[1])}"
        )
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or not _is_ipv6(host) or rest[:1] not in ("", ":"):
            raise ClusterError(f"{found}; expected an IPv6 address like '[::1]:2222'")
    else:
        host, colon, rest = address.partition(":")
        if rest.count(":") > 0:
            raise ClusterError(
                f"{found}, which has more than one colon; expected `host:port`: write an IPv6 "
                "address in brackets, as in '[::1]:2222'"
            )
        rest = colon + rest
    if not host or re.search(r"[\s/@\[\]]", host):
        raise ClusterError(f"{found}, which names no host; expected `host:port`, as 'host0:2222'")
    if not rest:
        raise ClusterError(
            f"{found}, which has no port; expected `host:port`: write {show(address + ':2222')}"
        )
    port = rest[1:]
    if not re.fullmatch("[0-9]{1,9}", port) or not 1 <= int(port) <= 65535:
        raise ClusterError(
            f"{found}, whose port is {show(port)}; expected a number from 1 to 65535 "
            "that is free on that host"
        )
    return host, int(port)


def copied_addresses(addresses: Any) -> dict[str, tuple[str, ...]]:
    """Copies the addresses of a cluster, and converts each list of addresses to a tuple.

    Args:
        addresses: By task type, the list of the addresses, or TensorFlow's sparse form of it: a
            dict from each index to its address.

    Raises:
        ClusterError: If they have another form, or an index is missing from a sparse list.
    """
    if hasattr(addresses, "as_dict"):
        raise ClusterError(
            f"`addresses` is a {type(addresses).__name__}; expected a dict: write "
            "Cluster(cluster_spec.as_dict(), Task('worker', 0)), another index in each task"
        )
    if not isinstance(addresses, Mapping):
        raise ClusterError(
            f"`addresses` is {show(addresses)}; expected address lists by task type, "
            "as in {'worker': ['host0:2222', 'host1:2222']}"
        )
    copied = {}
    for task_type, listed in addresses.items():
        if isinstance(listed, Mapping):
            listed = _from_sparse(task_type, {str(index): a for index, a in listed.items()})
        if isinstance(listed, str) or not isinstance(listed, Iterable):
            raise ClusterError(
                f"`cluster.{task_type}` is {show(listed)}; expected a list of addresses, "
                'as in ["host0:2222", "host1:2222"]'
            )
        copied[task_type] = tuple(listed)
    return copied


def check_addresses(addresses: Mapping[str, tuple[str, ...]]) -> None:
    """Checks the addresses of a cluster.

    Args:
        addresses: `host:port` of every task, by task type.

    Raises:
        ClusterError: If an address is malformed or given twice, a task type is unknown, or a list
            is empty or too long.
    """
    if not addresses:
        raise ClusterError(
            "`cluster` is empty; expected the addresses of at least one worker, "
            'as in {"worker": ["host0:2222"]}'
        )
    used: dict[tuple[str, int], str] = {}
    for task_type, listed in addresses.items():
        _check_task_type("cluster", task_type)
        if not listed:
            # TensorFlow chooses its leader by the mere presence of the key, and then waits for
            # ever for the chief or ps that does not exist.
            raise ClusterError(
                f"`cluster.{task_type}` is empty; list its addresses or remove the key"
            )
        if task_type in ("chief", "evaluator") and len(listed) > 1:
            raise ClusterError(
                f"`cluster.{task_type}` holds {len(listed)} addresses; expected one: a cluster "
                f"has at most one {task_type}, list the others under `worker`"
            )
        for index, address in enumerate(listed):
            key = f"cluster.{task_type}[{index}]"
            if not isinstance(address, str):
                raise ClusterError(f"`{key}` is {show(address)}; expected a text `host:port`")
            host, port = split_address(address, key)
            first = used.setdefault((host.lower(), port), key)
            if first != key:
                raise ClusterError(
                    f"`{key}` is {show(address)}, which is also `{first}`; two tasks cannot "
                    "share an address: give each its own host or its own port"
                )


def check_task(addresses: Mapping[str, tuple[str, ...]], task: Task) -> None:
    """Checks that a task belongs to a cluster.

    Args:
        addresses: The addresses of the cluster, checked.
        task: The task.

    Raises:
        ClusterError: If the task is malformed, or if the addresses must list it and do not. (An
            evaluator, and the chief of a cluster with ps tasks, need no address.)
    """
    _check_task_type("task.type", task.type)
    if isinstance(task.id, bool) or not isinstance(task.id, int) or task.id < 0:
        raise ClusterError(f"`task.index` is {show(task.id)}; expected a whole number from 0 up")
    if task.type == "evaluator" and "evaluator" not in addresses:
        return
    if task == Task("chief", 0) and "ps" in addresses:
        return  # a coordinator connects to its servers; nobody connects to it
    if task.type not in addresses:
        raise ClusterError(
            f"`task.type` is {show(task.type)}, but `cluster` lists only "
            f"{', '.join(addresses)}; add `cluster.{task.type}` or correct `task.type`"
        )
    count = len(addresses[task.type])
    if task.id >= count:
        expected = "0" if count == 1 else f"0 to {count - 1}"
        raise ClusterError(
            f"`task.index` is {task.id}, but `cluster.{task.type}` holds {count} "
            f"address{'es' if count > 1 else ''}; expected {expected}: indices start at 0, and "
            "every task needs the whole list"
        )
    if task.type != "evaluator" and not {"chief", "worker"} & set(addresses):
        raise ClusterError(
            f"`cluster` lists only {', '.join(addresses)}, so nobody trains; add `cluster.worker`"
        )


def check_rpc_layer(key: str, layer: object) -> None:
    """Checks that a cluster uses gRPC, the only RPC layer that kfit supports.

    Args:
        key: The name of the setting, for the error message.
        layer: The name of the RPC layer; None or an empty text means the default, gRPC.

    Raises:
        ClusterError: If it is another RPC layer.
    """
    if layer not in (None, "", "grpc"):
        raise ClusterError(f"`{key}` is {show(layer)}; expected 'grpc', which kfit's tasks speak")


def show(value: object) -> str:
    """Returns the `repr` of a value for error messages, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _from_sparse(task_type: str, listed: Mapping[str, Any]) -> list[Any]:
    """Converts TensorFlow's sparse form of a list, a dict from index to address, to a list.

    Args:
        task_type: The task type of the addresses, for the error message.
        listed: The addresses, by the index as a text.

    Raises:
        ClusterError: If an index is missing.
    """
    wanted = [str(index) for index in range(len(listed))]
    if set(wanted) != set(listed):
        raise ClusterError(
            f"`cluster.{task_type}` is a sparse list with the indices {show(sorted(listed))}; "
            "expected every index from 0 up, because a worker meets all of its peers: list all "
            "addresses, or leave `enableDynamicWorker` out of a Kubeflow TFJob"
        )
    return [listed[index] for index in wanted]


def _check_task_type(key: str, task_type: object) -> None:
    if task_type in TASK_TYPES:
        return
    message = f"`{key}` holds the task type {show(task_type)}; expected {_choices(TASK_TYPES)}"
    if task_type == "master":
        message += ": `master` was TensorFlow 1's name of the chief, write 'chief'"
    elif isinstance(task_type, str):
        near = difflib.get_close_matches(task_type.strip().lower(), TASK_TYPES, 1)
        message += f": did you mean {near[0]!r}?" if near else ""
    raise ClusterError(message)


def _choices(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values[:-1]) + f" or {values[-1]!r}"


def _is_ipv6(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return False
    return True
