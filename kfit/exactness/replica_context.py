"""The replica that is being traced: its index, its number of examples, its share of the batch.

The rule that makes several replicas compute what one device does: a replica's loss is its estimate
of the loss of the *global* batch, and its `share` is the weight of that estimate, so that the
share-weighted sum over the replicas is exact. For a mean over examples the estimate is the
replica's own mean and the share its fraction of the examples. Full batches have constant shares,
known when the step is traced: there the exactness costs nothing.
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
    """A part of the step that a replica takes by itself asks for the other replicas."""


class Update(NamedTuple):
    """A call of `optimizer.apply`."""

    optimizer: keras.optimizers.Optimizer
    grads: list[Tensor]
    variables: list[Any] | None


@dataclass
class Replica:
    """One replica during one step.

    Attributes:
        index: Its global index; a scalar int32 tensor where one program serves all replicas.
        examples: Number of its examples, an int or a scalar int64 tensor. A replica that has none
            computes on a row that stands in (`kfit.inputs.order.rows_fed`) and counts nowhere.
        share: Its fraction of the global batch's examples, a float or a float64 scalar.
        has_all: Whether every replica has all examples, so that Keras on it computes what one
            device does, and only the mean over the replicas is left to be taken.
        scaled: Optimizers (by id) whose loss was already multiplied by the share.
        weighed: Losses (by id) of `scale_loss`, whose gradients add up to the global batch's.
        unreduced: Whether the model's loss has a value for each example (`reduction=None`).
        reduced: Whether the gradients now handed to an optimizer are summed over the replicas.
        rows: Which rows of the global batch its examples are; None where nothing says.
        fed: Which rows it computes on: its own, or the one that stands in.
        batch_size: Number of examples of the global batch, as `examples`; None where it is unknown.
        draws: Whether the state of a random generator is going on now.
        origins: Which of the step's tensors are this replica's alone.
        assigned: Variables that this step assigned, with the values, by id.
        hides_rows: Whether the number of its examples is no constant of the graph, which then shows
            what is made of it.
        own_metrics: Names of the metrics that the user wrote, by the ids of their variables.
        adds_up: Whether a metric of Keras is updated, whose replicas add up.
        row_states: Variables (by id) of which each replica assigns the rows of its examples.
        added_losses: What each layer (by id) has added to the loss of the call under way.
        functions: Functions (by id) of the program, each with what it is for this replica's step.
        results: Results of metrics in this step, each with its name, by id.
        sums: Whether what is summed over the replicas now is exact as it is.
        tape_sums: Whether gradients that it has are sums over the replicas (`GradientSums`).
        postponed: Where not None, updates are put here instead of being made.
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
        """The share as a number of that type, rounded once."""
        if isinstance(self.share, float):
            return tf.constant(self.share, dtype)
        return tf.cast(self.share, dtype)

    def weigh(self, value: Tensor) -> Tensor:
        """`value` times the share, and 0 on a replica that has no example."""
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.weigh(value.values), value.indices, value.dense_shape)
        return self.zero_if_empty(value * self.share_as(value.dtype))

    def zero_if_empty(self, value: Tensor) -> Tensor:
        """`value`, or zeros on a replica that has no example, whatever `value` is there."""
        if not self.may_be_empty:
            return value
        if isinstance(value, tf.IndexedSlices):
            kept = self.zero_if_empty(value.values)
            return tf.IndexedSlices(kept, value.indices, value.dense_shape)
        return self.unless_empty(value, tf.zeros_like(value))

    def unless_empty(self, value: Tensor, otherwise: Tensor) -> Tensor:
        """`value`, or `otherwise` on a replica that has no example."""
        return tf.where(tf.convert_to_tensor(self.examples) > 0, value, otherwise)

    def rows_of_own(self, value: Tensor) -> Tensor:
        """The rows of `value`, one for each example of the global batch, that it computes on."""
        assert self.fed is not None
        return tf.convert_to_tensor(value)[self.fed]

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Within it what is summed over the replicas is exact as it is (see `sums`)."""
        self.sums = True
        try:
            yield
        finally:
            self.sums = False

    @contextmanager
    def adding_up(self) -> Iterator[None]:
        """Within it what metrics add is a sum over the examples (see `adds_up`)."""
        before, self.adds_up = self.adds_up, True
        try:
            yield
        finally:
            self.adds_up = before

    def own_rows(self, value: Tensor) -> Tensor:
        """`value` without the row that stands in where the replica has no example."""
        if not self.may_be_empty or not tf.is_tensor(value) or value.shape.rank == 0:
            return value
        rows = tf.cast(number_of_rows(value), tf.int64)
        return take_rows(value, 0, self.zero_if_empty(rows))


@dataclass
class GradientSums:
    """When the steps of a model have their gradients summed over the replicas.

    Attributes:
        early: Whether where a tape gives them, and not where the optimizer takes them.
    """

    early: bool = False


class Step:
    """All replicas of this task during one step, and the strategy that runs them.

    Make it outside of the replicas: what layers without a seed draw from is that of the maker.

    Args:
        strategy: The adapter.
        accumulation: Where each replica accumulates gradients for itself; None if it does not.
        gradient_sums: When gradients are summed; None if the step is not traced a second time.
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
        # Keras keeps it in each thread by itself, and replicas are traced by threads of their own.
        self.seed_generator = global_seed_generator()

    def on_each_replica(self, fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        """Calls `fn` on every replica from the cross-replica context, within this step."""

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


def current_step() -> Step | None:
    """The step that this thread is tracing, or None."""
    return getattr(_active, "step", None)


def _number_of(context: Any) -> int:
    """Tells apart the replicas that are traced; a program for all of them is traced once."""
    known = tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if known is None else int(known)


def check_may_meet() -> None:
    """Makes sure that the replica that is being traced may ask the other ones for something.

    Raises:
        CannotMeetError: If it takes this part of its step by itself.
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
    """Within it, Keras code that this thread traces belongs to `replica`."""
    step.replicas[_number_of(replica_context())] = replica
    with _entered(step):
        yield
