"""The replica that is being traced: its index, its number of examples, its share of the batch.

The rule by which several replicas compute what one device does: a replica's loss is its *estimate*
of the loss of the global batch, and the sum of the estimates over the replicas, weighted by the
replicas' *shares*, is exactly that loss. For a mean over examples the estimate is the mean over the
replica's own examples, and the share is the fraction of the global batch's examples that the
replica has. For full batches the shares are constants that are known when the step is traced, so
that the rule costs no computation.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.contexts import replica_context
from kfit.distribute.placement import seed_generator_on
from kfit.distribute.strategy import Strategy
from kfit.exactness.gradient_accumulation import GradientAccumulation
from kfit.exactness.rows import number_of_rows, take_rows
from kfit.graphs.origins import Origins
from kfit.graphs.sources import UsesOfRows
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.graphs import current_graph
from kfit.internals.thread_settings import with_settings_of_this_thread

_active = threading.local()

Tensor = Any


class CannotMeetError(ValueError):
    """Raised if a replica would have to communicate with other replicas where it cannot.

    This happens while a step is traced, for example if a layer calls `all_reduce` in a step that
    XLA compiles: replicas can communicate only outside of the compiled part.
    """


class Update(NamedTuple):
    """A call of `optimizer.apply` that was recorded, to be made later.

    If XLA compiles the step, the call is made after the compiled part, where the replicas can sum
    their gradients.

    Attributes:
        optimizer: The optimizer to call.
        grads: The gradients that were passed to `apply`.
        variables: The variables that were passed to `apply`; None if it got only gradients.
    """

    optimizer: keras.optimizers.Optimizer
    grads: list[Tensor]
    variables: list[Any] | None


class OwnVariable(NamedTuple):
    """A variable of a metric that has a user-written `update_state`.

    Attributes:
        metric: The name of the metric.
        variable: The variable.
    """

    metric: str
    variable: keras.Variable


@dataclass
class ReadResult:
    """A result of a metric that a step has read, and the metric's state of that time.

    Attributes:
        metric: The metric.
        graph: The graph in which the result was read.
        is_changed: Whether the step has changed the metric since.
        state: The values of the metric's variables on this replica before that change. None if
            there was no change, or it was made in another graph, such as that of a branch.
    """

    metric: keras.Metric
    graph: Any
    is_changed: bool = False
    state: list[tuple[keras.Variable, Tensor]] | None = None


@dataclass
class Trial:
    """A computation of a loss or a metric of which it is not known whether a replica can do it.

    Attributes:
        may_be_repeated: A function that returns whether the value can be computed from the examples
            of all replicas, in place of the replica's own.
        doubts: The texts of warnings that say why the replica's own examples do not suffice.
    """

    may_be_repeated: Callable[[], bool]
    doubts: list[str] = field(default_factory=list)

    @functools.cached_property
    def is_futile(self) -> bool:
        """Whether the replica's own examples do not suffice, so that those of all are taken.

        It must be asked after the last warning.
        """
        return bool(self.doubts) and self.may_be_repeated()


@dataclass
class Replica:
    """One replica while its step is traced: its part of the batch, and what the step has done.

    The wrappers of Keras' functions (`kfit.exactness.patches`) read and change these attributes.

    Attributes:
        index: The number of the replica among the replicas of all tasks, from 0. A scalar int32
            tensor if the step is traced only once, for all replicas.
        examples: The number of examples that the replica has; an int or a scalar int64 tensor. If
            the number is 0, the replica computes on a stand-in row (a copy of another replica's
            row, or a row of zeros), and all its results are discarded.
        share: The fraction of the global batch's examples that the replica has; a float or a
            float64 scalar. With `has_all` it is 1 / the number of replicas.
        has_all: Whether each replica computes on the whole global batch, because the batch cannot
            be divided among the replicas. Keras' own results are then right on each replica. The
            gradients are equal on all replicas, and the optimizer gets their mean.
        weighed: The losses that `scale_loss` has multiplied by the share (`Step.weighs_loss`), by
            their ids.
        unreduced: Whether the model's loss has a value for each example (`reduction=None`), and the
            step has not passed it to `scale_loss`.
        reduced: True while an optimizer works with gradients that are already summed over the
            replicas, so that they are not summed again.
        rows: The slice of the global batch's rows that are the replica's examples; None if unknown.
        fed: The slice of the global batch's rows on which the replica computes: `rows` itself or,
            if the replica has no examples, the row of which its stand-in row is a copy. None if
            unknown.
        batch_size: The number of examples of the global batch, an int or a scalar; None if unknown.
        draws: True while a random generator changes its state.
        origins: A record of which tensors of the step may differ between replicas.
        assigned: The variables that the step has assigned, by their ids, each with the list of the
            assigned values. Updates of optimizers are left out.
        changed: What the step has assigned or added to the `tf.Variable` inside of Keras variables,
            past these, by the ids of the distributed variables.
        assigns: True while a Keras variable is assigned, which `assigned` records.
        hides_rows: Whether the graph computes the number of examples from the batch, rather than
            containing it as a constant. Only then can kfit see which values depend on this number.
        own_metrics: The variables of user-written metrics, by their ids.
        adds_up: True while a metric of Keras is updated. Such a metric adds sums over the examples,
            which need no conversion.
        resets: True while a metric is reset, which a replica without examples does, too.
        row_states: Ids of the variables with a row for each example (states of stateful RNNs). A
            replica assigns only the rows of its own examples.
        added_losses: For each layer (by id), the losses that it has added (`add_loss`) while the
            model is called.
        functions: For each `tf.function` of which the step calls a new copy instead, the function
            and the copy (see `kfit.exactness.traced_functions`).
        results: The results of metrics in this step, by their ids, each with its name and metric.
        read_results: For each of these results (by its id), what is known of its metric then.
        gradients: The gradients of weights that a tape has returned in this step, by their ids.
        parts: The estimates that were made of what adds up over the replicas, by their ids, each
            with what it was made of (`estimate_of_part`).
        differentiates: True while TensorFlow computes gradients of the replica's loss.
        has_share: True while gradients are computed of a loss that was multiplied by the replica's
            share of the examples, or that adds up over the replicas. So upstream gradients add up
            over the replicas as they are.
        sums: True while `all_reduce` must sum values exactly as given: they are already weighted,
            and leave out stand-in rows.
        tape_sums: Whether a `GradientTape` has returned gradients that are already summed over the
            replicas (`GradientSums.early`).
        postponed: None while the replica may communicate, which is the usual case. Otherwise a
            list: calls of `optimizer.apply` are appended to the list instead of being made.
        trial: None while warnings are issued, which is the usual case. Otherwise what is tried:
            warnings are its doubts.
        has_gathered: True while a loss or a metric is computed from the examples of all replicas,
            as one device computes it. `has_all` is then True, too.
        judged: The tensors of which it is known whether a layer combines examples in them, by their
            ids (`kfit.exactness.across_layers`).
        told: Those of them in which a layer does, so that there was a warning.
    """

    index: Tensor
    examples: Tensor
    share: Tensor
    has_all: bool = False
    weighed: dict[int, Tensor] = field(default_factory=dict)
    unreduced: bool = False
    reduced: bool = False
    rows: slice | None = None
    fed: slice | None = None
    batch_size: Tensor = None
    draws: bool = False
    origins: Origins = field(default_factory=Origins)
    assigned: dict[int, tuple[keras.Variable, list[Tensor]]] = field(default_factory=dict)
    changed: dict[int, list[Tensor]] = field(default_factory=dict)
    assigns: bool = False
    hides_rows: bool = False
    own_metrics: dict[int, OwnVariable] = field(default_factory=dict)
    adds_up: bool = False
    resets: bool = False
    row_states: set[int] = field(default_factory=set)
    added_losses: dict[int, list[Tensor]] = field(default_factory=dict)
    functions: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    results: dict[int, tuple[Tensor, str, keras.Metric]] = field(default_factory=dict)
    read_results: dict[int, ReadResult] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    parts: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    differentiates: bool = False
    has_share: bool = False
    sums: bool = False
    tape_sums: bool = False
    postponed: list[Update] | None = None
    trial: Trial | None = None
    has_gathered: bool = False
    judged: dict[int, Tensor] = field(default_factory=dict)
    told: dict[int, Tensor] = field(default_factory=dict)

    @functools.cached_property
    def uses_of_rows(self) -> UsesOfRows:
        """Which tensors of layers are computed from examples."""
        return UsesOfRows(self.origins)

    @property
    def scaled(self) -> bool:
        """Whether the loss is multiplied by the share, so that its gradients need not be."""
        return bool(self.weighed)

    @property
    def can_be_read(self) -> bool:
        """Whether there is a graph that shows how values are computed from the examples."""
        return self.hides_rows and not tf.executing_eagerly()

    @property
    def may_be_empty(self) -> bool:
        """Whether this replica may have no example of its own.

        It is also True if the number of examples becomes known only when the step runs.
        """
        return not isinstance(self.examples, int) or self.examples == 0

    def share_as(self, dtype: Any) -> Tensor:
        """Returns the replica's share (its fraction of the batch's examples) in a dtype."""
        if isinstance(self.share, float):
            return tf.constant(self.share, dtype)
        return tf.cast(self.share, dtype)

    def weigh(self, value: Tensor) -> Tensor:
        """Multiplies a tensor by the replica's share: its fraction of the global batch's examples.

        On a replica without examples the result is zeros, even if `value` is NaN.
        """
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.weigh(value.values), value.indices, value.dense_shape)
        if id(value) in self.parts:
            return self.zero_if_empty(self.parts[id(value)][1])
        return self.zero_if_empty(value * self.share_as(value.dtype))

    def divided_by_share(self, value: Tensor) -> Tensor:
        """Divides what adds up over the replicas by the share; zeros if the share is 0."""
        return tf.math.divide_no_nan(value, self.share_as(value.dtype))

    def estimate_of_part(self, part: Tensor) -> Tensor:
        """Makes an estimate of what adds up over the replicas: divides it by the replica's share.

        Where the estimate is weighted by the share, nothing is computed: `weigh` returns the part.
        """
        if isinstance(part, tf.IndexedSlices):
            values = self.estimate_of_part(part.values)
            estimate = tf.IndexedSlices(values, part.indices, part.dense_shape)
            return self.origins.estimate(estimate)
        estimate = self.divided_by_share(part)
        self.parts[id(estimate)] = (estimate, part)
        return self.origins.estimate(estimate)

    @contextmanager
    def differentiating(self, *, has_share: bool) -> Iterator[None]:
        """Context in which TensorFlow computes gradients of the replica's loss.

        Gradient functions of operations may use tapes in it. They compute parts of the same
        gradients, which must not be converted again.

        Args:
            has_share: Whether the loss adds up over the replicas (see the attribute).
        """
        before = self.differentiates, self.has_share
        self.differentiates, self.has_share = True, has_share
        try:
            yield
        finally:
            self.differentiates, self.has_share = before

    def zero_if_empty(self, value: Tensor) -> Tensor:
        """Returns `value`, or zeros of the same shape if the replica has no examples.

        A replica without examples computes on a stand-in row, which is no example of its own. The
        results must not count, even if they are NaN.
        """
        if not self.may_be_empty:
            return value
        if isinstance(value, tf.IndexedSlices):
            kept = self.zero_if_empty(value.values)
            return tf.IndexedSlices(kept, value.indices, value.dense_shape)
        return self.unless_empty(value, tf.zeros_like(value))

    def unless_empty(self, value: Tensor, otherwise: Tensor) -> Tensor:
        """Returns `value`, or `otherwise` if the replica has no examples."""
        return tf.where(tf.convert_to_tensor(self.examples) > 0, value, otherwise)

    def rows_of_own(self, value: Tensor) -> Tensor:
        """Returns the rows of a tensor that belong to the examples on which the replica computes.

        It is used for the states of stateful RNNs.

        Args:
            value: A tensor with a row for each example of the global batch.
        """
        assert self.fed is not None
        return tf.convert_to_tensor(value)[self.fed]

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Context in which `all_reduce` sums values over the replicas exactly as given.

        kfit enters it for its own sums, whose values are already weighted and leave out stand-in
        rows. So kfit's wrapper of `ReplicaContext.all_reduce` must correct nothing.
        """
        self.sums = True
        try:
            yield
        finally:
            self.sums = False

    @contextmanager
    def adding_up(self) -> Iterator[None]:
        """Context in which a metric of Keras is updated.

        Such a metric adds sums over the replica's examples, which need no conversion. So within the
        context kfit does not convert the values that are assigned to the metric's variables.
        Elsewhere kfit converts the values that user-written metrics assign.
        """
        before, self.adds_up = self.adds_up, True
        try:
            yield
        finally:
            self.adds_up = before

    @contextmanager
    def assigning(self) -> Iterator[None]:
        """Context in which a Keras variable assigns the `tf.Variable` inside of it."""
        before, self.assigns = self.assigns, True
        try:
            yield
        finally:
            self.assigns = before

    def warn(self, message: str) -> None:
        """Warns that a value depends on the number of replicas; in a trial it is a doubt."""
        if self.trial is None:
            warn_user(message)
        else:
            self.trial.doubts.append(message)

    @property
    def tries_in_vain(self) -> bool:
        """Whether what is tried will be computed again, from the examples of all replicas."""
        return self.trial is not None and self.trial.is_futile

    @contextmanager
    def trying(self, trial: Trial) -> Iterator[None]:
        """Context in which it is found out whether the replica can compute a value by itself."""
        before, self.trial = self.trial, trial
        try:
            yield
        finally:
            self.trial = before

    @contextmanager
    def with_gathered(self) -> Iterator[None]:
        """Context in which a value is computed from the gathered examples of all replicas.

        Keras' own results are right in it, and a sum over the replicas is the value itself.
        """
        before = self.has_all, self.has_gathered
        self.has_all = self.has_gathered = True
        try:
            yield
        finally:
            self.has_all, self.has_gathered = before

    def own_rows(self, value: Tensor) -> Tensor:
        """Returns a tensor without its stand-in row, if the replica has no examples.

        A replica without examples computes on a stand-in row, which is no example of its own, and
        must not be among predictions or gathered values. On other replicas, the tensor is returned
        unchanged. Scalars are always returned unchanged.
        """
        if not self.may_be_empty or not tf.is_tensor(value) or value.shape.rank == 0:
            return value
        rows = tf.cast(number_of_rows(value), tf.int64)
        return take_rows(value, 0, self.zero_if_empty(rows))


