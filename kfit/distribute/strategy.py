"""The base class of the adapters, each of which wraps a `tf.distribute.Strategy`.

An adapter owns the strategy object, and answers every question about it: how many replicas there
are, which of them are on this task, which task is the chief. The loop, the steps and the callbacks
use the adapter, never `tf.distribute` directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import tensorflow as tf

from kfit.cluster.cluster import Cluster
from kfit.distribute.host_collectives import HostCollectives

TFStrategy = tf.distribute.Strategy

_SENT_AS = {
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.bfloat16: tf.float32,
}
"""Dtypes that TensorFlow's collectives do not support, and wider ones that hold their values."""
FETCHED_AHEAD = 2
"""Number of batches prefetched to each device."""
_GRADIENT_DTYPES = (None, "bfloat16", "float16")


class Strategy:
    """The base class of kfit's adapters, each of which wraps a `tf.distribute.Strategy`.

    The adapters are `OneDevice`, `Mirrored`, `MultiWorker`, `TPU` and `ParameterServer`. Making an
    adapter is fast, and checks the arguments. The `tf.distribute.Strategy` that the adapter wraps,
    with its devices and servers, is created at the first use of `tf_strategy`.

    Attributes:
        name: The name that selects this adapter in `kfit.Trainer(strategy=name)`.
        synchronous: Whether all replicas take every step together, so that `run` can be used.
        reads_on_this_host: Whether input pipelines run in this process, so that they may call its
            Python code.
        replicas_meet: Whether steps combine replicas in a cross-replica context (`merge_call`),
            even if there is only one replica.
        static_shapes: Whether all replicas run one program with static shapes, as on a TPU.
        compiles: Whether the strategy always compiles what replicas run, whatever `jit_compile` is.
        gradient_dtype: The dtype that gradients are cast to and summed in, such as "float16"; None
            keeps their own dtype.
        seconds_per_execution: The duration in seconds that an execution (a graph call of several
            steps) should have, if the user does not set the number of its steps.
    """

    name: str = ""
    synchronous: bool = True
    reads_on_this_host: bool = True
    replicas_meet: bool = True
    static_shapes: bool = False
    compiles: bool = False
    gradient_dtype: str | None = None
    seconds_per_execution: float = 0.2

    def __init__(self, gradient_dtype: str | None = None) -> None:
        if gradient_dtype not in _GRADIENT_DTYPES:
            raise ValueError(
                f"`gradient_dtype` must be one of {_GRADIENT_DTYPES}. Received: {gradient_dtype!r}"
            )
        self.gradient_dtype = gradient_dtype
        self._tf_strategy: tf.distribute.Strategy | None = None

    # Properties of the strategy.

    @property
    def tf_strategy(self) -> tf.distribute.Strategy:
        """The `tf.distribute.Strategy` itself, created at the first use."""
        if self._tf_strategy is None:
            self._tf_strategy = self._create()
        return self._tf_strategy

    def take_over(self, strategy: tf.distribute.Strategy) -> None:
        """Makes this adapter wrap a strategy that the user made, instead of creating one."""
        self._tf_strategy = strategy

    def _create(self) -> tf.distribute.Strategy:
        raise NotImplementedError(f"{type(self).__name__} must define `_create`.")

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that this task belongs to, or None if it trains alone."""
        return None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of this task's devices, one for each local replica."""
        return tuple(self.tf_strategy.extended.worker_devices)

    @cached_property
    def host_collectives(self) -> HostCollectives:
        """The collectives between the tasks of this strategy."""
        return HostCollectives(self)

    @property
    def num_replicas(self) -> int:
        """The number of synchronous replicas over all tasks."""
        return int(self.tf_strategy.num_replicas_in_sync)

    @property
    def num_replicas_in_sync(self) -> int:
        """`num_replicas` under the name that `tf.distribute` gives it."""
        return self.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """The number of replicas on this task."""
        return self.num_replicas // self.num_workers

    @property
    def first_local_replica(self) -> int:
        """The global index of this task's first replica."""
        return self.worker_index * self.num_local_replicas

    @property
    def num_workers(self) -> int:
        """The number of tasks that train together."""
        return 1

    @property
    def worker_index(self) -> int:
        """The index of this task among those that train together; the chief has 0."""
        return 0

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, the one that prints and writes files for all tasks."""
        return self.worker_index == 0

    @property
    def places_variables(self) -> bool:
        """Whether variables must be made in the strategy's scope.

        It is False if plain variables can be used.
        """
        return True

    def is_placed(self, value: Any) -> bool:
        """Returns whether a variable is on this strategy's devices.

        Args:
            value: The `tf.Variable` inside a Keras variable.
        """
        return (
            isinstance(value, tf.distribute.DistributedValues)
            and getattr(value, "distribute_strategy", None) is self.tf_strategy
        )

    @property
    def sums_by_collectives(self) -> bool:
        """Whether sums over the replicas are computed by TensorFlow's collectives."""
        return False

    @property
    def on_accelerators(self) -> bool:
        """Whether replicas are on devices with their own memory, to which data must be copied."""
        kinds = "GPU", "TPU"
        return any(kind in device.upper() for device in self.devices for kind in kinds)

    @property
    def fetches_ahead(self) -> bool:
        """Whether batches are copied to the devices before their steps need them."""
        return self.synchronous and self.on_accelerators

    def describe(self) -> str:
        """Describes the strategy in a line for logs: the number of replicas, and their devices."""
        noun = "replica" if self.num_replicas == 1 else "replicas"
        return f"{self.name}, {self.num_replicas} {noun} on {', '.join(self.devices)}"

    def beside_data(self) -> AbstractContextManager[Any]:
        """Context in which operations run on the host, so that only results go to the devices.

        It is used for operations that prepare a batch. Without accelerators it does nothing.
        """
        return tf.device("CPU:0") if self.on_accelerators else nullcontext()

    def received(self, value: Any) -> Any:
        """Converts a replica's input to the form that the replica's program needs.

        Call it on the replica, inside `run`.
        """
        return value

    def naming_failures(self) -> AbstractContextManager[Any]:
        """Context in which errors of lost devices or aborted collectives are handled.

        If a device is lost, an error with a name and advice is raised, such as `TPULostError`. If
        the collectives were aborted, the strategy switches to sums by copies, so that it can be
        used again.
        """
        return nullcontext()

    def mark_failed(self, failed: bool) -> None:
        """Records whether this task has failed.

        If the strategy can do so, it tells the reason to a peer that waits in another collective.

        Args:
            failed: True when this task fails; False when the peers know, or training has ended.
        """

    def break_off(self, reason: str) -> None:
        """Aborts the collectives that this task and its peers are in, and all later ones.

        They raise errors. Call it from another thread than the one that waits, if this task has
        failed and its peers do not reach the point at which the failure is exchanged.

        Args:
            reason: The message of the errors.
        """

    @property
    def failed_peer(self) -> str:
        """The name of a task that has reported its failure; empty if there is none."""
        return ""

    @property
    def reduction(self) -> Any:
        """The object that sums over replicas.

        When another object takes its place, graphs must be traced again.
        """
        return None

    # Methods for the loop, and for users who write their own.

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the replicas.

        Example:
            >>> with strategy.scope():
            ...     counter = tf.Variable(0.0)  # one copy per replica, kept equal
        """
        return self.tf_strategy.scope()

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls `fn` once on each replica, with that replica's values.

        Args:
            fn: The computation of one replica. Inside it, `tf.distribute.get_replica_context()` is
                this replica's context.
            args: Positional arguments. Of per-replica values, such as batches of
                `distribute_dataset`, `fn` gets its own replica's tensor, of shape
                `(per-replica batch size, ...)`; other values are passed unchanged to all.
            kwargs: Keyword arguments, treated like `args`.

        Returns:
            The result of `fn`: per-replica values if there are several local replicas, which
            `local_results` splits and `reduce` combines.
        """
        return self.tf_strategy.run(fn, args=tuple(args), kwargs=kwargs)

    def reduce(self, reduce_op: str, value: Any, axis: int | None = None) -> Any:
        """Combines per-replica values over all replicas of all tasks.

        Args:
            reduce_op: `"sum"` or `"mean"`.
            value: A per-replica value, or a structure of them, with one tensor per replica.
            axis: None combines the replicas' tensors element by element; an int (0 for the batch
                axis) also sums or averages along that axis, over all examples.

        Returns:
            A tensor, equal on all tasks.
        """
        return self.tf_strategy.reduce(reduce_op.upper(), value, axis=axis)

    def all_reduce_sum(self, value: Any) -> Any:
        """Sums over all replicas of all tasks.

        It is a collective: call it on all replicas, inside `run`.

        Args:
            value: This replica's tensor, or a list of them; those of one dtype are sent together.
                They must be computed on the replica, because TensorFlow places the sum on the
                device of its inputs.

        Returns:
            The sum, or a list of sums, equal on all replicas. It is differentiable.
        """
        context = tf.distribute.get_replica_context()
        if not isinstance(value, list):
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
        sums: list[Any] = [None] * len(value)
        for dtype in dict.fromkeys(tensor.dtype for tensor in value):
            chosen = [i for i, tensor in enumerate(value) if tensor.dtype == dtype]
            totals = context.all_reduce(tf.distribute.ReduceOp.SUM, [value[i] for i in chosen])
            for i, total in zip(chosen, totals, strict=True):
                sums[i] = total
        return sums

    def sum_gradients(self, grads: list[Any]) -> list[Any]:
        """Sums gradients over all replicas, as `all_reduce_sum` does.

        If `gradient_dtype` is set, they are cast to it, summed in it and cast back.
        """
        grads = [grad if self.keeps_rows(grad) else tf.convert_to_tensor(grad) for grad in grads]
        if self.gradient_dtype is None:
            return self.all_reduce_sum(grads)
        sums = self.all_reduce_sum([tf.cast(grad, self.gradient_dtype) for grad in grads])
        return [tf.cast(total, grad.dtype) for total, grad in zip(sums, grads, strict=True)]

    def keeps_rows(self, grad: Any) -> bool:
        """Returns whether the sum of a gradient in rows (`tf.IndexedSlices`) is in rows as well.

        If so, the sum has the rows of all replicas one after the other, as on one device. Otherwise
        the gradient is converted to a dense tensor before it is summed. A TPU sums only dense
        gradients, since the numbers of rows may differ between replicas.
        """
        return not self.static_shapes

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Concatenates per-replica values along `axis`, in the order of the replicas.

        Args:
            value: A per-replica value of dense tensors whose shapes are equal except for `axis`.
            axis: The axis to concatenate on, usually 0, the batch.

        Returns:
            A tensor with the rows of all replicas of all tasks, equal on all tasks.
        """
        dtype = self.local_results(value)[0].dtype
        sent = _SENT_AS.get(dtype)
        if sent is not None:
            value = self.run(tf.cast, (value, sent))
        gathered = self.tf_strategy.gather(value, axis=axis)
        return gathered if sent is None else tf.cast(gathered, dtype)

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns this task's per-replica values as a tuple of `num_local_replicas` tensors."""
        return tuple(self.tf_strategy.experimental_local_results(value))

    def distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Splits a data set batched to the *global* batch size over the replicas.

        Args:
            dataset: Yields batches of shape `(global batch size, ...)`. Its
                `tf.data.Options.experimental_distribute.auto_shard_policy` sets how workers share
                it.
            options: `tf.distribute.InputOptions`.

        Returns:
            An iterable of per-replica batches of shape `(per-replica batch size, ...)`.
        """
        return self.tf_strategy.experimental_distribute_dataset(dataset, options)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> Any:
        """Builds a data set on each worker by calling `dataset_fn` there.

        Args:
            dataset_fn: A function that takes a `tf.distribute.InputContext` (`num_input_pipelines`,
                `input_pipeline_id`, `get_per_replica_batch_size(global)`) and returns a data set
                batched to the *per-replica* batch size, sharded by the context.
            options: `tf.distribute.InputOptions`.

        Returns:
            An iterable of per-replica batches of shape `(per-replica batch size, ...)`.
        """
        return self.tf_strategy.distribute_datasets_from_function(dataset_fn, options)

    def fetch_ahead(self, pipeline: Callable[[int, int], tf.data.Dataset]) -> Any:
        """Prefetches batches to the replicas' devices while earlier steps run.

        Args:
            pipeline: Called on each host that has replicas, with the global index of the host's
                first replica and the number of its replicas. It returns an endless data set whose
                elements are the replicas' parts of the batches: for each batch, one element per
                replica, in the order of the replicas.

        Returns:
            An iterable of per-replica batches.
        """

        def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = self.num_replicas // context.num_input_pipelines
            return pipeline(context.input_pipeline_id * replicas, replicas)

        options = tf.distribute.InputOptions(
            experimental_fetch_to_device=True, experimental_per_replica_buffer_size=FETCHED_AHEAD
        )
        return self.distribute_datasets_from_function(of_host, options)

    def distribute_values_from_function(
        self, value_fn: Callable[[tf.distribute.experimental.ValueContext], Any]
    ) -> Any:
        """Makes a per-replica value by calling `value_fn` once for each local replica.

        Args:
            value_fn: A function that takes a `ValueContext` with `replica_id_in_sync_group` (the
                global index of the replica) and `num_replicas_in_sync`, and returns the value of
                that replica.

        Returns:
            A per-replica value; `run` passes each replica its own part.
        """
        return self.tf_strategy.experimental_distribute_values_from_function(value_fn)
