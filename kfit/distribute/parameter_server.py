"""Asynchronous training: workers take steps at their own pace, on variables kept on ps tasks.

A ps task is a parameter server: a process that stores variables.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kfit.argument_checks import check_seconds
from kfit.cluster.cluster import Cluster, ClusterError, Task, check_has_servers, check_trains
from kfit.cluster.loopback import kept_to_this_host
from kfit.cluster.resolvers import current_cluster, start_timeout_of
from kfit.distribute.connection import check_in_time, is_connected
from kfit.distribute.servers import serve, wait_for_servers
from kfit.distribute.sharded_variables import updates_of_shards
from kfit.distribute.sigterm import sigterm_kept
from kfit.distribute.strategy import Strategy
from kfit.internals.strategies import (
    partitioner_of,
    resolver_of_servers,
    scope_in_default_scope,
)

_connected: dict[tuple[str, int], tf.distribute.Strategy] = {}
"""Strategies by servers and partitioner: a process can connect to the same servers only once."""


class ParameterServer(Strategy):
    """A strategy that trains asynchronously: each worker takes steps at its own pace.

    The ps tasks (parameter servers) store the variables. One task, the coordinator, runs the
    program, and sends steps to the workers. A worker takes a step and updates the variables on the
    ps tasks, without waiting for other workers. So while a worker computes a gradient, other
    workers may update the variables (staleness), and the numbers differ from run to run.

    If a worker dies, another worker takes its step again. What the dead worker had already written
    stays, so an update may be applied twice ("at least once"). The coordinator sends the steps in
    groups, and waits at the end of a group until all its steps are done. Only at the end of a group
    are callbacks called, and only then are metrics exact and snapshots (saved states of the
    training) consistent.

    The same program can run on all tasks. On a worker or ps task, the first use of the strategy
    runs a server for the coordinator, and ends the process when the coordinator has ended.

    Args:
        cluster: A `kfit.distribute.Cluster`. None takes the result of
            `kfit.distribute.current_cluster()`. To train from this process on running
            `kfit server`s, pass their addresses, `{"worker": [...], "ps": [...]}`. With addresses
            the adapter connects at once, so create it before any model or tensor.
        variable_partitioner: A function that splits large variables along their first axis over the
            ps tasks, such as
            `tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)`. None splits
            no variable.
        start_timeout: Seconds to wait for all servers to start. After that time an error names the
            missing servers. None takes the number in the environment variable KFIT_START_TIMEOUT,
            or 60.

    Raises:
        ValueError: If an option is wrong.
        ClusterError: If there is no cluster, its description is wrong, or it lists no worker or no
            ps. At the first use of the strategy it is also raised if a server does not start in
            time, a worker has several GPUs, or TensorFlow has already run an operation.
    """

    name = "parameter_server"
    synchronous = False
    replicas_meet = False
    # At the end of each execution a worker idles for part of a step, so executions are longer.
    seconds_per_execution = 1.0

    def __init__(
        self,
        cluster: Cluster | Mapping[str, Sequence[str]] | None = None,
        *,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        start_timeout: float | None = None,
    ) -> None:
        super().__init__()
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise ValueError(
                "`variable_partitioner` must be a function from `shape` and `dtype` to a list of "
                "numbers of parts, such as one of tf.distribute.experimental.partitioners. "
                f"Received: {variable_partitioner!r}"
            )
        if start_timeout is not None:
            check_seconds("start_timeout", start_timeout, above_zero=True)
        self._cluster = _cluster_of(cluster)
        self._partitioner = variable_partitioner
        self._start_timeout = start_timeout or start_timeout_of()
        self._coordinator: tf.distribute.coordinator.ClusterCoordinator | None = None
        if isinstance(cluster, Mapping):
            self.tf_strategy  # noqa: B018  connects, before a model is made

    @classmethod
    def of(cls, strategy: tf.distribute.ParameterServerStrategy) -> ParameterServer:
        """Returns an adapter, kfit's wrapper, for a strategy that the user created.

        Args:
            strategy: TensorFlow's strategy, connected to its servers.

        Raises:
            ClusterError: If a worker has several GPUs.
        """
        listed = resolver_of_servers(strategy).cluster_spec().as_dict()
        addresses = {kind: tuple(listed[kind]) for kind in ("worker", "ps")}
        adapter = cls(
            Cluster(addresses, Task("chief", 0)),
            variable_partitioner=partitioner_of(strategy),
        )
        adapter.take_over(_one_gpu_a_worker(strategy))
        return adapter

    @property
    def cluster(self) -> Cluster:
        """The cluster. The task that runs `fit`, the coordinator, is its chief."""
        return self._cluster

    @property
    def num_replicas(self) -> int:
        """The number of replicas that take a step together: 1, since one worker takes each step."""
        return 1

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the workers, such as "worker 0", in place of the names of devices."""
        return tuple(f"worker {index}" for index in range(self.num_servers("worker")))

    def num_servers(self, task_type: str) -> int:
        """Returns the number of `"worker"` or of `"ps"` tasks in the cluster."""
        return len(self._cluster.addresses.get(task_type, ()))

    def describe(self) -> str:
        """Returns one line for logs: the strategy's name, the number of workers and of ps tasks."""
        workers, ps = self.num_servers("worker"), self.num_servers("ps")
        return f"{self.name}, {workers} worker{'s'[: workers > 1]} and {ps} ps"

    def is_placed(self, value: Any) -> bool:
        """Returns whether a variable is on a ps task (parameter server), or split over ps tasks.

        Args:
            value: A `tf.Variable`, or TensorFlow's object for a variable that is split over ps
                tasks.
        """
        if isinstance(value, tf.Variable):
            return "/job:ps" in value.device
        return hasattr(value, "variables")  # a sharded variable

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the ps tasks (parameter servers)."""
        stack = contextlib.ExitStack()
        strategy = self.tf_strategy
        stack.enter_context(scope_in_default_scope(strategy))
        if self._partitioner is not None:
            stack.enter_context(updates_of_shards(strategy))
        return stack

    @property
    def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """TensorFlow's `ClusterCoordinator`, which sends functions to the workers."""
        if self._coordinator is None:
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.tf_strategy)
            # Its destructor waits for its threads, and waits for ever if a worker is gone, so the
            # process would never end. The extra reference keeps it from ever being destroyed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._coordinator))
        return self._coordinator

    def schedule(self, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
        """Lets the next worker that is free call `fn`, and returns without waiting for the result.

        Args:
            fn: A `tf.function`, which runs on the worker.
            args: The arguments of `fn`. Tensors are sent to the worker. In place of an iterator of
                a data set from `distribute_datasets_from_function`, `fn` gets the worker's own
                iterator.

        Returns:
            A `RemoteValue`. Its method `fetch` waits for the result of `fn` and returns it.
        """
        return self.coordinator.schedule(fn, args=tuple(args))

    def join(self) -> None:
        """Waits until all calls that were passed to `schedule` are done.

        If a call has failed, its error is raised.
        """
        self.coordinator.join()

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> Any:
        """Creates a data set on each worker by calling `dataset_fn` there.

        Args:
            dataset_fn: A function from a `tf.distribute.InputContext` to a data set of batches. The
                context is the same on every worker, so no worker can tell which part of the data is
                its own. Let the data set shuffle and repeat: then each worker reads all the data,
                in its own order.
            options: `tf.distribute.InputOptions`.

        Returns:
            A data set that exists on each worker. An iterator of it can be an argument of
            `schedule`.
        """
        strategy = self.tf_strategy
        return self.coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(dataset_fn, options)
        )

    def _create(self) -> tf.distribute.Strategy:
        cluster = self._cluster
        if cluster.is_evaluator:
            # An evaluator may make this adapter, since every task runs the same program (see
            # `as_strategy`). But it must not use it, so this raises an error.
            check_trains(cluster)
        if cluster.task.type != "chief":
            raise SystemExit(serve(cluster))
        key = repr(cluster.addresses), id(self._partitioner)
        if key not in _connected:
            check_in_time(cluster)
            if is_connected() and all(addresses != key[0] for addresses, _ in _connected):
                raise ClusterError(
                    "this process cannot become the coordinator of the cluster: it is connected to "
                    "another one already. One process coordinates one cluster."
                )
            wait_for_servers(cluster, self._start_timeout)
            addresses = {kind: list(listed) for kind, listed in cluster.addresses.items()}
            addresses.pop("evaluator", None)
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(addresses), rpc_layer="grpc"
            )
            with sigterm_kept(), kept_to_this_host(cluster):
                _connected[key] = tf.distribute.ParameterServerStrategy(
                    resolver, variable_partitioner=self._partitioner
                )
        return _one_gpu_a_worker(_connected[key])