@dataclass
class GradientSums:
    """The point at which a model's steps sum gradients over the replicas.

    Attributes:
        early: If False (the usual case), gradients are summed when the optimizer gets them. If
            True, they are summed when `GradientTape.gradient` returns them. A step needs this if it
            changes gradients, such as by clipping, before it passes them to the optimizer.
    """

    early: bool = False


class Step:
    """The replicas of this task while a step of the model is traced, and their strategy.

    A `Step` must be made in the cross-replica context (in the strategy's scope, but on no replica).

    Args:
        strategy: kfit's wrapper of the `tf.distribute` strategy that runs the step.
        accumulation: The variables in which each replica adds up its own gradients
            (`gradient_accumulation_steps`). None if gradients are summed over the replicas in each
            step.
        gradient_sums: The point at which gradients are summed over the replicas. If None, they are
            summed when the optimizer gets them.
        weighs_loss: Whether the step passes one loss to `scale_loss`, and the gradients of this
            loss to the optimizer as they are. Then the loss is multiplied by a replica's share of
            the examples, in place of the gradients.

    Attributes:
        replicas: The replicas of this task whose tracing has begun, by their indices. One item with
            the key 0 if the step is traced only once, for all replicas.
        graph: The graph in which the step is traced.
        seed_generator: Keras' global seed generator of the thread that has made the `Step`. Layers
            without a seed draw from it on all replicas.
    """

    def __init__(
        self,
        strategy: Strategy,
        accumulation: GradientAccumulation | None = None,
        gradient_sums: GradientSums | None = None,
        *,
        weighs_loss: bool = False,
    ) -> None:
        self.strategy = strategy
        self.weighs_loss = weighs_loss
        self.accumulation = accumulation
        self.gradient_sums = gradient_sums
        self.replicas: dict[int, Replica] = {}
        self.graph = current_graph()
        # Keras has one global generator per thread, and each replica is traced in a thread of its
        # own.
        self.seed_generator = seed_generator_on(strategy)

    def on_each_replica(self, fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> Any:
        """Calls `fn` on every replica of this task, and returns the results as per-replica values.

        Call it in the cross-replica context, such as in a `merge_call` within the step. The patches
        of Keras' functions then work in `fn` as in the rest of the step.

        Args:
            fn: The function to call.
            args: The arguments of `fn`, as per-replica values.
        """

        def entered(*args: Any) -> Any:
            with _entered(self):
                return fn(*args)

        on_replica = with_settings_of_this_thread(entered)
        return self.strategy.tf_strategy.extended.call_for_each_replica(on_replica, args=args)


def current_replica() -> Replica | None:
    """Returns the replica whose step this thread is tracing.

    None if this thread traces no replica's step: then Keras' functions must work as usual.
    """
    step = current_step()
    context = replica_context()
    if step is None or context is None:
        return None
    return step.replicas.get(_number_of(context))


def one_of_several() -> Replica | None:
    """Returns the replica that this thread is tracing, if the replica has only a part of the batch.

    None if each replica computes on the whole batch, or if this thread traces no replica's step:
    then Keras' own results are right.
    """
    replica = current_replica()
    return None if replica is None or replica.has_all else replica


def current_step() -> Step | None:
    """Returns the step that this thread is tracing, or None."""
    return getattr(_active, "step", None)


def _number_of(context: Any) -> int:
    """Returns the key of a replica in `Step.replicas`, which is usually the replica's index.

    It is 0 if the step is traced only once, for all replicas: no index is then known while tracing.

    Args:
        context: The `tf.distribute.ReplicaContext` of the replica.
    """
    known = tf.get_static_value(context.replica_id_in_sync_group)
    return 0 if known is None else int(known)


def check_may_meet() -> None:
    """Checks that the replica that is being traced may communicate with the other replicas.

    Raises:
        CannotMeetError: If the replica is in a part of the step that must run without the other
            replicas, such as one that XLA compiles.
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
    """Context in which this thread traces a replica's step, so that `current_replica` returns it.

    Enter it in the function that the strategy runs on the replica.

    Args:
        step: The step that all replicas take together.
        replica: The replica that this thread traces.
    """
    step.replicas[_number_of(replica_context())] = replica
    with _entered(step):
        yield
