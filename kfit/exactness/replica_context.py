"""The replica that is being traced: its index, its number of examples, its share of the batch.

The rule by which several replicas compute what one device does: a replica's loss is its *estimate*
of the loss of the global batch, and the sum of the estimates over the replicas, weighted by their
*shares*, is exactly that loss. For a mean over examples the estimate is the mean over the replica's
own examples, and the share is their fraction of all examples. For full batches the shares are
constants that are known when the step is traced, so the exactness costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.contexts import replica_context
from kfit.distribute.strategy import Strategy
from kfit.exactness.gradient_accumulation import GradientAccumulation
from kfit.exactness.origins import Origins
from kfit.exactness.rows import number_of_rows, take_rows
from kfit.internals.randomness import global_seed_generator

_active = threading.local()

Tensor = Any


class CannotMeetError(ValueError):
    """A part of the step that must run without the other replicas tried to communicate."""


class Update(NamedTuple):
    """A postponed call of `optimizer.apply`."""

    optimizer: keras.optimizers.Optimizer
    grads: list[Tensor]
    variables: list[Any] | None


@dataclass
class Replica:
    """One replica during one step.

    Attributes:
        index: Its global index; a scalar int32 tensor if one program serves all replicas.
        examples: Its number of examples, an int or a scalar int64 tensor. A replica without
            examples computes on a stand-in row (`kfit.inputs.order.rows_fed`), whose results are
            discarded.
        share: Its fraction of the global batch's examples, a float or a float64 scalar.
        has_all: Whether every replica has all examples. Then Keras computes on each what one device
            does, and the mean over the replicas is taken.
        scaled: Ids of optimizers whose loss was already multiplied by the share.
        weighed: Losses (by id) that `scale_loss` returned; their gradients add up over the
            replicas.
        unreduced: Whether the model's loss has a value for each example (`reduction=None`).
        reduced: Whether the gradients now passed to an optimizer are summed over the replicas.
        rows: Which rows of the global batch its examples are; None if unknown.
        fed: Which rows it computes on: its own ones, or the stand-in row; None if unknown.
        batch_size: Number of examples of the global batch, an int or a scalar; None if unknown.
        draws: Whether a random generator is changing its state now.
        origins: Which of the step's tensors are this replica's own.
        assigned: Variables (by id) that this step assigned, each with the assigned values.
        hides_rows: Whether its number of examples is hidden from the graph's constants, so that the
            graph shows which values are computed from it.
        own_metrics: Names of user-written metrics, by the ids of their variables.
        adds_up: Whether a metric of Keras is being updated, which adds sums over the examples.
        row_states: Ids of variables of which each replica assigns the rows of its own examples.
        added_losses: For each layer (by id), the losses that it has added in the current call.
        functions: Each `tf.function` (by id) that was called, with its copy for this step.
        results: Results (by id) of metrics in this step, each with its name.
        sums: Whether sums over the replicas are now taken as they are, because the values are
            weighted already and leave out stand-in rows.
        tape_sums: Whether tapes have returned gradients summed over the replicas (`GradientSums`).
        postponed: If not None, updates are appended to it instead of being made, and the replica
            must not communicate.
    """

    index: Tensor
    examples: Tensor
    share: Tensor
    has_all: bool = False
    scaled: set[int] = field(default_factory=set)
    weighed: dict[int, Tensor] = field(default_factory=dict)
    unreduced: bool = False
    reduced: bool = False
    rows: slice | None = None
    fed: slice | None = None
    batch_size: Tensor = None
    draws: bool = False
    origins: Origins = field(default_factory=Origins)
    assigned: dict[int, tuple[keras.Variable, list[Tensor]]] = field(default_factory=dict)
    hides_rows: bool = False
    own_metrics: dict[int, str] = field(default_factory=dict)
    adds_up: bool = False
    row_states: set[int] = field(default_factory=set)
    added_losses: dict[int, list[Tensor]] = field(default_factory=dict)
    functions: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    results: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    sums: bool = False
    tape_sums: bool = False
    postponed: list[Update] | None = None

    @property
    def may_be_empty(self) -> bool:
        """Whether this replica may have no example of its own."""
        return not isinstance(self.examples, int) or self.examples == 0

    def share_as(self, dtype: Any) -> Tensor:
        """The share in that dtype, rounded once."""
        if isinstance(self.share, float):
            return tf.constant(self.share, dtype)
        return tf.cast(self.share, dtype)

    def weigh(self, value: Tensor) -> Tensor:
        """`value` times the share, or zeros on a replica without examples."""
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.weigh(value.values), value.indices, value.dense_shape)
        return self.zero_if_empty(value * self.share_as(value.dtype))

    def zero_if_empty(self, value: Tensor) -> Tensor:
        """`value`, or zeros on a replica without examples, even if `value` is NaN there."""
        if not self.may_be_empty:
            return value
        if isinstance(value, tf.IndexedSlices):
            kept = self.zero_if_empty(value.values)
            return tf.IndexedSlices(kept, value.indices, value.dense_shape)
        return self.unless_empty(value, tf.zeros_like(value))

    def unless_empty(self, value: Tensor, otherwise: Tensor) -> Tensor:
        """`value`, or `otherwise` on a replica without examples."""
        return tf.where(tf.convert_to_tensor(self.examples) > 0, value, otherwise)

    def rows_of_own(self, value: Tensor) -> Tensor:
        """The rows of `value` that this replica computes on.

        Args:
            value: A tensor with a row for each example of the global batch.
        """
        assert self.fed is not None
        return tf.convert_to_tensor(value)[self.fed]

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Context in which sums over the replicas are taken without any correction (see `sums`)."""
        self.sums = True
        try:
            yield
        finally:
            self.sums = False

    @contextmanager
    def adding_up(self) -> Iterator[None]:
        """Context in which metrics add sums over the examples (see `adds_up`)."""
        before, self.adds_up = self.adds_up, True
        try:
            yield
        finally:
            self.adds_up = before

    def own_rows(self, value: Tensor) -> Tensor:
        """`value` without the stand-in row, if the replica has no examples."""
        if not self.may_be_empty or not tf.is_tensor(value) or value.shape.rank == 0:
            return value
        rows = tf.cast(number_of_rows(value), tf.int64)
        return take_rows(value, 0, self.zero_if_empty(rows))


