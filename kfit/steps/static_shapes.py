"""Makes steps that are one program for all replicas, with static shapes only, as TPUs need it.

On a TPU the step is traced once for all replicas: the replica's index is an input of the program,
and tensors have the same shapes on every replica. Let n be the number of examples of a batch, R the
number of replicas, and q = n // R. Then some replicas have q rows, and the others q + 1. So the
batch is sliced on the device that holds the data, and replicas with q rows get one more row as
padding. Padding never influences the results:

    n % R == 0   there is no padding.
    q > 0        the program holds the model's step twice, for q and for q + 1 rows, up to the
                 gradients. Each replica runs the step for the number of its own rows, without the
                 padding. Then the gradients are summed, as in steps that XLA compiles on other
                 strategies.
    otherwise    every replica gets the whole batch and computes what one device would. The mean
                 of the replicas' gradients is then that of one device, and only the metrics of one
                 replica are kept. This case also applies if q > 0 and the step communicates before
                 it has the gradients (masked losses, Dice, synchronized BatchNormalization).

So in training and evaluation the model never gets a padding row, and no sample weight is set to 0
to mask one. Metrics, statistics and scalar losses are exact, whatever they compute from their rows.
`predict_step` does run on padding; the caller cuts off those rows of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.contexts import replica_index
from kfit.distribute.owned import owned_variables
from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.layer_state import LayerState
from kfit.exactness.own_code import takes_one_loss
from kfit.exactness.patches import keras_for_replicas
from kfit.exactness.replica_context import (
    CannotMeetError,
    Replica,
    Step,
    on_replica,
)
from kfit.heartbeat.tracebacks import place_of, warned_at
from kfit.inputs import BatchLayout, Segment
from kfit.inputs.order import rows_of_replica
from kfit.steps.metrics import flat_logs
from kfit.steps.predicted import of_predictions
from kfit.steps.replica_parts import as_tensors
from kfit.steps.replica_step import (
    ModelStep,
    by_itself,
    compiled,
    losses_of_outputs_by_examples,
    make,
    own_examples,
    take,
    unpacked,
)
from kfit.steps.returned import Returned, noted_results, of_batch

Tensor = Any


def make_static_step(
    model: keras.Model,
    model_step: ModelStep,
    strategy: Strategy,
    *,
    predicts: bool,
    returned: Returned | None,
) -> Callable[[Any, BatchLayout], Any]:
    """Returns a function `step(element, layout)` that runs one step on all replicas of a TPU.

    It does the same as `kfit.steps.dynamic_shapes.make_step`, which calls it for strategies that
    need static shapes.

    Args:
        model: The model.
        model_step: The `train_step`, `test_step` or `predict_step` of the model.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the step runs.
        predicts: As for `make_step`.
        returned: As for `make_step`.

    Raises:
        ValueError: If the model is to run eagerly. The returned function raises this error, too, if
            a TPU cannot take the batch (see `static_size`).
    """
    if model.run_eagerly:
        raise ValueError(
            f"`run_eagerly=True` does not go with strategy {strategy.name!r}, which runs compiled "
            "programs only. Compile the model without it, or debug it on strategy='one_device'."
        )
    return _StaticStep(model, model_step, strategy, predicts, returned)


class _StaticStep:
    def __init__(
        self,
        model: keras.Model,
        model_step: ModelStep,
        strategy: Strategy,
        predicts: bool,
        returned: Returned | None,
    ) -> None:
        self._model = model
        self._model_step = model_step
        self._strategy = strategy
        self._predicts = predicts
        self._returned = Returned() if returned is None else returned
        self._state = LayerState(model)
        self._jit = bool(model.jit_compile) and not strategy.compiles

    @tf.autograph.experimental.do_not_convert
    def __call__(self, element: Any, layout: BatchLayout) -> Any:
        """Runs one step on all replicas, and returns what the model's step returned, per replica.

        Args:
            element: The global batch. If `layout.per_replica` is set, it is divided among the
                replicas already.
            layout: A description of the batch.
        """
        replicas = self._strategy.num_replicas
        if layout.per_replica:
            return self._run(self._on_own_rows, element, layout, 1 / replicas)
        examples = static_size(element)
        least, rest = divmod(examples, replicas)
        if not rest or self._predicts:
            fed = _cut(element, examples, self._strategy)
            return self._run(self._on_own_rows, fed, layout, 1 / replicas)
        if least:
            try:
                fed = _cut(element, examples, self._strategy)
                return self._run(self._on_trimmed_rows, fed, layout, examples)
            except CannotMeetError:
                pass  # the traced operations are in branches, which were not added to the graph
        return self._run(self._on_all_rows, _cut(element, None, self._strategy), layout, None)

    def _run(self, part: Callable[..., Any], fed: Any, layout: BatchLayout, known: Any) -> Any:
        """Calls the method `part` on every replica, and returns the per-replica results.

        Args:
            part: The method `_on_own_rows`, `_on_trimmed_rows` or `_on_all_rows`, which runs the
                step on one replica. It is called as `part(step, fed, layout, known)`.
            fed: The input of each replica, as per-replica values: the rows of the batch if
                `layout.per_replica` is set, otherwise what `_cut` has returned.
            layout: A description of the batch.
            known: The last argument of `part`: a number that is known when the step is traced, or
                None.
        """
        step = Step(self._strategy, weighs_loss=takes_one_loss(self._model))
        place = place_of(self._model_step)

        def on_each(fed: Any) -> Any:
            with warned_at(place):
                return part(step, self._strategy.received(fed), layout, known)

        with (
            keras_for_replicas(),
            losses_of_outputs_by_examples(self._model, own_examples),
            noted_results(self._model),
            self._state.aggregated_by_kfit(),
        ):
            return self._strategy.run(on_each, (fed,))

    def _on_own_rows(self, step: Step, fed: Any, layout: BatchLayout, share: float) -> Any:
        """Runs the step on the rows that one replica has got, including padding if there is any.

        Used if the batch can be divided equally, without padding, and for a `predict_step` also if
        it cannot.

        Args:
            step: The step that is being traced, with the replicas of this task.
            fed: The replica's rows if `layout.per_replica` is set, otherwise what `_cut` has
                returned.
            layout: A description of the batch.
            share: The replica's fraction of the rows of the global batch, including padding.
        """
        element = fed if layout.per_replica else fed["element"]
        index = replica_index() if layout.per_replica else fed["index"]
        replica = Replica(index, static_size(element), share)
        with on_replica(step, replica):
            before = self._state.before()
            data = unpacked(replica.origins.own(element), layout)
            return self._finished(self._take(data, replica), replica, before)

    def _on_all_rows(self, step: Step, fed: Any, layout: BatchLayout, _: Any) -> Any:
        """Runs the step on the whole batch on each replica, so that all compute the same results.

        Used if there are fewer examples than replicas, or if the batch cannot be divided equally
        and the step communicates before it has the gradients. Only the metrics of replica 0 change,
        so that each example counts once.

        Args:
            step: The step that is being traced, with the replicas of this task.
            fed: What `_cut` has returned: the whole batch for each replica.
            layout: A description of the batch.
            _: Not used; the method has as many arguments as `_on_own_rows`.
        """
        element = fed["element"]
        examples = static_size(element)
        replica = Replica(fed["index"], examples, 1 / self._strategy.num_replicas, has_all=True)
        counted = [v for v in owned_variables(self._model) if is_per_replica(v)]
        with on_replica(step, replica):
            before = [variable.value + 0 for variable in counted]
            outputs = self._take(unpacked(element, layout), replica)
            outputs = self._finished(outputs, replica, {})
            is_first = tf.equal(replica.index, 0)
            for variable, value in zip(counted, before, strict=True):
                variable.assign(tf.where(is_first, variable.value, value))
            return outputs

    def _on_trimmed_rows(self, step: Step, fed: Any, layout: BatchLayout, examples: int) -> Any:
        """Runs the step on one replica's rows without the padding, and then sums the gradients.

        Used if the batch cannot be divided equally: some replicas then have one example less than
        others, and got a row of padding instead. All replicas run the same compiled program. So it
        contains a `tf.cond` with the model's step, up to the gradients, for each of the two numbers
        of rows. Each replica takes the branch for its own number. A collective in a branch would
        wait for ever for the replicas that take the other branch. So the replicas communicate only
        after the `tf.cond`, where the gradients are summed.

        Args:
            step: The step that is being traced, with the replicas of this task.
            fed: What `_cut` has returned: the replica's rows, its index and its number of examples.
            layout: A description of the batch.
            examples: The number of examples of the global batch.

        Returns:
            A dict of what the model's step returned, in which each value is replaced by this
            replica's part of the value to be logged (`of_batch`).

        Raises:
            CannotMeetError: If the model's step communicates before it has the gradients, which
                would be in a branch.
        """
        most = static_size(fed["element"])
        replica = Replica(fed["index"], fed["rows"], tf.cast(fed["rows"], tf.float64) / examples)
        taken: list[Any] = []

        def on_rows(rows: int) -> list[Tensor]:
            part = tf.nest.map_structure(lambda leaf: leaf[:rows], fed["element"])
            unknown = replica.examples, replica.share
            replica.examples, replica.share = rows, rows / examples
            try:
                outputs = self._model_step(unpacked(replica.origins.own(part), layout))
            finally:
                replica.examples, replica.share = unknown
            logs = {name: as_tensors(value) for name, value in flat_logs(outputs).items()}
            gradients = [[_dense(grad) for grad in update.grads] for update in updates]
            taken[:] = [logs, gradients, list(updates)]
            updates.clear()
            return [value for value in tf.nest.flatten((logs, gradients)) if value is not None]

        def own_rows() -> list[Tensor]:
            return tf.cond(
                tf.equal(fed["rows"], most), lambda: on_rows(most), lambda: on_rows(most - 1)
            )

        with on_replica(step, replica):
            before = self._state.before()
            with by_itself(replica) as updates:
                results = compiled(own_rows)() if self._jit else own_rows()
            logs, gradients, listed = taken
            values = iter(results)
            outputs, gradients = tf.nest.map_structure(
                lambda leaf: None if leaf is None else next(values), (logs, gradients)
            )
            make(listed, gradients)
            return self._finished(outputs, replica, before)

    def _take(self, data: Any, replica: Replica) -> Any:
        return take(self._model_step, data, replica, jit=self._jit)

    def _finished(self, outputs: Any, replica: Replica, before: dict[int, Tensor]) -> Any:
        self._state.agree(replica, before)
        if self._predicts:
            return of_predictions(outputs, replica, self._model, self._returned)
        return of_batch(outputs, replica, self._model, self._returned)


def has_static_shapes(segment: Segment) -> bool:
    """Returns whether the iterator of a segment is known to yield batches of one static shape.

    If not, a strategy that needs static shapes draws each batch in Python, and runs one step per
    graph call. For data that is already distributed (per-replica values) the result is True without
    a check; `static_size` checks the shapes when a step is traced.

    Args:
        segment: The steps that can be taken next, with the iterator of their batches.
    """
    return segment.layout.per_replica or all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
        for leaf in tf.nest.flatten(segment.iterator.element_spec)
    )


def static_size(element: Any) -> int:
    """Returns the number of examples in a batch, after checking that a TPU can take the batch.

    Raises:
        ValueError: If the batch has tensors that are sparse, ragged, of strings or of unknown
            shape.
    """
    for leaf in tf.nest.flatten(element):
        if not isinstance(leaf, tf.Tensor):
            raise ValueError(
                "`x` yields sparse or ragged tensors, which a TPU does not take: make them dense "
                f"in the pipeline (`tf.sparse.to_dense`, `to_tensor`). Received: {leaf!r}"
            )
        if leaf.dtype == tf.string:
            raise ValueError(
                "`x` holds strings, which a TPU does not take: look them up in the pipeline, such "
                "as by `dataset.map(keras.layers.StringLookup(...))`."
            )
        if not leaf.shape.is_fully_defined():
            raise ValueError(
                f"`x` has batches of shape {leaf.shape}, and a TPU must know every size: batch "
                "with `drop_remainder=True` where the data set is distributed already, and pad "
                f"the inner dimensions (`padded_batch`). Received: {leaf!r}"
            )
    return int(tf.nest.flatten(element)[0].shape[0])


def _cut(element: Any, examples: int | None, strategy: Strategy) -> Any:
    """Divides a batch among the replicas, with padding so that all get the same number of rows.

    This runs on the device that holds the data, so that other devices get no more rows than they
    need.

    Args:
        element: The global batch.
        examples: The number of examples of the batch; None to give the whole batch to each replica.
        strategy: kfit's wrapper of the `tf.distribute` strategy.

    Returns:
        A dict with per-replica values: "element", the replica's rows; "index", the replica's number
        among all replicas; and "rows", the replica's number of rows without padding. "rows" is
        missing if `examples` is None.
    """
    replicas = strategy.num_replicas
    most = 0 if examples is None else -(-examples // replicas)

    def fed(context: Any) -> dict[str, Any]:
        number = int(context.replica_id_in_sync_group)
        index = tf.constant(number)
        if examples is None:
            return {"element": element, "index": index}
        rows = rows_of_replica(examples, number, replicas)
        own = rows.stop - rows.start
        part = tf.nest.map_structure(
            lambda leaf: _padded(leaf[rows.start : rows.stop], leaf, most - own), element
        )
        return {"element": part, "index": index, "rows": tf.constant(own)}

    with strategy.beside_data():
        return strategy.distribute_values_from_function(fed)


def _padded(part: Tensor, whole: Tensor, rows: int) -> Tensor:
    """Appends the first `rows` rows of the batch `whole` to `part`, as padding with valid rows."""
    return tf.concat([part, whole[:rows]], 0) if rows else part


def _dense(grad: Tensor) -> Tensor:
    """Returns a gradient as a dense tensor, whose shape does not depend on the number of rows.

    The shape of `tf.IndexedSlices`, such as the gradient of an embedding, depends on that number.
    None is returned unchanged.
    """
    return None if grad is None else tf.convert_to_tensor(grad)
