"""The base class of the adapters, each of which wraps a `tf.distribute.Strategy`.

An adapter creates and keeps the strategy object, and answers all questions about it: how many
replicas there are, which of them are on this task (process), which task is the chief. The training
loop, the steps and the callbacks use the adapter, never `tf.distribute` directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from kfit.cluster.cluster import Cluster
from kfit.distribute.contexts import replica_index
from kfit.distribute.host_collectives import HostCollectives
from kfit.heartbeat.tracebacks import made_for_user
from kfit.internals.quiet_logger import call_of_kfit, quieten
from kfit.internals.strategies import scope_in_default_scope
from kfit.internals.thread_settings import with_settings_of_this_thread

if TYPE_CHECKING:
    TFStrategy: TypeAlias = Any  # TensorFlow has no types; strict checkers report unknown ones
else:
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
"""The number of batches that are copied to each device in advance."""
_GRADIENT_DTYPES = (None, "bfloat16", "float16")


class Strategy:
    """The base class of kfit's adapters, each of which wraps a `tf.distribute.Strategy`.

    The adapters are `OneDevice`, `Mirrored`, `MultiWorker`, `TPU` and `ParameterServer`. Creating
    an adapter is fast, and checks the arguments. The wrapped `tf.distribute.Strategy`, with its
    devices and servers, is created when `tf_strategy` is first used.

    Attributes:
        name: The name that selects this adapter in `kfit.Trainer(strategy=name)`.
        synchronous: Whether all replicas take every step together, so that `run` can be used.
        reads_on_this_host: Whether input pipelines run in this process. Only then can a pipeline
            call Python functions of this process.
        replicas_meet: Whether a step is made for several replicas, which combine their values in a
            cross-replica context (`merge_call`). If True, such a step is also used when there is
            only one replica. If False, each step runs on a single replica.
        static_shapes: Whether all replicas run one program with static shapes, as on a TPU.
        compiles: Whether the strategy always compiles the step, whatever the model's `jit_compile`
            is.
        gradient_dtype: The dtype in which gradients are summed, such as "float16"; None sums each
            gradient in its own dtype.
        seconds_per_execution: How long one graph call, which takes several steps, should run, in
            seconds. The training loop chooses the number of steps accordingly, unless the user has
            set that number.
    """

    name: str = ""
    synchronous: bool = True
    reads_on_this_host: bool = True
    replicas_meet: bool = True
    static_shapes: bool = False
    compiles: bool = False
    gradient_dtype: str | None = None
    seconds_per_execution: float = 0.2

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leaves out kfit's frames of the errors of wrong arguments, in the adapters of kfit."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("kfit.") and "__init__" in vars(cls):
            made_for_user(cls)

    def __init__(self, gradient_dtype: str | None = None) -> None:
        if gradient_dtype not in _GRADIENT_DTYPES:
            raise ValueError(
                f"`gradient_dtype` must be one of {_GRADIENT_DTYPES}. Received: {gradient_dtype!r}"
            )
        self.gradient_dtype = gradient_dtype
        self._tf_strategy: tf.distribute.Strategy | None = None

    def __repr__(self) -> str:
        if self._tf_strategy is None:
            return f"<kfit.distribute.{type(self).__name__}, not created yet>"
        replicas = f"{self.num_replicas} replica{'s' * (self.num_replicas > 1)}"
        workers = f" on {self.num_workers} workers" if self.num_workers > 1 else ""
        return f"<kfit.distribute.{type(self).__name__}, {replicas}{workers}>"

    # Properties of the strategy.

    @property
    def tf_strategy(self) -> tf.distribute.Strategy:
        """The wrapped `tf.distribute.Strategy`, created at the first use of this property."""
        if self._tf_strategy is None:
            quieten()
            self._tf_strategy = self._create()
        return self._tf_strategy

    def take_over(self, strategy: tf.distribute.Strategy) -> None:
        """Makes this adapter wrap a strategy that the user created, instead of creating one."""
        quieten()
        self._tf_strategy = strategy

    def _create(self) -> tf.distribute.Strategy:
        raise NotImplementedError(f"{type(self).__name__} must define `_create`.")

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that this task (process) belongs to; None if this process trains alone."""
        return None

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of this task's devices, one for each replica on this task (process)."""
        return tuple(self.tf_strategy.extended.worker_devices)

    @cached_property
    def host_collectives(self) -> HostCollectives:
        """The object by which the tasks (processes) of this strategy exchange small values."""
        return HostCollectives(self)

    @property
    def num_replicas(self) -> int:
        """The number of replicas, on all tasks (processes), that take each step together."""
        return int(self.tf_strategy.num_replicas_in_sync)

    @property
    def num_replicas_in_sync(self) -> int:
        """The same number as `num_replicas`, under the name that `tf.distribute` uses."""
        return self.num_replicas

    @property
    def num_local_replicas(self) -> int:
        """The number of replicas on this task (process)."""
        return self.num_replicas // self.num_workers

    @property
    def first_local_replica(self) -> int:
        """The index of this task's first replica among the replicas of all tasks."""
        return self.worker_index * self.num_local_replicas

    @property
    def num_workers(self) -> int:
        """The number of tasks (processes) that train together."""
        return 1

    @property
    def worker_index(self) -> int:
        """The index of this task among the tasks that train together; the chief has index 0."""
        return 0

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, which prints and writes files on behalf of all tasks."""
        return self.worker_index == 0

    @property
    def places_variables(self) -> bool:
        """Whether variables must be created in the strategy's scope.

        If this is False, a model's ordinary variables are used as they are.
        """
        return True

    def is_placed(self, value: Any) -> bool:
        """Returns whether a variable is on this strategy's devices.

        Args:
            value: A `tf.Variable`. For a Keras variable, pass the `tf.Variable` that it contains.
        """
        return (
            isinstance(value, tf.distribute.DistributedValues)
            and getattr(value, "distribute_strategy", None) is self.tf_strategy
        )

    def making_slots(self) -> AbstractContextManager[None]:
        """Context of a call in which optimizers may make slots for the variables on the devices."""
        return nullcontext()

    @property
    def has_copies(self) -> bool:
        """Whether a variable on the devices consists of a copy for each replica of this task."""
        return True

    @property
    def copies_in_graphs(self) -> bool:
        """Whether a model's variables can be copied to the devices, and back, in one graph call."""
        return False

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
        """Whether batches are copied to the devices in advance, while earlier steps run."""
        return self.synchronous and self.on_accelerators

    def describe(self) -> str:
        """Returns one line for logs: the strategy's name, the number of replicas, their devices."""
        noun = "replica" if self.num_replicas == 1 else "replicas"
        return f"{self.name}, {self.num_replicas} {noun} on {', '.join(self.devices)}"

    def beside_data(self) -> AbstractContextManager[Any]:
        """Context in which operations run on the host's CPU instead of an accelerator.

        It is used while a batch is prepared, so that only the prepared batch is copied to the
        devices. If the strategy has no accelerators, the context does nothing.
        """
        return tf.device("CPU:0") if self.on_accelerators else nullcontext()

    def received(self, value: Any) -> Any:
        """Returns a replica's input in the form that the step on the replica needs.

        Called on each replica, inside `run`, before a step with static shapes uses the input. A
        `TPU` whose replicas are split over several cores by SPMD puts the input on all cores of the
        replica. All other strategies return the input unchanged.
        """
        return value

    def naming_failures(self) -> AbstractContextManager[Any]:
        """Context of each `fit`, `evaluate` and `predict` that handles the failure of a device.

        In the base class the context does nothing. Adapters handle two failures. If a TPU is lost,
        a `TPULostError` replaces TensorFlow's error. If an error has aborted TensorFlow's
        collectives between the devices of this process, that error is raised again, and later calls
        do without collectives: they sum by copying the values of the replicas to one device.
        """
        return nullcontext()

    def mark_failed(self, failed: bool) -> None:
        """Records whether this task (process) has failed, to tell the other tasks.

        Called when a hook (a method of a callback) has raised an error on this task. Other tasks
        may then wait for this task in a collective. Some strategies can tell the other tasks that
        this task has failed, so that their errors name it (`failed_peer`). In the base class the
        method does nothing.

        Args:
            failed: True when this task fails. False when the other tasks have learned of the
                failure, or training has ended.
        """

    def break_off(self, reason: str) -> None:
        """Aborts the collectives in which this task and the other tasks wait, and all later ones.

        The aborted collectives raise errors, so that no task waits for ever. A timer thread calls
        this method if this task has failed and the other tasks do not learn of it in time, since
        they wait in a collective that this task will never join.

        Args:
            reason: The message of the errors of TensorFlow's collectives.
        """

    @property
    def failed_peer(self) -> str:
        """The name of a task (process) that has reported its failure; empty if there is none."""
        return ""

    @property
    def seconds_of_exchanges(self) -> float | None:
        """How long exchanges between tasks have taken so far, in seconds; None if not measured.

        They are measured between workers whose gradients kfit sums through its own sockets.
        """
        return None

    @property
    def reduction(self) -> Any:
        """The object by which the strategy sums over its replicas; None if there is none.

        It is a `tf.distribute.CrossDeviceOps`. A graph always uses the object with which it was
        traced. But the strategy gets another object when an error has aborted TensorFlow's
        collectives. Then kfit traces the steps again.
        """
        return None

    # Methods for the loop, and for users who write their own.

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the replicas.

        Example:
            >>> with strategy.scope():
            ...     counter = tf.Variable(0.0)  # one copy per replica, kept equal
        """
        return scope_in_default_scope(self.tf_strategy)

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls `fn` once on each replica, with the values of that replica.

        TensorFlow may run `fn` in threads of their own. There `fn` sees Keras' settings of this
        thread, such as the global dtype policy, and its variables of `contextvars`. It does not see
        the values of another `threading.local`.

        Args:
            fn: The computation of one replica. Inside `fn`, `tf.distribute.get_replica_context()`
                returns the context of the replica.
            args: The positional arguments of `fn`. Of a per-replica value, such as a batch of
                `distribute_dataset`, `fn` gets the tensor of its replica, of shape
                `(per-replica batch size, ...)`. Any other value is passed unchanged to all
                replicas.
            kwargs: The keyword arguments of `fn`, treated like `args`.

        Returns:
            What `fn` returns. If this task has several replicas, each tensor becomes a per-replica
            value, which `local_results` splits and `reduce` combines.
        """
        on_replica = with_settings_of_this_thread(fn)
        with call_of_kfit():
            return self.tf_strategy.run(on_replica, args=tuple(args), kwargs=kwargs)

    def reduce(self, reduce_op: str, value: Any, axis: int | None = None) -> Any:
        """Combines per-replica values over all replicas of all tasks.

        Args:
            reduce_op: `"sum"` or `"mean"`.
            value: A per-replica value (one tensor per replica), or a nested structure of such
                values.
            axis: None sums or averages the replicas' tensors element by element. An integer also
                sums or averages along that axis; 0, the batch axis, gives the result over all
                examples.

        Returns:
            A tensor, equal on all tasks, or a structure of tensors if `value` is a structure.
        """
        return self.tf_strategy.reduce(reduce_op.upper(), value, axis=axis)

    def all_reduce_sum(self, value: Any) -> Any:
        """Sums tensors over all replicas of all tasks.

        All replicas must call it, inside `run`.

        Args:
            value: A tensor of this replica, or a list of tensors; tensors of the same dtype are
                sent together. Compute the tensors on the replica, since TensorFlow computes the sum
                on the device of its inputs.

        Returns:
            The sum, or the list of the sums, equal on all replicas. A sum is differentiable.
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
        """Returns the sum of each gradient over all replicas.

        All replicas must call it, inside `run`. If `gradient_dtype` is set, the gradients are cast
        to that dtype and summed, and the sums are cast back. Sparse gradients are made dense unless
        `keeps_rows` is True for them.
        """
        grads = [grad if self.keeps_rows(grad) else tf.convert_to_tensor(grad) for grad in grads]
        if self.gradient_dtype is None:
            return self.all_reduce_sum(grads)
        sums = self.all_reduce_sum([tf.cast(grad, self.gradient_dtype) for grad in grads])
        return [tf.cast(total, grad.dtype) for total, grad in zip(sums, grads, strict=True)]

    def keeps_rows(self, grad: Any) -> bool:
        """Returns whether a sparse gradient (`tf.IndexedSlices`) remains sparse when it is summed.

        If so, the sum is a `tf.IndexedSlices` with the rows of all replicas, one replica after the
        other. Otherwise the gradient is made dense before it is summed. A TPU sums only dense
        gradients, since the number of rows may differ between replicas.

        Args:
            grad: A gradient, sparse or dense.
        """
        return not self.static_shapes

    def gather(self, value: Any, axis: int = 0) -> Any:
        """Concatenates the replicas' tensors along `axis`, in the order of the replicas.

        Args:
            value: A per-replica value of dense tensors, whose shapes may differ only in `axis`.
            axis: The axis to concatenate along, usually 0, the batch axis; of strings it must be 0.

        Returns:
            A tensor with the rows of all replicas of all tasks, equal on all tasks.
        """
        dtype = self.local_results(value)[0].dtype
        if dtype == tf.string and axis == 0:
            return self._gathered_strings(value)
        sent = _SENT_AS.get(dtype)
        if sent is not None:
            value = self.run(tf.cast, (value, sent))
        gathered = self.tf_strategy.gather(value, axis=axis)
        return gathered if sent is None else tf.cast(gathered, dtype)

    def _gathered_strings(self, value: Any) -> tf.Tensor:
        """Concatenates strings, of which collectives send the bytes and the lengths."""
        lengths = self.gather(self.run(tf.strings.length, (value,)))
        codes = tf.cast(self.gather(self.run(_bytes_of, (value,))), tf.int32)
        letters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), codes)
        words = tf.RaggedTensor.from_row_lengths(letters, tf.reshape(lengths, [-1]))
        return tf.reshape(tf.strings.reduce_join(words, -1), tf.shape(lengths))

    def gather_parts(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Concatenates, along the first axis, what the replicas of each task have as tensors.

        It is a collective: all tasks must call it.

        Args:
            parts: The tensors of this task, one for each of its replicas.
        """
        first = self.first_local_replica
        return self.gather(self.run(lambda: tf.identity(parts[replica_index() - first])))

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """Splits a per-replica value into a tuple: one tensor for each replica of this task."""
        return tuple(self.tf_strategy.experimental_local_results(value))

    def distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> Any:
        """Splits each batch of a data set over the replicas.

        Args:
            dataset: A data set that yields batches of shape `(global batch size, ...)`. Its
                `tf.data.Options.experimental_distribute.auto_shard_policy` decides how the workers
                divide the data.
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
        """Creates a data set on each worker by calling `dataset_fn` there.

        Args:
            dataset_fn: A function from a `tf.distribute.InputContext` to a data set of batches of
                the *per-replica* size. The context tells which part of the data the worker should
                read (`input_pipeline_id` of `num_input_pipelines`), and the per-replica batch size
                (`get_per_replica_batch_size(global_batch_size)`).
            options: `tf.distribute.InputOptions`.

        Returns:
            An iterable of per-replica batches of shape `(per-replica batch size, ...)`.
        """
        return self.tf_strategy.distribute_datasets_from_function(dataset_fn, options)

    def fetch_ahead(self, pipeline: Callable[[int, int], tf.data.Dataset]) -> Any:
        """Copies batches to the replicas' devices in advance, while earlier steps run.

        Args:
            pipeline: A function that creates the data set of one host. It is called on each host
                that has replicas, with the global index of the first replica on that host and the
                number of replicas on it. The data set must be endless and contain, for each batch,
                one element per replica, in the order of the replicas.

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
        """Creates a per-replica value by calling `value_fn` once for each replica of this task.

        Args:
            value_fn: A function from a `ValueContext` to the value of one replica. The context has
                the global index of the replica (`replica_id_in_sync_group`) and the number of all
                replicas (`num_replicas_in_sync`).

        Returns:
            A per-replica value; `run` passes each replica its own part.
        """
        return self.tf_strategy.experimental_distribute_values_from_function(value_fn)


def _bytes_of(words: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of all strings of a tensor, one after the other, as numbers."""
    return tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(words, [-1])), tf.uint8)
