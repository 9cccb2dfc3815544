"""Asynchronous training: workers take steps at their own pace, on variables kept on ps tasks."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kfit.argument_checks import check_seconds
from kfit.cluster.cluster import Cluster, ClusterError, Task, check_has_servers, check_trains
from kfit.cluster.resolvers import current_cluster, start_timeout_of
from kfit.distribute.connection import check_in_time, is_connected
from kfit.distribute.servers import serve, wait_for_servers
from kfit.distribute.sharded_variables import updates_of_shards
from kfit.distribute.sigterm import sigterm_kept
from kfit.distribute.strategy import Strategy
from kfit.internals.strategies import partitioner_of, resolver_of_servers

_connected: dict[tuple[str, int], tf.distribute.Strategy] = {}
"""Strategies by servers and partitioner: a process can connect to the same servers only once."""


class ParameterServer(Strategy):
    """A strategy that trains asynchronously: each worker takes steps at its own pace.

    The variables are on ps tasks. One task, the coordinator, runs the program. It sends steps to
    the workers, which update the variables on the ps tasks. Workers do not wait for each other, so
    a gradient may have been computed with variables that other workers have updated since
    (staleness), and numbers differ from run to run.

    A step whose worker dies is taken again by another worker; updates that the dead worker had
    already written stay ("at least once"). Steps are sent in groups, called executions. Between two
    executions no step is under way: then hooks are called, metrics are exact and snapshots are
    consistent.

    On a worker or ps task of the cluster, the first use of the adapter runs a server for the
    coordinator, until the coordinator ends, and then ends the process. So the same program can run
    on all tasks.

    Args:
        cluster: A `kfit.distribute.Cluster`; None takes `kfit.distribute.current_cluster()`. Or
            `{"worker": [...], "ps": [...]}`, addresses of running `kfit server`s, to train on them
            from this process; that connects at once, so make the adapter before any model or
            tensor.
        variable_partitioner: Splits large variables by their first axis over the ps tasks, such as
            `tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)`; None splits
            no variable.
        start_timeout: Seconds to wait for all servers to start; then the missing ones are named in
            the error. None takes the environment's KFIT_START_TIMEOUT, or 60.

    Raises:
        ValueError: If an option is wrong.
        ClusterError: If the cluster's description is wrong or lists no worker or no ps. It is also
            raised when training begins, if a server does not start in time.
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
        """Returns the adapter for a strategy that the user made.

        Args:
            strategy: TensorFlow's strategy, connected to its servers.
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
        """The cluster. The task that runs `fit` is its chief, the coordinator."""
        return self._cluster

    @property
    def num_replicas(self) -> int:
        """The number of synchronous replicas, always 1: each step is taken by one worker."""
        return 1

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the workers."""
        return tuple(f"worker {index}" for index in range(self.num_servers("worker")))

    def num_servers(self, task_type: str) -> int:
        """Returns the number of `"worker"` or of `"ps"` tasks in the cluster."""
        return len(self._cluster.addresses.get(task_type, ()))

    def describe(self) -> str:
        """Describes the strategy in a line for logs: the numbers of workers and of ps tasks."""
        workers, ps = self.num_servers("worker"), self.num_servers("ps")
        return f"{self.name}, {workers} worker{'s'[: workers > 1]} and {ps} ps"

    def is_placed(self, value: Any) -> bool:
        """Returns whether a TensorFlow variable, or a sharded one, is kept on ps tasks."""
        if isinstance(value, tf.Variable):
            return "/job:ps" in value.device
        return hasattr(value, "variables")  # a sharded variable

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the ps tasks."""
        stack = contextlib.ExitStack()
        strategy = self.tf_strategy
        stack.enter_context(strategy.scope())
        if self._partitioner is not None:
            stack.enter_context(updates_of_shards(strategy))
        return stack

    @property
    def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """TensorFlow's coordinator, which sends functions to the workers."""
        if self._coordinator is None:
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.tf_strategy)
            # Its destructor waits for its threads, and waits for ever if a worker is gone, so the
            # process would never end. The extra reference keeps it from ever being destroyed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._coordinator))
        return self._coordinator

    def schedule(self, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any:
        """Schedules a call of `fn` on the next worker that is free; returns at once.

        Args:
            fn: A `tf.function`, which runs on the worker.
            args: Its arguments. Tensors are sent to the worker; for an iterator of a data set from
                `distribute_datasets_from_function`, each worker gets its own iterator.

        Returns:
            A `RemoteValue`; its `fetch()` waits for the result of `fn`.
        """
        return self.coordinator.schedule(fn, args=tuple(args))

    def join(self) -> None:
        """Waits until all scheduled calls are done.

        If a call has failed, its error is raised.
        """
        self.coordinator.join()

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> Any:
        """Builds a data set on each worker by calling `dataset_fn` there.

        Args:
            dataset_fn: Gets a `tf.distribute.InputContext` and returns a data set of batches. The
                context is the same on every worker, so shuffle and repeat: each worker then reads
                all the data, in an order of its own.
            options: `tf.distribute.InputOptions`.

        Returns:
            A per-worker data set; `schedule` accepts an iterator of it as an argument.
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
            with sigterm_kept():
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
    """Returns the cluster that the user passed, or else that of the environment.

    Raises:
        ValueError: If the user passed something else.
        ClusterError: If there is no cluster, or it lists no worker or no ps.
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
