"""Builds the model, its losses, metrics and optimizer before the first step is traced.

Variables that several replicas share must be created outside of the replicas, so the step itself
must not create them. The shapes of a batch are enough to build everything; no batch is read. If
steps run eagerly, Python code may read values. Then a batch of zeros stands for the shapes.

As in Keras, layers are built in the order in which the first step calls them: each layer that makes
its initializers in `build` draws their seeds then.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.argument_checks import check_parts
from kfit.distribute.new_variables import made_trainable
from kfit.distribute.sharded_variables import keras_for_shards
from kfit.exactness.own_code import is_of_keras, overrides
from kfit.exactness.scalar_estimates import of_replica_batch, unscaled_sum
from kfit.exactness.traced_functions import functions_of_step
from kfit.fault_sites import Site, reach
from kfit.heartbeat.summaries import message_of, summary_of
from kfit.inputs.batch_structure import OfUnknownRank
from kfit.internals import patch_points as points
from kfit.internals.graphs import placeholder_of
from kfit.internals.layers import all_layers
from kfit.internals.models import (
    compiled_loss,
    compiled_metrics,
    compute_loss,
    forgetting_failed_inputs,
    infer_output,
    runs_eagerly,
)
from kfit.internals.patching import patched
from kfit.steps.late_restores import restored_afterwards
from kfit.steps.swapped import differ, hint_of_swap

_OF_LAYERS = re.compile("incompatible with the layer|has incompatible shape")
_NO_RANK = re.compile("unknown rank|unknown TensorShape")
_CLASS = re.compile(
    r"Received a label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)"
)
_RANKS = re.compile(
    r"Arguments? (?:`output` must have rank \(ndim\) `target\.ndim - 1`|`target` and `output` must "
    r"have the same rank \(ndim\))\. Received: target\.shape=\(([^)]*)\), output\.shape=\(([^)]*)\)"
)
_SIZE = re.compile(r"\d+|None")
_PARTS = "Data is expected to be in format"
_SIZES = re.compile(
    r"Dimensions must be equal, but are \d+ and \d+ for '\{\{node \S*compile_loss/.*"
    r"with input shapes: \[([\d,?]+)\], \[([\d,?]+)\]"
)
_SAME = re.compile(
    r"Arguments `target` and `output` must have the same shape\. "
    r"Received: target\.shape=\(([^)]*)\), output\.shape=\(([^)]*)\)"
)
_ONE_HOT = (
    "The loss takes the index of each example's class. Compile the model with a "
    "CategoricalCrossentropy if these are one-hot labels, or pass `y.argmax(-1)`."
)
_INDICES = (
    "The loss takes a value for each output. If these are indices of classes, compile the model "
    "with a SparseCategoricalCrossentropy, or pass `keras.utils.to_categorical(y)`."
)
_TOO_MANY_AXES = (
    "The output has too many axes: before the last layer a Flatten or a pooling layer is missing."
)
_BY_VALUE = "The loss compares each value of the output with one of {}."
_UNEQUAL = "Dimensions must be equal"

Shape: TypeAlias = tuple[int | None, ...]

_UNKNOWN_SIZE = 32
"""What stands for a size that the data leaves open, where zeros stand for the data."""
_NO_OTHER_SIZE = 10_007
"""What stands for the size of a batch, where only shapes stand for the data."""


class InitialValueError(ValueError):
    """An initial value is computed from values of the step that makes the variable."""


def build(
    model: keras.Model,
    spec: Any,
    *,
    step: str,
    training: bool,
    tf_strategy: Any,
    batch_size: int | None = None,
) -> None:
    """Builds a model, its losses and its metrics, except for parts that are built already.

    Called in the strategy's scope at the beginning of each `fit`, `evaluate` or `predict`.

    Args:
        model: The model.
        spec: A global batch `(x, y, sample_weight)`, or only its first parts, as
            `keras.KerasTensor`s of shape `(None, ...)`.
        step: The name of the step that gets the data, such as "train_step". If the model overrides
            it, metrics and losses of `compile` are not built if the data have other targets than
            the model has outputs: the step takes other ones.
        training: Whether the model is to be trained. Then it may be called with `training=True`:
            first, if the step is "train_step"; otherwise only if the call with `training=False`
            fails, or leaves layers that are not built.
        tf_strategy: The `tf.distribute` strategy whose replicas share the model.
        batch_size: The number of examples that a replica gets; None if it is not known. A model is
            built with it if it cannot be built without, as if a layer takes `x.shape[0]`.

    Raises:
        ValueError: If the model cannot take such a batch, or has layers that cannot be built.
    """
    reach(Site.BUILDING)
    has_targets = keras.utils.unpack_x_y_sample_weight(spec)[1] is not None
    lacks = unbuilt_parts(model, step) if has_targets else []
    if type(model).call is keras.Model.call:  # only its own steps call its layers
        _require_built(model, tf_strategy)
    elif lacks or not is_built(model):
        with (
            restored_afterwards(),
            patched(points.AVERAGE_LOSS, of_replica_batch),
            patched(points.REGULARIZATION_LOSS, unscaled_sum),
        ):
            try:
                _infer(model, spec, lacks, step, training)
            except Exception:
                if batch_size is None:
                    raise
                _infer(model, _of_size(spec, batch_size), lacks, step, training)


def build_optimizer(model: keras.Model) -> None:
    """Builds the optimizer of a model, if there is one that is not built; called in the scope.

    Args:
        model: The model, which is built.
    """
    own = getattr(model, "optimizer", None)
    if own is not None and not own.built:
        own.build(model.trainable_variables)


def unbuilt_parts(model: keras.Model, step: str) -> list[Any]:
    """Returns which of the losses and the metrics of `compile` a step has to build.

    A prediction builds none, since it ignores targets: they need not be those of the training.

    Args:
        model: The model.
        step: The name of the step, such as "train_step".
    """
    if step == "predict_step":
        return []
    parts = (compiled_metrics(model), compiled_loss(model))
    return [part for part in parts if part and not part.built]


def unbuilt_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns which layers inside a model have not made their variables yet.

    Layers that do not define `build` create no variables, so they are left out.
    """
    return [
        layer
        for layer in all_layers(model)
        if not layer.built and layer is not model and type(layer).build is not keras.Layer.build
    ]


