"""The description of a cluster: the addresses of its tasks, and which task this process is.

A task is one process of a cluster: a chief, a worker, a ps (parameter server) or an evaluator.
`Cluster` defines which tasks are workers, which one is the chief, and which ones are servers.
`addresses` checks tasks and addresses, `tf_config` reads TensorFlow's `TF_CONFIG`, and `resolvers`
finds the cluster in the environment variables. All of them use only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfit.cluster.addresses import (
    TASK_TYPES,
    ClusterError,
    Task,
    check_addresses,
    check_rpc_layer,
    check_task,
    copied_addresses,
    show,
    split_address,
)
from kfit.cluster.tf_config import read_tf_config
from kfit.heartbeat.tracebacks import made_for_user

__all__ = [
    "TASK_TYPES",
    "Cluster",
    "ClusterError",
    "Task",
    "check_has_servers",
    "check_trains",
    "split_address",
]


@made_for_user
@dataclass(frozen=True)
class Cluster:
    """The description of a cluster: the addresses of its tasks, and which task this process is.

    A task is one process of the cluster. The chief, if there is one, and the tasks of type `worker`
    together are the workers: each of them runs `fit`. A cluster with `ps` tasks (parameter servers,
    which store the variables) is different: only the chief runs `fit`, and sends training steps to
    the `worker` tasks. An `evaluator` does not train, so it may be missing from the addresses.

    Args:
        addresses: The addresses by task type: for each type the `host:port` of its tasks, in the
            order of their ids.
        task: The type and the id of the task that this process is.

    Raises:
        ClusterError: If an address, a task type or the task itself is invalid. The message names
            what is invalid.
    """

    addresses: Mapping[str, Sequence[str]] = field(hash=False)
    task: Task

    def __post_init__(self) -> None:
        copied = copied_addresses(self.addresses)
        object.__setattr__(self, "addresses", copied)
        check_addresses(copied)
        check_task(copied, self.task)

    @property
    def num_workers(self) -> int:
        """The number of `workers`: the chief and the tasks of type `worker`."""
        return len(self.workers)

    @property
    def has_ps(self) -> bool:
        """Whether the cluster has ps tasks (parameter servers), which store the variables.

        If so, training is asynchronous: the chief sends training steps to the worker tasks.
        """
        return "ps" in self.addresses

    @property
    def serves(self) -> bool:
        """Whether this task runs a TensorFlow server for the chief, instead of calling `fit`.

        It is True for a ps (parameter server), and for a worker of a cluster with ps tasks.
        """
        return self.has_ps and self.task.type in ("worker", "ps")

    @property
    def joins(self) -> bool:
        """Whether this task must connect to other tasks before it trains.

        In a cluster without ps tasks (parameter servers) it is True for each worker, if there are
        several workers. In a cluster with ps tasks it is True only for the chief.
        """
        if self.has_ps:
            return self.task.type == "chief"
        return self.num_workers > 1 and not self.is_evaluator

    @property
    def worker_index(self) -> int:
        """The position of this task in `workers`, counted from 0; a chief has position 0.

        Raises:
            ClusterError: If this task is a ps or an evaluator, which are not among the workers.
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
        """Whether this task writes files for all tasks.

        This is the duty of the chief or, if the cluster has no chief, of worker 0.
        """
        if "chief" in self.addresses:
            return self.task.type == "chief"
        return self.task == Task("worker", 0)

    @property
    def is_evaluator(self) -> bool:
        """Whether this task is an evaluator: it evaluates checkpoints, and does not train."""
        return self.task.type == "evaluator"

    @property
    def address(self) -> str:
        """The `host:port` of this task.

        Raises:
            ClusterError: If the cluster has no address for this task. Only an evaluator, or the
                chief of a cluster with ps tasks, needs no address.
        """
        if self.task.type not in self.addresses:
            raise ClusterError(f"`cluster` lists no address for this task, {self.task}")
        return self.addresses[self.task.type][self.task.id]

    @property
    def workers(self) -> tuple[tuple[Task, str], ...]:
        """The chief, if there is one, and the tasks of type `worker`: pairs of task and address."""
        return tuple(
            (Task(task_type, task_id), address)
            for task_type in ("chief", "worker")
            for task_id, address in enumerate(self.addresses.get(task_type, ()))
        )

    @property
    def peers(self) -> tuple[tuple[Task, str], ...]:
        """The `workers` other than this task: pairs of task and address."""
        return tuple(worker for worker in self.workers if worker[0] != self.task)

    def to_tf_config(self) -> str:
        """Returns the JSON text of the `TF_CONFIG` that describes this cluster and this task."""
        listed = {task_type: list(values) for task_type, values in self.addresses.items()}
        task = {"type": self.task.type, "index": self.task.id}
        return json.dumps({"cluster": listed, "task": task})

    @classmethod
    def from_tf_config(cls, text: str) -> Cluster:
        """Reads a cluster from a text such as that of the environment variable `TF_CONFIG`.

        Args:
            text: A JSON object with the keys `cluster` and `task`. If it has the key `rpc_layer`,
                the value must be "grpc". Other keys, such as `environment` or the `job` of Vertex
                AI, are ignored.

        Raises:
            ClusterError: If the text does not describe a cluster. The message names the key, its
                value, the expected value and the fix.
        """
        try:
            return cls(*read_tf_config(text))
        except ClusterError as error:
            raise ClusterError(f"`TF_CONFIG`: {error}") from None

    @classmethod
    def from_resolver(cls, resolver: Any) -> Cluster:
        """Reads a cluster from the user's `tf.distribute.cluster_resolver.ClusterResolver`.

        The resolver may be of any class that knows the cluster's addresses and which task this
        process is: TensorFlow's Simple, TFConfig, Slurm, SageMaker, Kubernetes or GCE resolver, a
        union of resolvers, or the user's own class.

        Args:
            resolver: The resolver, with its `task_type` and `task_id` set.

        Raises:
            ClusterError: If the resolver describes a TPU or no cluster, does not say which task
                this process is, has an RPC layer other than gRPC, or fails to find its tasks.
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
                f"`resolver` is {show(resolver)} ({error}); expected a tf.distribute."
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
        check_rpc_layer("resolver.rpc_layer", getattr(resolver, "rpc_layer", None))
        try:
            return cls(listed, Task(task_type, int(task_id)))
        except ClusterError as error:
            raise ClusterError(f"`resolver`, a {name}: {error}") from None


def check_trains(cluster: Cluster) -> None:
    """Checks that this task is neither a ps nor an evaluator, since these cannot run `fit`.

    Args:
        cluster: The description of the cluster, which says which task this process is.

    Raises:
        ClusterError: If this task is a ps or an evaluator. The message says what to run instead.
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
    """Checks that a cluster has what asynchronous training needs: a worker and a ps.

    A ps is a parameter server: a task that stores the variables.

    Args:
        cluster: The description of the cluster.
        source: Where this description comes from, such as "`TF_CONFIG`"; for the error message.

    Raises:
        ClusterError: If the cluster lists no worker or no ps.
    """
    for kind in ("worker", "ps"):
        if kind not in cluster.addresses:
            raise ClusterError(
                f"{source} lists no {kind}, only {', '.join(cluster.addresses)}; asynchronous "
                "training needs at least one worker and one ps"
            )
