"""Who am I: the addresses of the cluster, and this process's task in it.

`Cluster` owns the rules (which task types exist, what an address is, who counts as a worker);
`Cluster.from_tf_config` reads TensorFlow's `TF_CONFIG`; `resolvers` finds what this process was
started with. The module needs the standard library only, so a wrong configuration is
refused before the seconds that importing TensorFlow takes. The rules are those of TensorFlow's
`multi_worker_util`, made stricter wherever TensorFlow would hang or silently train alone.
"""

from __future__ import annotations

import difflib
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TASK_TYPES = ("chief", "worker", "ps", "evaluator")

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


class ClusterError(ValueError):
    """The description of the cluster, or of this task's place in it, cannot be right."""


@dataclass(frozen=True)
class Task:
    """One process of the cluster: its type and its index within that type."""

    type: str
    id: int

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


@dataclass(frozen=True)
class Cluster:
    """All addresses of a cluster by task type, and which of its tasks this process is.

    The workers of a cluster are its chief and its `worker` tasks, in that order: they run `fit`.
    A `ps` serves variables and an `evaluator` stands outside the training cluster, so TensorFlow
    lets it be missing from the addresses.

    Args:
        addresses: `host:port` of every task, by task type, in the order of their ids.
        task: The task that this process is.

    Raises:
        ClusterError: An address, a task type or the task itself is refused; the message names it.
    """

    addresses: Mapping[str, tuple[str, ...]] = field(hash=False)
    task: Task

    def __post_init__(self) -> None:
        copied = _copied(self.addresses)
        object.__setattr__(self, "addresses", copied)
        _check_addresses(copied)
        _check_task(copied, self.task)

    @property
    def num_workers(self) -> int:
        """How many tasks train: the chief and the workers; no ps, no evaluator."""
        return len(self.workers)

    @property
    def has_ps(self) -> bool:
        """Whether training is asynchronous: a chief coordinates, the workers and ps serve it."""
        return "ps" in self.addresses

    @property
    def serves(self) -> bool:
        """Whether this task serves the chief of asynchronous training: a ps, or a worker there."""
        return self.has_ps and self.task.type in ("worker", "ps")

    @property
    def worker_index(self) -> int:
        """The position of this task among the workers, the chief first.

        Raises:
            ClusterError: This task is a ps or an evaluator, which have no such position.
        """
        for index, (task, _) in enumerate(self.workers):
            if task == self.task:
                return index
        raise ClusterError(
            f"`task` is {self.task}, which has no worker index: "
            "only chief and worker tasks are counted as workers"
        )

    @property
    def is_chief(self) -> bool:
        """Whether this task writes what is written once: the chief, or worker 0 without one."""
        if "chief" in self.addresses:
            return self.task.type == "chief"
        return self.task == Task("worker", 0)

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates what others train, and stands outside of their cluster."""
        return self.task.type == "evaluator"

    @property
    def address(self) -> str:
        """The `host:port` of this task.

        Raises:
            ClusterError: This task is an evaluator that the addresses do not list.
        """
        if self.task.type not in self.addresses:
            raise ClusterError(f"`cluster` lists no address for this task, {self.task}")
        return self.addresses[self.task.type][self.task.id]

    @property
    def workers(self) -> tuple[tuple[Task, str], ...]:
        """The tasks that train, with their addresses, in the order of their worker index."""
        return tuple(
            (Task(task_type, task_id), address)
            for task_type in ("chief", "worker")
            for task_id, address in enumerate(self.addresses.get(task_type, ()))
        )

    @property
    def peers(self) -> tuple[tuple[Task, str], ...]:
        """The workers other than this task."""
        return tuple(worker for worker in self.workers if worker[0] != self.task)

    def to_tf_config(self) -> str:
        """Returns the JSON text of the `TF_CONFIG` that describes this task."""
        listed = {task_type: list(values) for task_type, values in self.addresses.items()}
        task = {"type": self.task.type, "index": self.task.id}
        return json.dumps({"cluster": listed, "task": task})

    @classmethod
    def from_tf_config(cls, text: str) -> Cluster:
        """Reads a cluster from the text of `TF_CONFIG`.

        Args:
            text: A JSON object with the keys `cluster` and `task`. `environment` and whatever
                else a platform adds (Vertex AI adds `job`) are left to TensorFlow; an `rpc_layer`
                must be "grpc".

        Returns:
            The cluster, checked.

        Raises:
            ClusterError: The text does not describe a cluster; the message names the key, what
                it holds, what was expected and the fix.
        """
        try:
            config = _load_object(text)
            _refuse_misspelt_keys(config)
            _check_rpc_layer("rpc_layer", config.get("rpc_layer"))
            if "cluster" not in config:
                raise ClusterError(
                    "`cluster` is missing, so this task has no peers and would train alone; "
                    f"list the addresses of all tasks, as in {_EXAMPLE}, or unset TF_CONFIG"
                )
            return cls(_read_addresses(config["cluster"]), _read_task(config))
        except ClusterError as error:
            raise ClusterError(f"`TF_CONFIG`: {error}") from None

    @classmethod
    def from_resolver(cls, resolver: Any) -> Cluster:
        """Asks a `tf.distribute.cluster_resolver.ClusterResolver` of the user's.

        Any resolver that knows the cluster and which of its tasks this is will do: TensorFlow's
        Simple, TFConfig, Slurm, SageMaker, Kubernetes and GCE resolvers, a union of some, or one's
        own.

        Args:
            resolver: The resolver, with its `task_type` and `task_id` set.

        Returns:
            The cluster, checked.

        Raises:
            ClusterError: The resolver describes a TPU or no cluster, does not say which task this
                is, asks for another layer than gRPC, or cannot find its tasks.
        """
        name = type(resolver).__name__
        if "TPUClusterResolver" in (kind.__name__ for kind in type(resolver).__mro__):
            raise ClusterError(
                f"`resolver` is a {name}, which finds a TPU and not the tasks of a cluster; give "
                "it to a TPU strategy"
            )
        try:
            # Slurm's resolver knows its task only after it was asked for the cluster.
            listed = resolver.cluster_spec().as_dict()
            task_type, task_id = resolver.task_type, resolver.task_id
        except AttributeError as error:
            raise ClusterError(
                f"`resolver` is {_show(resolver)} ({error}); expected a tf.distribute."
                "cluster_resolver.ClusterResolver, or write kfit.distribute.Cluster(...)"
            ) from None
        except Exception as error:
            raise ClusterError(
                f"`resolver`, a {name}, does not find its cluster: {error}"
            ) from error
        if not listed:
            raise ClusterError(
                f"`resolver`, a {name}, describes no cluster: give it the addresses of all tasks"
            )
        if task_type is None or task_id is None:
            raise ClusterError(
                f"`resolver`, a {name}, does not say which of the tasks this process is; set "
                "`resolver.task_type` and `resolver.task_id`, another index in each"
            )
        _check_rpc_layer("resolver.rpc_layer", getattr(resolver, "rpc_layer", None))
        try:
            return cls(listed, Task(task_type, int(task_id)))
        except ClusterError as error:
            raise ClusterError(f"`resolver`, a {name}: {error}") from None


def check_trains(cluster: Cluster) -> None:
    """Refuses a task whose part in the cluster is not to run `fit`.

    Args:
        cluster: The cluster, as seen by this task.

    Raises:
        ClusterError: This task is a ps or an evaluator; the message says what to run instead.
    """
    instead = {
        "ps": "a ps only serves variables: run `kfit server` here, or the same program with "
        "strategy='parameter_server'",
        "evaluator": "an evaluator only reads checkpoints: call `kfit.train_and_evaluate` in the "
        "program that all tasks run; it trains on the chief and the workers, and evaluates here",
    }
    if cluster.task.type in instead:
        raise ClusterError(
            f"`task` is {cluster.task}, which cannot run `fit`: {instead[cluster.task.type]}"
        )


def check_has_servers(cluster: Cluster, source: str = "`cluster`") -> None:
    """Refuses a cluster that cannot train asynchronously.

    Args:
        cluster: The cluster.
        source: What to call its description in an error message.

    Raises:
        ClusterError: It lists no worker or no ps.
    """
    for kind in ("worker", "ps"):
        if kind not in cluster.addresses:
            raise ClusterError(
                f"{source} lists no {kind}, only {', '.join(cluster.addresses)}; asynchronous "
                "training needs at least one worker and one ps"
            )


def split_address(address: str, key: str = "address") -> tuple[str, int]:
    """Splits `host:port`, `1.2.3.4:port` or `[v6]:port`.

    Args:
        address: The address as written in the configuration.
        key: What to call the address in an error message.

    Returns:
        The host, without brackets, and the port.

    Raises:
        ClusterError: It is not an address that another task could connect to.
    """
    found = f"`{key}` is {_show(address)}"
    if "://" in address:
        raise ClusterError(
            f"{found}; expected `host:port` without a scheme: write "
            f"{_show(address.split('://', 1)[1])}"
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
            f"{found}, which has no port; expected `host:port`: write {_show(address + ':2222')}"
        )
    port = rest[1:]
    if not re.fullmatch("[0-9]{1,9}", port) or not 1 <= int(port) <= 65535:
        raise ClusterError(
            f"{found}, whose port is {_show(port)}; expected a number from 1 to 65535 "
            "that is free on that host"
        )
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return False
    return True


def _copied(addresses: Any) -> dict[str, tuple[str, ...]]:
    """Returns addresses as tuples; TensorFlow's sparse lists, index -> address, in their order."""
    if hasattr(addresses, "as_dict"):
        raise ClusterError(
            f"`addresses` is a {type(addresses).__name__}; expected a dict: write "
            "Cluster(cluster_spec.as_dict(), Task('worker', 0)), another index in each task"
        )
    if not isinstance(addresses, Mapping):
        raise ClusterError(
            f"`addresses` is {_show(addresses)}; expected address lists by task type, "
            "as in {'worker': ['host0:2222', 'host1:2222']}"
        )
    copied = {}
    for task_type, listed in addresses.items():
        if isinstance(listed, Mapping):
            listed = _from_sparse(task_type, {str(index): a for index, a in listed.items()})
        if isinstance(listed, str):
            raise ClusterError(
                f"`cluster.{task_type}` is {_show(listed)}; expected a list of addresses, "
                'as in ["host0:2222", "host1:2222"]'
            )
        copied[task_type] = tuple(listed)
    return copied


