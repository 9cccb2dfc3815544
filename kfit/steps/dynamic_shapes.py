"""Makes the function that runs one step on all replicas, each on its own rows of the global batch.

The step is the model's `train_step`, `test_step` or `predict_step`, overridden or not. With several
replicas, functions of Keras are patched while the step is traced (`kfit.exactness.patches`), so
that the replicas together compute what one device would. Strategies that need static shapes, such
as TPUs, use `kfit.steps.static_shapes` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.contexts import replica_index
from kfit.distribute.strategy import Strategy
from kfit.exactness.gradient_accumulation import GradientAccumulation
from kfit.exactness.layer_state import LayerState
from kfit.exactness.metric_updates import variables_of_own_metrics, warn_if_decided_alone
from kfit.exactness.own_code import (
    has_outputs_without_rows,
    is_of_keras,
    overrides,
    takes_one_loss,
    warn_if_unread,
)
from kfit.exactness.patches import keras_for_replicas
from kfit.exactness.replica_context import (
    GradientSums,
    Replica,
    Step,
    on_replica,
)
from kfit.exactness.rows import (
    number_of_rows,
    of_unknown_size,
    rows_of_element,
    take_rows,
    with_any_rows,
)
from kfit.exactness.summaries import warn_of_summaries
from kfit.exactness.traced_functions import functions_of_step
from kfit.heartbeat.tracebacks import place_of, warned_at
from kfit.inputs import BatchLayout
from kfit.inputs.order import rows_fed, rows_of_replica
from kfit.internals.graph_checks import check_in_graph
from kfit.steps.fixed_sizes import has_fixed_size, naming_none
from kfit.steps.own_memory import in_own_memory
from kfit.steps.predicted import of_predictions
from kfit.steps.replica_step import (
    ModelStep,
    compiled,
    losses_of_outputs_by_examples,
    own_examples,
    take,
    unpacked,
)
from kfit.steps.returned import Returned, noted_results, of_batch
from kfit.steps.static_shapes import make_static_step

Tensor = Any


def make_step(
    model: keras.Model,
    model_step: ModelStep,
    strategy: Strategy,
    *,
    accumulation: GradientAccumulation | None = None,
    gradient_sums: GradientSums | None = None,
    predicts: bool = False,
    returned: Returned | None = None,
) -> Callable[[Any, BatchLayout], Any]:
    """Returns a function `step(element, layout)` that runs one step of the model on all replicas.

    Args:
        model: The model.
        model_step: The `train_step`, `test_step` or `predict_step` of the model.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the step runs.
        accumulation: The variables in which each replica adds up its own gradients, if the
            optimizer has `gradient_accumulation_steps`. If None, or if the strategy needs static
            shapes, gradients are summed over the replicas in each step.
        gradient_sums: Tells when gradients are summed over the replicas. If `gradient_sums.early`
            is False, they are summed when the optimizer gets them. That is too late for a step that
            changes gradients, such as by clipping, before it passes them to the optimizer. Tracing
            such a step raises `ChangedGradientsError`, unless `gradient_sums.early` is True.
        predicts: Whether the step returns predictions, whose structure must stay as it is. With
            static shapes, a replica's predictions may end with padding rows, which the caller must
            cut off.
        returned: A record that is filled while the step is traced. It says how the values that the
            replicas return are to be combined.

    Returns:
        The function. It is called in the cross-replica context, in a graph or eagerly. `element` is
        this task's part of a global batch, and `layout` (a `BatchLayout`) describes the batch. The
        function returns what the model's step returned, as per-replica values. On several replicas
        each of these is only the replica's part of what is to be logged or returned (see
        `kfit.steps.replica_parts`).

    Raises:
        ValueError: If the strategy needs static shapes, and the model is to run eagerly.
    """
    if strategy.replicas_meet and not predicts:
        warn_if_unread(model, strategy)
    if strategy.static_shapes:
        return make_static_step(model, model_step, strategy, predicts=predicts, returned=returned)
    state = LayerState(model)
    hides_rows = predicts and has_outputs_without_rows(model)
    record = Returned() if returned is None else returned
    may_differ = not is_of_keras(model_step) or overrides(model, "compute_loss")

    @tf.autograph.experimental.do_not_convert
    def on_one(element: Any, layout: BatchLayout) -> Any:
        def whole(element: Any) -> Any:
            with (
                functions_of_step(),
                losses_of_outputs_by_examples(model, lambda: rows_of_element(element)),
            ):
                return model_step(unpacked(element, layout))

        fn = compiled(whole) if model.jit_compile else whole
        # An asynchronous worker runs without other replicas, and outside of a replica context.
        return strategy.run(fn, (element,)) if strategy.synchronous else fn(element)

    @tf.autograph.experimental.do_not_convert
    def on_several(element: Any, layout: BatchLayout) -> Any:
        step = Step(strategy, accumulation, gradient_sums, weighs_loss=takes_one_loss(model))
        own_metrics = variables_of_own_metrics(model)
        place = place_of(model_step)
        if not (layout.per_replica or tf.executing_eagerly()):
            with strategy.beside_data():
                element = in_own_memory(element)

        def part(element: Any) -> Any:
            replica, own = _own_part(element, layout, strategy, may_differ=may_differ)
            if (state.may_count or hides_rows) and not tf.executing_eagerly():
                replica.hides_rows = True
                own = tf.nest.map_structure(of_unknown_size, own)
            with warned_at(place), on_replica(step, replica):
                replica.origins.begin()
                replica.own_metrics = own_metrics
                data = unpacked(replica.origins.own(own), layout)
                before = state.before()
                with naming_none(has_fixed_size(element), strategy):
                    outputs = take(model_step, data, replica, jit=model.jit_compile)
                warn_if_decided_alone(replica, step)
                warn_of_summaries(replica, step)
                state.agree(replica, before)
                if predicts:
                    return of_predictions(outputs, replica, model, record)
                return of_batch(outputs, replica, model, record)

        with (
            keras_for_replicas(),
            losses_of_outputs_by_examples(model, own_examples),
            noted_results(model),
            state.aggregated_by_kfit(),
        ):
            return strategy.run(part, (element,))

    return on_several if strategy.replicas_meet else on_one


def _own_part(
    element: Any, layout: BatchLayout, strategy: Strategy, *, may_differ: bool
) -> tuple[Replica, Any]:
    """Takes the rows of one replica from the batch, while the step of this replica is traced.

    Args:
        element: This task's part of a global batch. If `layout.per_replica` is set, it is already
            the part of this replica.
        layout: A description of the batch, such as its number of examples.
        strategy: kfit's wrapper of the `tf.distribute` strategy.
        may_differ: Whether the parts of a batch may differ in size, as batches of several kinds do
            that a step of the program's own tells apart. For Keras' step, row i of each part
            belongs to example i.

    Returns:
        A `Replica`, which describes the replica and its part of the batch; and the rows themselves.
        If the replica gets no examples, it is given a stand-in row (see `Replica.examples`).

    Raises:
        ValueError: If the batch contains scalars, or tensors with different numbers of rows.
    """
    index, replicas = replica_index(), strategy.num_replicas
    _require_rows(element)
    if may_differ and _sizes_differ(element, layout, replicas):
        return _part_of_each_size(element, index, replicas)
    if layout.per_replica:
        own = rows_of_element(element)
        if isinstance(own, int) and layout.endless:
            replica = Replica(index, own, 1 / replicas, batch_size=own * replicas)
            replica.rows = replica.fed = slice(index * own, (index + 1) * own)
            return replica, element
        own = tf.cast(own, tf.int64)
        replica = Replica(index, own, _share(own, strategy.all_reduce_sum(own)))
        return replica, tf.nest.map_structure(_with_a_row, element)
    examples = rows_of_element(element) if layout.examples is None else layout.examples
    rows = rows_of_replica(examples, index, replicas)
    own = rows.stop - rows.start
    fed = rows_fed(examples, index, replicas)
    with strategy.beside_data(), tf.control_dependencies(_same_number_of_rows(element)):
        part = tf.nest.map_structure(
            lambda leaf: take_rows(leaf, fed.start - layout.offset, fed.stop - fed.start), element
        )
    replica = Replica(index, own, _share(own, examples), batch_size=examples)
    replica.rows, replica.fed = slice(rows.start, rows.stop), slice(fed.start, fed.stop)
    return replica, part


def _sizes_differ(element: Any, layout: BatchLayout, replicas: int) -> bool:
    """Returns whether a batch has parts of different sizes, each of which can be divided evenly.

    An example is a labelled batch that a `tf.data.Dataset.zip` joins with a larger one without
    labels. If each size is a multiple of the number of replicas, a replica has the same share of
    all parts, so that means and sums over any of them are those of the whole batch. A replica must
    have more than one row of each, since one row would fit anything by broadcasting.

    Args:
        element: This task's part of a global batch.
        layout: A description of the batch.
        replicas: The number of replicas.
    """
    leaves = tf.nest.flatten(element, expand_composites=False)
    if not all(isinstance(leaf, tf.Tensor) and leaf.shape[0] is not None for leaf in leaves):
        return False
    sizes = {leaf.shape[0] for leaf in leaves}
    if len(sizes) == 1 or any(size % replicas or size == replicas for size in sizes):
        return False
    is_whole = layout.examples is None or layout.examples == rows_of_element(element)
    return is_whole and not layout.per_replica and not layout.offset


def _part_of_each_size(element: Any, index: Tensor, replicas: int) -> tuple[Replica, Any]:
    """Takes the rows of one replica from each part of a batch whose parts differ in size.

    Args:
        element: The global batch; see `_sizes_differ`.
        index: The number of the replica.
        replicas: The number of replicas.

    Returns:
        As `_own_part`. The examples that it counts are those of the first part.
    """
    size = rows_of_element(element)
    own = size // replicas
    replica = Replica(index, own, 1 / replicas, batch_size=size)
    replica.rows = replica.fed = slice(index * own, (index + 1) * own)
    return replica, tf.nest.map_structure(
        lambda leaf: take_rows(
            leaf, index * (leaf.shape[0] // replicas), leaf.shape[0] // replicas
        ),
        element,
    )


def _share(own: Tensor, examples: Tensor) -> Tensor:
    if isinstance(own, int) and isinstance(examples, int):
        return own / examples
    # float64, because losses may be float64.
    return tf.math.divide_no_nan(tf.cast(own, tf.float64), tf.cast(examples, tf.float64))


def _require_rows(element: Any) -> None:
    shapes = [leaf.shape for leaf in tf.nest.flatten(element, expand_composites=False)]
    if any(shape.rank == 0 for shape in shapes):
        raise ValueError(
            "`x` must yield batches, whose first dimension is the examples: a scalar cannot be "
            f"divided among replicas. Received: shapes {shapes}"
        )


def _same_number_of_rows(element: Any) -> list[tf.Operation]:
    """Checks that all parts of a batch (x, y, ...) have the same number of examples.

    Each replica takes the same range of rows from each part, and ignores the other rows. Without
    this check, a part with too many rows might therefore go unnoticed.

    Returns:
        Assertions to run in the graph. The list is empty if the static shapes show all numbers.

    Raises:
        ValueError: If the static shapes show that the numbers differ.
    """
    rows = [number_of_rows(leaf) for leaf in tf.nest.flatten(element, expand_composites=False)]
    message = (
        "`x` must yield batches whose parts all hold the same number of examples. (On several "
        "replicas of one task their sizes may differ in a `train_step` of your own, if each is a "
        "multiple of the number of replicas and fixed, as by `batch(n, drop_remainder=True)`. The "
        "nodes of graphs must not share one axis: pad the graphs, or take ragged tensors.)"
    )
    known = [size for size in rows if isinstance(size, int)]
    if len(set(known)) > 1:
        raise ValueError(f"{message} Received: {known}")
    if len(known) == len(rows):
        return []
    first, *others = (tf.cast(size, tf.int64) for size in rows)
    return [check_in_graph(tf.equal(first, each), message, [first, each]) for each in others]


def _with_a_row(leaf: Tensor) -> Tensor:
    """Returns a replica's tensor unchanged, or one row of zeros if the tensor has no rows.

    A replica whose data has ended gets no rows, but some layers fail on a tensor without rows.
    Sparse and ragged tensors are always returned unchanged.
    """
    if not isinstance(leaf, tf.Tensor) or leaf.shape[0]:
        return leaf  # no obvious stand-in row for sparse and ragged tensors
    shape = tf.shape(leaf)

    def zeros() -> Tensor:
        return tf.zeros(tf.concat([[1], shape[1:]], 0), leaf.dtype)

    rows = tf.cond(shape[0] > 0, lambda: leaf, zeros)
    return tf.ensure_shape(rows, with_any_rows(leaf.shape))