@dataclass
class GradientSums:
    """When a model's steps sum gradients over the replicas.

    Attributes:
        early: Whether they are summed when a tape returns them, instead of when the optimizer gets
            them.
    """

    early: bool = False


class Step:
    """All replicas of this task during one step, and the strategy that runs them.

    Make it in the cross-replica context. Layers without a seed draw, on all replicas, from the
    global seed generator of the thread that makes it.

    Args:
        strategy: The adapter.
        accumulation: Where each replica accumulates its own gradients; None if it does not.
        gradient_sums: When gradients are summed; None if the step is never traced a second time.
    """

    def __init__(
        self,
        strategy: Strategy,
        accumulation: GradientAccumulation | None = None,
        gradient_sums: GradientSums | None = None,
    ) -> None:
        self.strategy = strategy
        self.accumulation = accumulation
        self.gradient_sums = gradient_sums
        self.replicas: dict[int, Replica] = {}
        # Keras has one global generator per thread, and each replica is traced in a thread of its
        # own.
        self.seed_generator = global_seed_generator()

    def on_each_replica(self, fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        """Calls `fn` on every replica, from the cross-replica context, within this step."""

        def entered(*args: Any) -> Any:
            with _entered(self):
                return fn(*args)

        return self.strategy.tf_strategy.extended.call_for_each_replica(entered, args=args)


def current_replica() -> Replica | None:
    """The replica whose step is being traced by this thread, or None."""
    step = current_step()
    context = replica_context()
    if step is None or context is None:
        return None
    return step.replicas.get(_number_of(context))


def one_of_several() -> Replica | None:
    """The replica that is being traced; None if every replica has all examples."""
    replica = current_replica()
    return None if replica is None or replica.has_all else replica


def current_step() -> Step | None:
    """The step that this thread is tracing, or None."""
    return getattr(_active, "step", None)


def _number_of(context: Any) -> int:
    """A key for the replica: its index, or 0 if one program is traced for all replicas."""
    known = tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if known is None else int(known)


def check_may_meet() -> None:
    """Checks that the replica that is being traced may communicate with the other replicas.

    Raises:
        CannotMeetError: If it is in a part of the step that must run without them (`postponed`).
    """
    replica = current_replica()
    if replica is not None and replica.postponed is not None:
        raise CannotMeetError(
            "`jit_compile=True` on several replicas does not go with a layer, loss or step that "
            "asks the other replicas for something before the optimizer does (`all_reduce`, "
            "`merge_call`), because the replicas meet outside of XLA. Compile the model with "
            "`jit_compile=False`."
        )


@contextmanager
def _entered(step: Step) -> Iterator[None]:
    before = current_step()
    _active.step = step
    try:
        yield
    finally:
        _active.step = before


@contextmanager
def on_replica(step: Step, replica: Replica) -> Iterator[None]:
    """Context in which Keras code that this thread traces belongs to `replica`."""
    step.replicas[_number_of(replica_context())] = replica
    with _entered(step):
        yield