def _require_built(model: keras.Model, tf_strategy: Any) -> None:
    """Checks that the layers of a model without `call` are built, if there are several replicas.

    kfit builds the layers of other models by calling the model once. If a model has no `call`,
    only its steps call its layers. A layer that is not built yet would then create its variables
    within a replica, where variables that all replicas share cannot be created.

    Raises:
        ValueError: If there are several replicas, and a layer that defines `build` is not built.
    """
    unbuilt = [repr(layer.name) for layer in unbuilt_layers(model)]
    if unbuilt and tf_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"`model` {model.name!r} has no `call` by which kfit could build its layers "
            f"{', '.join(unbuilt)} before the replicas share them. Build them when the model is "
            "made: begin a `keras.Sequential` with `keras.Input(shape)`, or call "
            "`layer.build(input_shape)`."
        )


def build_by_step(
    model: keras.Model, spec: Any, step: str, *, batch_size: int | None = None
) -> None:
    """Builds what a step of the model's own calls, by tracing this step.

    This may be layers, or losses and metrics of `compile`. Keras builds them when it traces the
    first step. On several replicas the step must not create variables. So it is traced once as for
    one device, outside of the strategy's scope, and the graph is dropped; nothing is computed.
    Optimizers, which may be on several devices already, are left out. A `tf.function` that the step
    calls does not keep the trace.

    Args:
        model: The model, which overrides the step.
        spec: The batch that the step gets, as for `build`.
        step: The name of the step, such as "train_step".
        batch_size: As for `build`.

    Raises:
        InitialValueError: If an initial value cannot be computed without the step.
        Exception: An error of the step. What it has built until then stays built.
    """

    def trace(spec: Any) -> None:
        made: list[tuple[tf.Variable, Any]] = []
        returned: list[bool] = []

        def create(next_creator: Callable[..., Any], **settings: Any) -> Any:
            made.append((next_creator(**settings), settings.get("initial_value")))
            return made[-1][0]

        def call(data: Any) -> None:
            with tf.variable_creator_scope(create):
                getattr(model, step)(data)
            returned.append(True)

        data = keras.tree.map_structure(_tensor_spec, spec, none_is_leaf=False)
        try:
            with forgetting_failed_inputs(model):
                tf.function(call, reduce_retracing=True).get_concrete_function(data)
        except Exception as error:
            without = _initialized_outside(made)
            if not returned:
                raise
            if without:
                raise InitialValueError(
                    f"The variable {without[0].name!r} gets an initial value that is computed from "
                    f"values of `{step}`, such as its data, in which the layer is built. Replicas "
                    "share variables that are made before their first step. Build the model before "
                    "`fit`, or let the initializer use none of these values."
                ) from error

    with ExitStack() as stack:
        stack.enter_context(restored_afterwards())
        stack.enter_context(functions_of_step())
        stack.enter_context(keras_for_shards())  # layers that are built may be split already
        for point in (points.APPLY, points.APPLY_WITH_SCALE, *points.APPLY_OF_SEVERAL):
            stack.enter_context(patched(point, _left_out))
        if runs_eagerly(model):  # it may read values, of which Keras warns here
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        try:
            trace(spec)
        except Exception as error:
            if batch_size is None:
                raise
            try:
                trace(_of_size(spec, batch_size))
            except Exception:
                raise error from None  # it says the same