def _one_gpu_a_worker(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    if strategy.num_replicas_in_sync > 1:
        raise ClusterError(
            f"the workers have {strategy.num_replicas_in_sync} GPUs each; expected one: start one "
            "worker for each GPU, with CUDA_VISIBLE_DEVICES set"
        )
    return strategy


def _cluster_of(given: Cluster | Mapping[str, Sequence[str]] | None) -> Cluster:
    """Returns the cluster that the user passed, as a `Cluster`.

    If the user passed None, the environment, such as TF_CONFIG, describes the cluster.

    Raises:
        ValueError: If the user passed something that describes no cluster.
        ClusterError: If there is no cluster, or the cluster lists no worker or no ps.
    """
    if isinstance(given, Mapping):
        cluster: Cluster | None = Cluster(
            {kind: tuple(listed) for kind, listed in given.items()}, Task("chief", 0)
        )
    elif given is None or isinstance(given, Cluster):
        cluster = given or current_cluster()
    else:
        raise ValueError(
            '`cluster` must be a kfit.distribute.Cluster, {"worker": [...], "ps": [...]} with the '
            f"addresses of running servers, or None. Received: {given!r}"
        )
    if cluster is None:
        raise ClusterError(
            "no cluster is described here, and `parameter_server` needs one: start the script with "
            "`kfit run --workers 2 --ps 1 script.py`, set TF_CONFIG, or pass "
            '`ParameterServer(cluster={"worker": [...], "ps": [...]})` with the addresses of '
            "running `kfit server`s"
        )
    check_has_servers(cluster)
    return cluster