def _check_rpc_layer(key: str, layer: object) -> None:
    if layer not in (None, "", "grpc"):
        raise ClusterError(f"`{key}` is {_show(layer)}; expected 'grpc', which kfit's tasks speak")


def _check_addresses(addresses: Mapping[str, tuple[str, ...]]) -> None:
    if not addresses:
        raise ClusterError(
            "`cluster` is empty; expected the addresses of at least one worker, "
            'as in {"worker": ["host0:2222"]}'
        )
    used: dict[tuple[str, int], str] = {}
    for task_type, listed in addresses.items():
        _check_task_type("cluster", task_type)
        if not listed:
            # TensorFlow elects its leader by the mere presence of the key, and then waits for
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
                raise ClusterError(f"`{key}` is {_show(address)}; expected a text `host:port`")
            host, port = split_address(address, key)
            first = used.setdefault((host.lower(), port), key)
            if first != key:
                raise ClusterError(
                    f"`{key}` is {_show(address)}, which is also `{first}`; two tasks cannot "
                    "share an address: give each its own host or its own port"
                )


def _check_task(addresses: Mapping[str, tuple[str, ...]], task: Task) -> None:
    _check_task_type("task.type", task.type)
    if isinstance(task.id, bool) or not isinstance(task.id, int) or task.id < 0:
        raise ClusterError(f"`task.index` is {_show(task.id)}; expected a whole number from 0 up")
    if task.type == "evaluator" and "evaluator" not in addresses:
        return
    if task == Task("chief", 0) and "ps" in addresses:
        return  # a coordinator calls its servers, and need not be called
    if task.type not in addresses:
        raise ClusterError(
            f"`task.type` is {_show(task.type)}, but `cluster` lists only "
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


def _check_task_type(key: str, task_type: object) -> None:
    if task_type in TASK_TYPES:
        return
    message = f"`{key}` holds the task type {_show(task_type)}; expected {_choices(TASK_TYPES)}"
    if task_type == "master":
        message += ": `master` was TensorFlow 1's name of the chief, write 'chief'"
    elif isinstance(task_type, str):
        near = difflib.get_close_matches(task_type.strip().lower(), TASK_TYPES, 1)
        message += f": did you mean {near[0]!r}?" if near else ""
    raise ClusterError(message)


def _load_object(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text, object_pairs_hook=_without_repeats)
    except ClusterError:
        raise
    except (ValueError, RecursionError) as error:
        raise ClusterError(
            f"the text is not JSON ({error}); it starts with {_show(text.strip())}, expected "
            f"something like {_EXAMPLE}, with names and texts in double quotes"
        ) from None
    if not isinstance(config, dict):
        raise ClusterError(f"the JSON is {_show(config)}; expected an object like {_EXAMPLE}")
    return config


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python's JSON keeps the last of two equal keys: half of the workers would be dropped silently.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ClusterError(f"`{key}` is given twice in one object; merge the two")
        found[key] = value
    return found


def _refuse_misspelt_keys(config: Mapping[str, Any]) -> None:
    # Platforms add keys of their own, which do no harm. A key that was meant to be `cluster` or
    # `task` does: TensorFlow overlooks it and every task trains alone.
    if "sparseCluster" in config and "cluster" not in config:
        raise ClusterError(
            "the key `sparseCluster`, which Kubeflow writes for a TFJob with "
            "`enableDynamicWorker`, tells each task of some others only, while a worker meets all "
            "of its peers; leave `enableDynamicWorker` out of the TFJob"
        )
    for key in config:
        if key == "sparseCluster":
            continue
        for meant in ("cluster", "task"):
            near = difflib.get_close_matches(key.lower(), [meant], 1, 0.75)
            if key != meant and (meant in key.lower() or near):
                raise ClusterError(
                    f"the key `{key}` is not one that TensorFlow reads; did you mean `{meant}`?"
                )


def describes_nothing(text: str) -> bool:
    """Whether the text of a `TF_CONFIG` is an object with neither `cluster` nor `task`."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(config, dict) or "cluster" in config or "task" in config:
        return False
    try:
        _refuse_misspelt_keys(config)
    except ClusterError:
        return False
    return True


def _read_addresses(cluster: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict):
        raise ClusterError(
            f"`cluster` is {_show(cluster)}; expected an object of address lists by task type, "
            'as in {"worker": ["host0:2222", "host1:2222"]}'
        )
    addresses: dict[str, tuple[str, ...]] = {}
    for task_type, listed in cluster.items():
        if isinstance(listed, dict):
            listed = _from_sparse(task_type, listed)
        if not isinstance(listed, list):
            raise ClusterError(
                f"`cluster.{task_type}` is {_show(listed)}; expected a list of addresses, "
                'as in ["host0:2222", "host1:2222"]'
            )
        addresses[task_type] = tuple(listed)
    return addresses


def _from_sparse(task_type: str, listed: Mapping[str, Any]) -> list[Any]:
    """Reads TensorFlow's other spelling, index -> address, where no index is left out."""
    wanted = [str(index) for index in range(len(listed))]
    if set(wanted) != set(listed):
        raise ClusterError(
            f"`cluster.{task_type}` is a sparse list with the indices {_show(sorted(listed))}; "
            "expected every index from 0 up, because a worker meets all of its peers: list all "
            "addresses, or leave `enableDynamicWorker` out of a Kubeflow TFJob"
        )
    return [listed[index] for index in wanted]


def _read_task(config: Mapping[str, Any]) -> Task:
    if "task" not in config:
        raise ClusterError(
            "`task` is missing, so this process cannot know which of the addresses is its own; "
            'add for example "task": {"type": "worker", "index": 0}, another index on each'
        )
    task = config["task"]
    if not isinstance(task, dict):
        raise ClusterError(
            f'`task` is {_show(task)}; expected an object like {{"type": "worker", "index": 0}}'
        )
    for key in ("type", "index"):
        if key not in task:
            holds = f"it holds only {', '.join(f'`{name}`' for name in task)}" if task else "empty"
            raise ClusterError(
                f"`task.{key}` is missing ({holds}); expected an object like "
                '{"type": "worker", "index": 0}'
            )
    index = task["index"]
    # Job templates often fill the index in as a text, and TensorFlow takes it. A float or a bool,
    # which it takes as well, is a mistake.
    if isinstance(index, str) and re.fullmatch("[0-9]{1,9}", index):
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ClusterError(f"`task.index` is {_show(index)}; expected a whole number from 0 up")
    return Task(task["type"], index)


def _choices(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values[:-1]) + f" or {values[-1]!r}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
