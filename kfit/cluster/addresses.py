"""Checks of the description of a cluster: its tasks (processes) and their addresses.

The rules are those of TensorFlow's `multi_worker_util`, made stricter wherever TensorFlow would
hang or silently train on one task alone. The module uses only the standard library, since importing
TensorFlow takes seconds: a wrong description raises an error before that.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kfit.lazy import closest_name

TASK_TYPES = ("chief", "worker", "ps", "evaluator")


class ClusterError(ValueError):
    """An error that is raised if the description of a cluster is wrong, or joining it fails."""


@dataclass(frozen=True)
class Task:
    """The identity of a task, which is one process of a cluster.

    Attributes:
        type: "chief", "worker", "ps" or "evaluator".
        id: The index of the task among the tasks of its type, counted from 0.
    """

    type: str
    id: int

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


def split_address(address: str, key: str = "address") -> tuple[str, int]:
    """Splits the address of a task into host and port.

    Args:
        address: `host:port`, where the host is a name, an IPv4 address, or an IPv6 address in
            brackets.
        key: The name of the setting that contains the address, for error messages.

    Returns:
        The host, without brackets, and the port.

    Raises:
        ClusterError: If the address does not have this form.
    """
    found = f"`{key}` is {show(address)}"
    if "://" in address:
        raise ClusterError(
            f"{found}; expected `host:port` without a scheme: write "
            f"{show(address.split('://', 1)[1])}"
        )
    _refuse_separators(address, found)
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
    if not host or re.search(r"[\s\x00-\x1f\x7f/@\[\]]", host):
        raise ClusterError(f"{found}, which names no host; expected `host:port`, as 'host0:2222'")
    if not _can_be_looked_up(host):
        raise ClusterError(
            f"{found}, whose host cannot be looked up: each part of a host name, between its dots, "
            "has 1 to 63 letters, digits and hyphens"
        )
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


def _refuse_separators(address: str, found: str) -> None:
    """Refuses an address that has spaces in it, or is several addresses in one text.

    Args:
        address: The address.
        found: Where it is, for the error message.

    Raises:
        ClusterError: If it is so.
    """
    separator = re.search(r"[,;\s]", address)
    if separator is None:
        return
    parts = re.split(r"[,;\s]+", address.strip(" \t\r\n,;"))
    if len(parts) > 1 and all(re.fullmatch(r".+:\d+", part) for part in parts):
        hint = f"write {len(parts)} addresses, as in {show(parts)}"
    elif len(parts) == 1 or not re.search("[,;]", address):
        hint = f"write {show(''.join(parts))}"
    else:
        hint = "write each address by itself"
    raise ClusterError(f"{found}, which has {separator[0]!r} in it; expected `host:port`: {hint}")


def copied_addresses(addresses: Any) -> dict[str, tuple[str, ...]]:
    """Returns a copy of a cluster's addresses in which each list of addresses is a tuple.

    Args:
        addresses: A dict from task type to the addresses of the tasks of this type: a list or, as
            TensorFlow also allows, a dict from index to address.

    Raises:
        ClusterError: If the addresses do not have this form, or an index is missing from such a
            dict.
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
    """Checks the addresses of a cluster's tasks.

    Args:
        addresses: The `host:port` of each task, by task type.

    Raises:
        ClusterError: If there are no addresses, an address is malformed or given twice, a task type
            is unknown, or the list of a task type is empty or too long.
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

    Most tasks must be among those that the addresses list. An evaluator, and the chief of a cluster
    with ps tasks, need no address.

    Args:
        addresses: The addresses by task type, which `check_addresses` has checked.
        task: The task that this process claims to be.

    Raises:
        ClusterError: If the type or the id of the task is invalid, if the task has no address but
            needs one, or if the cluster lists no task that trains.
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
        key: The name of the setting that contains `layer`, for the error message.
        layer: The name of the RPC layer; None or an empty text means the default, gRPC.

    Raises:
        ClusterError: If `layer` is not gRPC.
    """
    if layer not in (None, "", "grpc"):
        raise ClusterError(f"`{key}` is {show(layer)}; expected 'grpc', which kfit's tasks speak")


def show(value: object) -> str:
    """Returns the `repr` of a value, cut to 80 characters, for use in an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _from_sparse(task_type: str, listed: Mapping[str, Any]) -> list[Any]:
    """Returns the list of addresses that a dict from index to address stands for.

    TensorFlow allows such a dict, in which indices may be missing, in place of a list.

    Args:
        task_type: The task type of the addresses, for the error message.
        listed: The addresses by their index, which is given as a text.

    Raises:
        ClusterError: If an index is missing, since kfit needs all addresses.
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
        near = closest_name(task_type.strip().lower(), TASK_TYPES)
        message += f": did you mean {near!r}?" if near else ""
    raise ClusterError(message)


def _choices(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values[:-1]) + f" or {values[-1]!r}"


def _can_be_looked_up(host: str) -> bool:
    """Returns whether Python can encode a host name; otherwise a look-up raises no OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return False
    return True
