"""The adapter: one `tf.distribute.Strategy` behind the verbs that kfit and its users need.

The adapter owns the strategy object and every fact about it (how many replicas, which of them live
on this task, who is the chief). The loop, the steps and the callbacks ask the adapter and never
name `tf.distribute` themselves.
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
"""Types that TensorFlow's collectives do not carry, by what carries them without loss."""
FETCHED_AHEAD = 2
"""Batches that wait on each device for their steps."""
_GRADIENT_DTYPES = (None, "bfloat16", "float16")


class Strategy:
    """Base of kfit's adapters: `OneDevice`, `Mirrored`, `MultiWorker`, `TPU`, `ParameterServer`.

    An adapter is cheap to make and checks its own arguments at once. The `tf.distribute.Strategy`
    behind it, with its devices and servers, is created at the first use of `tf_strategy`.

    Attributes:
        name: The name that selects this adapter in `kfit.Trainer(strategy=name)`.
        synchronous: Whether all replicas take every step together, so that `run` exists.
        replicas_meet: Whether a step has points where replicas meet, be there only one.
        static_shapes: Whether one program with static shapes serves all replicas, as on a TPU.
        compiles: Whether it compiles what replicas run by itself, whatever `jit_compile` says.
        gradient_dtype: What gradients are sent as, such as "float16"; None sends them as they are.
        seconds_per_execution: How long an execution should last where nobody fixes its steps.
    """

    name: str = ""
    synchronous: bool = True
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

    # What the strategy is.

    @property
    def tf_strategy(self) -> tf.distribute.Strategy:
        """The `tf.distribute.Strategy` itself; created when first asked for."""
        if self._tf_strategy is None:
            self._tf_strategy = self._create()
        return self._tf_strategy

    def take_over(self, strategy: tf.distribute.Strategy) -> None:
        """Has this adapter stand before a strategy that the user made, and make none of its own."""
        self._tf_strategy = strategy

    def _create(self) -> tf.distribute.Strategy:
        raise NotImplementedError(f"{type(self).__name__} must define `_create`.")

    @property
    def cluster(self) -> Cluster | None:
        """The cluster this task belongs to, or None when it trains alone."""
        return None

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of this task's devices, one for each local replica."""
        return tuple(self.tf_strategy.extended.worker_devices)

    @cached_property
    def host_collectives(self) -> HostCollectives:
        """How the tasks ask each other."""
        return HostCollectives(self)

    @property
    def num_replicas(self) -> int:
        """Number of replicas over all tasks."""
        return int(self.tf_strategy.num_replicas_in_sync)

    @property
    def num_replicas_in_sync(self) -> int:
        """`num_replicas` under the name that `tf.distribute` gives it."""
        return self.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """Number of replicas on this task."""
        return self.num_replicas // self.num_workers

    @property
    def first_local_replica(self) -> int:
        """Global index of this task's first replica."""
        return self.worker_index * self.num_local_replicas

    @property
    def num_workers(self) -> int:
        """Number of tasks that train together."""
        return 1

    @property
    def worker_index(self) -> int:
        """Index of this task among those that train together, the chief being 0."""
        return 0

    @property
    def is_chief(self) -> bool:
        """Whether this task is the one that prints and writes for all."""
        return self.worker_index == 0

    @property
    def places_variables(self) -> bool:
        """Whether variables must be made by the strategy, or plain ones will do."""
        return True

    def is_placed(self, value: Any) -> bool:
        """Whether the `tf.Variable` inside a Keras variable is one on the strategy's devices."""
        return (
            isinstance(value, tf.distribute.DistributedValues)
            and getattr(value, "distribute_strategy", None) is self.tf_strategy
        )

    @property
    def on_accelerators(self) -> bool:
        """Whether replicas live on devices with a memory of their own, which data is copied to."""
        kinds = "GPU", "TPU"
        return any(kind in device.upper() for device in self.devices for kind in kinds)

    @property
    def fetches_ahead(self) -> bool:
        """Whether batches are put on the devices before their steps ask for them."""
        return self.synchronous and self.on_accelerators

    def describe(self) -> str:
        """One line for people: the replicas and where they are."""
        noun = "replica" if self.num_replicas == 1 else "replicas"
        return f"{self.name}, {self.num_replicas} {noun} on {', '.join(self.devices)}"

    def beside_data(self) -> AbstractContextManager[Any]:
        """Context in which operations run where data is, and only results go to the devices."""
        return tf.device("CPU:0") if self.on_accelerators else nullcontext()

    def received(self, value: Any) -> Any:
        """What was fed to a replica, as the replica's program takes it."""
        return value

    def naming_failures(self) -> AbstractContextManager[Any]:
        """Context in which errors that mean the loss of the devices get a name and advice.

        After others the strategy can be worked with again.
        """
        return nullcontext()

    def mark_failed(self, failed: bool) -> None:
        """Notes that this task has failed, for a peer that meets it at another place to be told.

        Args:
            failed: Whether it has; False when the peers know, or training is left.
        """

    def break_off(self, reason: str) -> None:
        """Ends what this task and its peers wait for, and all they will, with errors.

        To be called in another thread than that which waits, where this task has failed and its
        peers do not come to where it could tell them.

        Args:
            reason: What the errors say.
        """

    @property
    def failed_peer(self) -> str:
        """The name of a task that was found to have failed; empty where none was."""
        return ""

    @property
    def reduction(self) -> Any:
        """What sums over replicas; when it has changed, graphs must be traced again."""
        return None

    # The verbs, for the loop and for people who write their own.

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the replicas.

        Example:
            >>> with strategy.scope():
            ...     counter = tf.Variable(0.0)  # one copy a replica, kept equal
        """
        return self.tf_strategy.scope()

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls `fn` once on every replica.

        Args:
            fn: What one replica does. Inside it `tf.distribute.get_replica_context()` is this
                replica's context.
            args: Positional arguments. Per-replica values (from `distribute_dataset` and its
                kin) are taken apart, so `fn` sees its own replica's tensor, of shape
                `(per-replica batch size, ...)`; anything else is passed to all as it is.
            kwargs: Keyword arguments, treated like `args`.

        Returns:
            What `fn` returned, as per-replica values when there is more than one local replica.
            `local_results` takes them apart and `reduce` combines them.
        """
        return self.tf_strategy.run(fn, args=tuple(args), kwargs=kwargs)

    def reduce(self, reduce_op: str, value: Any, axis: int | None = None) -> Any:
        """Combines per-replica values over all replicas of all tasks.

        Args:
            reduce_op: `"sum"` or `"mean"`.
            value: A per-replica value, or a structure of them, with one tensor a replica.
            axis: None combines the replicas' tensors element by element; an int (0 for the batch
                axis) also sums or averages along that axis, over all examples.

        Returns:
            A tensor, equal on all tasks.
        """
        return self.tf_strategy.reduce(reduce_op.upper(), value, axis=axis)

    def all_reduce_sum(self, value: Any) -> Any:
        """Sums over all replicas of all tasks; call it on a replica, inside of `run`.

        Args:
            value: This replica's tensor, or a list of them; those of one dtype go together. They
                must be computed on the replica: TensorFlow reduces to the device that it finds on
                them.

        Returns:
            The sum, or a list of them, equal on all replicas. Gradients pass through it.
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
        """`all_reduce_sum` of gradients, sent as `gradient_dtype` says."""
        grads = [grad if self.keeps_rows(grad) else tf.convert_to_tensor(grad) for grad in grads]
        if self.gradient_dtype is None:
            return self.all_reduce_sum(grads)
        sums = self.all_reduce_sum([tf.cast(grad, self.gradient_dtype) for grad in grads])
        return [tf.cast(total, grad.dtype) for total, grad in zip(sums, grads, strict=True)]

    def keeps_rows(self, grad: Any) -> bool:
        """Whether the sum of a gradient in rows (`tf.IndexedSlices`) is one in rows as well.

        It then has the rows of all replicas one after the other, as one device has; else it is
        dense, with one row for each word, however often a batch has that. A TPU sums dense
        gradients only, and how many rows replicas have may differ.
        """
        return not self.static_shapes

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Concatenates per-replica values along `axis`, in the order of the replicas.

        Args:
            value: A per-replica value of dense tensors whose shapes agree but for `axis`.
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
        """This task's per-replica values as a tuple of `num_local_replicas` tensors."""
        return tuple(self.tf_strategy.experimental_local_results(value))

    def distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Splits a data set batched to the *global* batch size over the replicas.

        Args:
            dataset: Yields batches of shape `(global batch size, ...)`. Its
                `tf.data.Options.experimental_distribute.auto_shard_policy` says how several
                workers share it.
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
        """Builds each worker's own data set by calling `dataset_fn` there.

        Args:
            dataset_fn: Gets a `tf.distribute.InputContext` (`num_input_pipelines`,
                `input_pipeline_id`, `get_per_replica_batch_size(global)`) and returns a data set
                batched to the *per-replica* batch size, sharded by the context.
            options: `tf.distribute.InputOptions`.

        Returns:
            An iterable of per-replica batches of shape `(per-replica batch size, ...)`.
        """
        return self.tf_strategy.distribute_datasets_from_function(dataset_fn, options)

    def fetch_ahead(self, pipeline: Callable[[int, int], tf.data.Dataset]) -> Any:
        """Puts batches on the replicas' devices while the steps before them are taken.

        Args:
            pipeline: Called on each host that has replicas, with the index of its first one and
                their number, for an endless data set of their parts of the batches: of the first
                batch one a replica in their order, then those of the second.

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
            value_fn: Gets a `ValueContext` with `replica_id_in_sync_group` (global index of the
                replica) and `num_replicas_in_sync`, and returns that replica's value.

        Returns:
            A per-replica value that `run` takes apart.
        """
        return self.tf_strategy.experimental_distribute_values_from_function(value_fn)