def _initialized_outside(made: Sequence[tuple[tf.Variable, Any]]) -> list[tf.Variable]:
    """Gives variables their initial values, if the `tf.function` that has made them could not.

    TensorFlow does so after the function has returned. It fails for all of them if one value is
    drawn from a seed generator of Keras, whose state is read in the function. The values are drawn
    in the order in which the variables were made, as in Keras. If the function itself has failed,
    its layers are built nevertheless, and are not built again.

    Args:
        made: Each variable with its initial value, or with a function that computes it.

    Returns:
        The variables whose initial values are computed from values of the function.
    """
    with tf.init_scope():
        for variable, initial in made:
            with suppress(Exception):
                value = initial() if callable(initial) else tf.get_static_value(initial)
                variable.assign(tf.cast(value, variable.dtype))
        return [variable for variable, _ in made if not variable.is_initialized()]


def _left_out(apply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda optimizer, grads, trainable_variables=None: optimizer.iterations


def _tensor_spec(part: Any) -> Any:
    if isinstance(part, OfUnknownRank):
        return part.spec
    if part.sparse:
        return tf.SparseTensorSpec(part.shape, part.dtype)
    if part.ragged:
        return tf.RaggedTensorSpec(part.shape, part.dtype, ragged_rank=part.ragged_rank)
    return tf.TensorSpec(part.shape, part.dtype)


def _infer(model: keras.Model, spec: Any, lacks: list[Any], step: str, training: bool) -> None:
    """Calls what a step calls, without data, which builds all of it.

    A training step is called with `training=True`: what only `training=False` calls, Keras builds
    in the first validation or prediction.

    Args:
        model: The model.
        spec: As for `build`.
        lacks: What must be built of the compiled metrics and the compiled loss.
        step: As for `build`.
        training: As for `build`.
    """
    parts = keras.utils.unpack_x_y_sample_weight(spec)
    infer = partial(_called, model, partial(_call, model, lacks, step), parts)
    first = step == "train_step"
    try:
        infer(training=first)
    except Exception as error:
        if not training:
            raise
        try:  # such as code that needs a replica to train
            infer(training=not first)
        except Exception:
            raise error from None  # it says the same
        if first and unbuilt_layers(model):
            raise
    if training and not first and not is_built(model):
        infer(training=True)


def _called(model: keras.Model, call: Callable[..., Any], parts: Any, *, training: bool) -> None:
    """Calls a function on the shapes of a batch, or on zeros if it reads values in eager steps."""
    symbolic = keras.tree.map_structure(_open_or_ragged, parts)
    if not runs_eagerly(model) or _is_open(parts):
        infer_output(call, *symbolic, training=training)
        return
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # Keras warns if the model reads values
        infer_output(call, *symbolic, training=training)
        return
    _called_with_zeros(call, *parts, training=training)


def _call(
    model: keras.Model,
    lacks: list[Any],
    step: str,
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    training: bool,
) -> None:
    """Calls the model on a batch, and then its loss and its metrics, as far as they build anything.

    All is called in one function, since `compute_loss` may use what `call` has kept in the model.

    Args:
        model: The model.
        lacks: As for `_infer`.
        step: As for `build`.
        x: The inputs of the batch.
        y: The targets of the batch; None if there are none.
        sample_weight: The weights of the examples; None if there are none.
        training: Whether the model is called for a training step.
    """
    x, y, sample_weight = keras.tree.map_structure(_placeholder, (x, y, sample_weight))
    with forgetting_failed_inputs(model):
        y_pred = model(x, training=training)
    own_step = overrides(model, step)
    if own_step and len(keras.tree.flatten(y)) != len(keras.tree.flatten(y_pred)):
        return

    def may_build(method: str) -> bool:
        is_called = not own_step and step != "predict_step"
        return is_called and overrides(model, method) and bool(unbuilt_layers(model))

    if compiled_loss(model) in lacks or may_build("compute_loss"):
        compute_loss(model)(x, y, y_pred, sample_weight, training=training)
    if compiled_metrics(model) in lacks or may_build("compute_metrics"):
        _compute_metrics(model, x, y, y_pred, sample_weight)


def _compute_metrics(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
    """Computes the metrics of a model, which builds them.

    Without data no variable is changed: Keras keeps the new value in its place. A metric of the
    program may assign it in a branch or a loop of the graph, which this value cannot leave. The
    metrics are built then. If the metric has another fault, the step meets it.
    """
    try:
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    except (TypeError, ValueError):
        compiled = compiled_metrics(model)
        if compiled is None or not compiled.built or overrides(model, "compute_metrics"):
            raise
        if all(is_of_keras(type(each)) for each in compiled.metrics):
            raise


def _is_open(spec: Any) -> bool:
    return any(isinstance(part, OfUnknownRank) for part in keras.tree.flatten(spec))


def _open_or_ragged(part: Any) -> Any:
    """Returns the `tf.TypeSpec` of a part of unknown rank or a ragged one, and other parts as is.

    Keras would pass a dense tensor in place of a ragged one, and cannot make one of unknown rank.
    """
    is_special = isinstance(part, OfUnknownRank) or getattr(part, "ragged", False)
    return _tensor_spec(part) if is_special else part


def _placeholder(part: Any) -> Any:
    """Returns a tensor of the scratch graph for a `tf.TypeSpec`, and other parts as is."""
    if not isinstance(part, tf.TypeSpec):
        return part
    return tf.nest.map_structure(placeholder_of, part, expand_composites=True)


def _called_with_zeros(function: Callable[..., Any], *spec: Any, **options: Any) -> Any:
    """Calls a function on zeros of some shapes, which changes no variable, but may make some."""
    zeros = keras.tree.map_structure(_zeros, spec, none_is_leaf=False)
    with keras.StatelessScope():
        return function(*zeros, **options)


def _zeros(part: Any) -> Any:
    shape = [_UNKNOWN_SIZE if size is None else size for size in part.shape]
    dense = tf.zeros(shape, part.dtype)
    if part.sparse:
        return tf.sparse.from_dense(dense)
    if part.ragged:
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=part.ragged_rank)
    return dense


def _of_size(spec: Any, batch_size: int) -> Any:
    def sized(part: Any) -> Any:
        if part is None or not part.shape or part.shape[0] is not None:
            return part
        shape = (batch_size, *part.shape[1:])
        return keras.KerasTensor(shape, part.dtype, sparse=part.sparse, ragged=part.ragged)

    return keras.tree.map_structure(sized, spec, none_is_leaf=False)


@contextmanager
def naming_wrong_data(model: keras.Model, argument: str, spec: Callable[[], Any]) -> Iterator[None]:
    """Context of graph calls: if they fail because of the data, the error names the data.

    The data may have other shapes than the model takes, or classes for which it has no output.

    A model that was built for other shapes is traced with unknown ones, as in Keras, and fails
    while it runs: TensorFlow names an operation and the shapes of two matrices. Or a layer refuses
    the shapes while the model is traced, and Keras names the layer, but not the data. The layer,
    and what it expects, are found by calling the model once without data.

    Args:
        model: The model.
        argument: The name of the argument that holds the data, such as "x".
        spec: A function that returns a global batch as `keras.KerasTensor`s, as for `build`.

    Raises:
        ValueError: In place of such an error, if the model cannot take such a batch.
    """
    try:
        with forgetting_failed_inputs(model):
            yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        if _NO_RANK.search(message_of(error)) and _is_open(spec()):
            raise ValueError(
                f"`{argument}` yields tensors of unknown rank, as `tf.numpy_function` makes them, "
                "but a layer, the loss or a metric needs their shape. Tell it in the pipeline, "
                f"such as by `tf.ensure_shape(x, (None, 4))`. The error was: {summary_of(error)}"
            ) from error
        if _PARTS in message_of(error):
            check_parts(f"a batch of `{argument}`", spec())
        targets = "`y`" if argument == "x" else f"`y` of `{argument}`"
        if misfit := _misfit(model, message_of(error), targets, spec):
            raise ValueError(misfit) from None  # it says the same
        # Keras' layers refuse shapes in these words; other ValueErrors may be those of a hook.
        is_by_tensorflow = isinstance(error, tf.errors.InvalidArgumentError)
        if is_by_tensorflow and (found := _CLASS.search(message_of(error))):
            raise ValueError(
                f"{targets} holds the class {found[1]}, but the model has {found[2]} outputs, "
                f"for classes from 0 to {int(found[2]) - 1}."
            ) from None  # TensorFlow's message is a hundred lines about the graph
        is_by_keras = _OF_LAYERS.search(message_of(error)) is not None
        may_be_shape = is_by_keras or is_by_tensorflow
        refusal = _refusal(model, spec()) if may_be_shape else ""
        if not refusal:
            # A graph for open shapes, of an earlier `fit`, names an operation of the loss, or none.
            is_of_loss = is_by_tensorflow or _NO_RANK.search(message_of(error))
            of_loss = _refusal_of_loss(model, spec()) if is_of_loss else None
            if of_loss and (misfit := _misfit(model, message_of(of_loss), targets, spec)):
                raise ValueError(misfit) from None
            may_be_metric = is_by_tensorflow or _UNEQUAL in message_of(error)
            if may_be_metric and (misfit := _misfit_of_metric(model, targets, spec())):
                raise ValueError(misfit) from None
            raise
        shapes = _shapes(model, spec())
        told = ""
        if shapes is not None:
            given, expected = shapes
            told = f" Each example has the shape {given}; the model was made for {expected}."
            told += hint_of_swap(model, spec())
            if differ(given, expected):  # then Keras' words about a layer say no more
                raise ValueError(f"`{argument}` does not fit the model.{told}") from None
        raise ValueError(
            f"`{argument}` does not fit the model: {refusal.rstrip('.')}.{told}"
        ) from error


def _misfit(model: keras.Model, message: str, targets: str, spec: Callable[[], Any]) -> str:
    """Returns in words that targets have another shape than a loss takes; else an empty text.

    Args:
        model: The model.
        message: The message of the error that the loss has led to.
        targets: The name of the argument that holds the targets, such as "`y`".
        spec: As for `naming_wrong_data`.
    """
    remedy = _BY_VALUE.format(targets)
    if found := _RANKS.search(message):
        remedy = _ONE_HOT if "target.ndim - 1" in found[0] else _INDICES
        given, output = found.groups()
        if len(_SIZE.findall(output)) > len(_SIZE.findall(given)) + 1:
            remedy = _TOO_MANY_AXES
    elif found := _SAME.search(message):
        given, output = found.groups()
    elif found := _SIZES.search(message):
        pair = _targets_and_output(model, spec(), *map(_as_shape, found.groups()))
        if pair is None:
            return ""
        given, output = (str(shape)[1:-1] for shape in pair)
    else:
        return ""
    given, output = map(_of_any_batch, (given, output))
    return (
        f"{targets} has the shape ({given}) in a batch, which does not fit the loss and the "
        f"model's output of the shape ({output}). {remedy}"
    )


def _of_any_batch(shape: str) -> str:
    """Returns the text of a shape without its number of examples, which may be a replica's."""
    return ", ".join(["None", *re.split(r", *", shape)[1:]])


def _misfit_of_metric(model: keras.Model, targets: str, spec: Any) -> str:
    """Returns in words which metric of `compile` cannot take targets; empty if none is found.

    Args:
        model: The model. Only one with a single output is examined.
        targets: As for `_misfit`.
        spec: A batch.
    """
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    compiled = compiled_metrics(model)
    if compiled is None or not isinstance(y, keras.KerasTensor):
        return ""
    output = _single_output(model, x)
    if output is None:
        return ""
    for metric in compiled.metrics:

        def update(y: Any, y_pred: Any, *, training: bool, metric: Any = metric) -> None:
            metric.update_state(y, y_pred)

        # With a size of the batch that no other axis has, since an unknown one fits any other.
        error = _error_of(model, update, *_of_size((y, output), _NO_OTHER_SIZE))
        if error and _UNEQUAL in message_of(error):
            return (
                f"The metric {metric.name!r} cannot compare {targets}, which has the shape "
                f"{y.shape} in a batch, with the model's output of the shape {output.shape}."
            )
    return ""


def _as_shape(text: str) -> Shape:
    return tuple(None if size == "?" else int(size) for size in text.split(","))


def _targets_and_output(
    model: keras.Model, spec: Any, one: Shape, other: Shape
) -> tuple[Shape, Shape] | None:
    """Returns two shapes in the order of targets and output; None if they are those of others.

    Any operation of a loss of the user's own may take two shapes that do not fit.
    """
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    output = _single_output(model, x)
    if not isinstance(y, keras.KerasTensor) or output is None:
        return None
    if not differ(one, other):
        return None
    for pair in ((one, other), (other, one)):  # a loss may subtract either one
        found = zip(pair, (y.shape, output.shape), strict=True)
        if not any(differ(shape[1:], own[1:]) for shape, own in found):
            return pair
    return None


def _single_output(model: keras.Model, x: Any) -> keras.KerasTensor | None:
    """Returns the output of a model; None if it has several, or cannot be called without data."""
    try:
        output = infer_output(model, x, training=False)
    except Exception:  # as for `_error_of`
        return None
    return output if isinstance(output, keras.KerasTensor) else None


def _shapes(model: keras.Model, spec: Any) -> tuple[Shape, Shape] | None:
    """Returns the shape of an example, and the one that the model was made for.

    The result is None if a model of the user's own does not tell its inputs, or has several.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    inputs = getattr(model, "inputs", None)
    if not isinstance(x, keras.KerasTensor) or not inputs or len(inputs) > 1:
        return None
    return tuple(x.shape[1:]), tuple(inputs[0].shape[1:])


def _refusal(model: keras.Model, spec: Any) -> str:
    """Returns why a model cannot take a batch; empty if it can, or if this cannot be found."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    reason = _error_of(model, model, x)
    return summary_of(reason).partition(": ")[2] if reason else ""


def _refusal_of_loss(model: keras.Model, spec: Any) -> ValueError | None:
    """Returns the error of the loss of `compile` for a batch; None as for `_error_of`."""
    call = partial(_call, model, [compiled_loss(model)], "train_step")
    return _error_of(model, call, *keras.utils.unpack_x_y_sample_weight(spec))


def _error_of(model: keras.Model, call: Callable[..., Any], *parts: Any) -> ValueError | None:
    """Returns the error of a call of a model on shapes.

    The result is None if there is no error, or if this cannot be found.
    """
    try:
        with forgetting_failed_inputs(model):
            infer_output(call, *parts, training=False)
    except ValueError as reason:
        return reason
    except Exception:  # such a model cannot be called without data, which says nothing
        return None
    return None


def is_built(model: keras.Model) -> bool:
    """Returns whether the model and all its layers are built: they have made their variables."""
    return all(layer.built for layer in all_layers(model))


@contextmanager
def as_if_thawed() -> Iterator[None]:
    """Context in which every float variable of a layer that is built can be trained later.

    Keras creates the `tf.Variable`s of a frozen layer as not trainable, and TensorFlow cannot
    change this later. So a layer that is frozen while the model is built could not be trained
    after it has been thawed. In the context, the `tf.Variable` of every float variable is created
    as trainable.
    """
    with patched(points.DEFERRED_INITIALIZE, _of_thawed):
        yield


def _of_thawed(original: Callable[[keras.Variable], None]) -> Callable[[keras.Variable], None]:
    def initialize(variable: keras.Variable) -> None:
        taped = variable.trainable or keras.backend.is_float_dtype(variable.dtype)
        with made_trainable(variable, taped):
            original(variable)

    return initialize
