"""What one step does: each replica takes its rows of the global batch through the model's step.

The model's own `train_step`, `test_step` or `predict_step` is called, overridden or not. On several
replicas it is traced among the functions of `kfit.distribute.exchange`, which make the replicas
together compute what one device would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.estimates import weighed_by
from kfit.distribute.exchange import keras_for_replicas
from kfit.distribute.replicas import (
    Replica,
    Step,
    Update,
    agree_on_statistics,
    all_reduce_sum,
    current_replica,
    on_replica,
    replica_index,
)
from kfit.distribute.strategy import Strategy
from kfit.distribute.swap import swapped
from kfit.inputs import Layout
from kfit.inputs.order import rows_of_replica
from kfit.logs import flat_logs

Tensor = Any
ModelStep = Callable[[Any], Any]


def make_step(
    model: keras.Model, model_step: ModelStep, strategy: Strategy
) -> Callable[[Any, Layout], Any]:
    """A function `step(element, layout)` that takes all replicas through one step.

    Args:
        model: The model.
        model_step: Its `train_step`, `test_step` or `predict_step`.
        strategy: The adapter.

    Returns:
        The function. It is called outside of the replicas, in a graph or eagerly, with one element
        of a `kfit.inputs.Run`, and returns what the model's step returned, per replica.
    """
    statistics = _statistics(model)

    @tf.autograph.experimental.do_not_convert
    def on_one(element: Any, layout: Layout) -> Any:
        def whole(element: Any) -> Any:
            with _losses_of_outputs_by_examples(model, lambda: batch_size_of(element)):
                return model_step(_unpacked(element, layout))

        fn = _compiled(whole) if model.jit_compile else whole
        # A worker at its own pace has no replicas to meet, and none to be.
        return strategy.run(fn, (element,)) if strategy.synchronous else fn(element)

    @tf.autograph.experimental.do_not_convert
    def on_several(element: Any, layout: Layout) -> Any:
        step = Step(strategy)

        def part(element: Any) -> Any:
            replica, element = _own_part(element, layout, strategy)
            with on_replica(step, replica):
                data = _unpacked(element, layout)
                take = _take_compiled if model.jit_compile else _take
                outputs = take(model_step, data, replica)
                agree_on_statistics(replica, statistics)
                return _scalars_of_batch(outputs, replica)

        with keras_for_replicas(), _losses_of_outputs_by_examples(model, _own_examples):
            return strategy.run(part, (element,))

    return on_several if strategy.replicas_meet else on_one


@contextmanager
def _losses_of_outputs_by_examples(
    model: keras.Model, examples: Callable[[], Tensor | None]
) -> Iterator[None]:
    """Within it the logged loss of each output is a mean over examples, as that of the model is.

    Keras weighs a batch by its examples there only when its static shape tells their number.
    """
    # Private: no public attribute tells these trackers from the metrics of the user.
    compiled = getattr(model, "_compile_loss", None)
    with ExitStack() as stack:
        for tracker in [] if compiled is None else compiled.metrics:
            stack.enter_context(swapped(tracker, "update_state", weighed_by(examples)))
        yield


def _own_examples() -> Tensor | None:
    replica = current_replica()
    return None if replica is None else replica.examples


def _take(model_step: ModelStep, data: Any, replica: Replica) -> Any:
    return model_step(data)


def _take_compiled(model_step: ModelStep, data: Any, replica: Replica) -> Any:
    """The step compiled by XLA up to the gradients; replicas meet outside of it."""
    updates: list[Update] = []

    def up_to_gradients(data: Any) -> tuple[Any, Any]:
        outputs = model_step(data)
        return outputs, [update.grads for update in updates]

    replica.postponed = updates
    try:
        outputs, gradients = _compiled(up_to_gradients)(data)
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise ValueError(
            "`jit_compile=True` on several replicas does not go with a layer, loss or step that "
            "asks the other replicas for something before the optimizer does (`all_reduce`, "
            "`merge_call`), because the replicas meet outside of XLA. Compile the model with "
            f"`jit_compile=False`. It was met here: {str(error).splitlines()[0]}"
        ) from error
    finally:
        replica.postponed = None
    for update, grads in zip(updates, gradients, strict=True):
        update.optimizer.apply(grads, update.variables)
    return outputs


def _compiled(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    compiled: Callable[[Any], Any] = tf.function(fn, autograph=False, jit_compile=True)
    return compiled


def _own_part(element: Any, layout: Layout, strategy: Strategy) -> tuple[Replica, Any]:
    """This replica, and its rows of the element."""
    index, replicas = replica_index(), strategy.num_replicas
    if layout.per_replica:
        own = batch_size_of(element)
        if isinstance(own, int) and layout.endless:
            return Replica(index, own, 1 / replicas), element
        own = tf.cast(own, tf.int64)
        return Replica(index, own, _share(own, all_reduce_sum(own))), element
    examples = batch_size_of(element) if layout.examples is None else layout.examples
    rows = rows_of_replica(examples, index, replicas)
    own = rows.stop - rows.start
    part = tf.nest.map_structure(
        lambda leaf: _slice(leaf, rows.start - layout.offset, own), element
    )
    if isinstance(examples, int) and examples < replicas:
        # Layers take a size of 0 for something else; and what is open on one replica must be on
        # all, for gradients to meet at the same places.
        part = tf.nest.map_structure(_of_open_size, part)
    return Replica(index, own, _share(own, examples)), part


def _share(own: Tensor, examples: Tensor) -> Tensor:
    if isinstance(own, int) and isinstance(examples, int):
        return own / examples
    return tf.math.divide_no_nan(tf.cast(own, tf.float32), tf.cast(examples, tf.float32))


def _slice(leaf: Tensor, start: Tensor, size: Tensor) -> Tensor:
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
        part = tf.sparse.slice(leaf, begin, tf.concat([[tf.cast(size, tf.int64)], rest], 0))
        part.set_shape([size if isinstance(size, int) else None, *leaf.shape[1:]])
        return part
    return leaf[start : start + size]


def _of_open_size(leaf: Tensor) -> Tensor:
    """A batch whose size the layers do not see while they are traced."""
    if not isinstance(leaf, tf.Tensor):
        return leaf
    return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])


def batch_size_of(element: Any) -> Tensor:
    """Number of examples in a batch: an int where the shape tells, else an int64 scalar."""
    leaf = tf.nest.flatten(element, expand_composites=False)[0]
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if leaf.shape.rank and leaf.shape[0] is not None:
        return int(leaf.shape[0])
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]


def _unpacked(element: Any, layout: Layout) -> Any:
    """The element as the model's step expects it."""
    return element if layout.template is None else layout.template.pack(element)


def _scalars_of_batch(outputs: Any, replica: Replica) -> Any:
    """Scalars that a step returns stand for the whole batch: the replicas' parts of them."""
    if not isinstance(outputs, dict):
        return outputs
    parts = {}
    for name, value in flat_logs(outputs).items():
        tensor = tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value
        is_scalar = isinstance(tensor, tf.Tensor) and tensor.shape.rank == 0
        parts[name] = replica.weigh(tensor) if is_scalar and tensor.dtype.is_floating else tensor
    return parts


def _statistics(model: keras.Model) -> Sequence[keras.Variable]:
    """Variables that a step may move by what it sees, such as BatchNormalization's averages.

    A synchronized BatchNormalization moves its own by the statistics of the global batch, the same
    on every replica.
    """
    synchronized = {
        id(variable)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized
        for variable in layer.non_trainable_variables
    }
    return [
        variable
        for variable in model.non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype) and id(variable) not in synchronized
    ]
