"""Builds the model, its losses, metrics and optimizer before the first step is traced.

Variables that several replicas share must be made outside of the replicas. So everything that was
not built yet is built from the shapes of a batch; no batch is drawn from the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from kfit.distribute.placement import adopt, made_trainable
from kfit.exactness.scalar_estimates import of_replica_batch
from kfit.internals import patch_points as points
from kfit.internals.layers import all_layers
from kfit.internals.models import compiled_loss, compiled_metrics, compute_loss, infer_output
from kfit.internals.patching import patched


def build(
    model: keras.Model, spec: Any, *, training: bool, optimizer: bool, tf_strategy: Any
) -> None:
    """Builds a model and what it was compiled with, except for parts that are built already.

    Call it in the strategy's scope.

    Args:
        model: The model.
        spec: A global batch `(x, y, sample_weight)`, or only its first parts, as
            `keras.KerasTensor`s of shape `(None, ...)`.
        training: Whether the model may be called as in training, if it cannot be called otherwise.
        optimizer: Whether the optimizer must be built, too.
        tf_strategy: The strategy that the optimizer will belong to.

    Raises:
        ValueError: If the model cannot take such a batch.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(spec)
    metrics, loss = compiled_metrics(model), compiled_loss(model)
    needs_metrics = metrics is not None and not metrics.built and y is not None
    needs_loss = loss is not None and not loss.built and y is not None
    if needs_metrics or needs_loss or not is_built(model):
        with (
            patched(points.DEFERRED_INITIALIZE, _as_if_thawed),
            patched(points.AVERAGE_LOSS, of_replica_batch),
        ):
            y_pred = _inferred(model, x, training)
            if needs_metrics:
                infer_output(model.compute_metrics, x, y, y_pred, sample_weight=sample_weight)
            if needs_loss:
                infer_output(compute_loss(model), x, y, y_pred, sample_weight, training=False)
    own = getattr(model, "optimizer", None)
    if optimizer and own is not None and not own.built:
        adopt(own, model.trainable_variables, tf_strategy)
        own.build(model.trainable_variables)


def _inferred(model: keras.Model, x: Any, training: bool) -> Any:
    try:
        return infer_output(model, x, training=False)
    except Exception:
        if not training:
            raise
        return infer_output(model, x, training=True)


def is_built(model: keras.Model) -> bool:
    """Returns whether the model and all its layers are built: they have made their variables."""
    return all(layer.built for layer in all_layers(model))


def _as_if_thawed(original: Callable[[keras.Variable], None]) -> Callable[[keras.Variable], None]:
    """Wraps Keras' initialization of a variable, so that every float `tf.Variable` is trainable.

    So a layer that is frozen now can be thawed later. TensorFlow cannot make a `tf.Variable`
    trainable later, and Keras makes the variables only after the `build` methods have returned,
    when their layers are frozen already. See `made_trainable`.
    """

    def initialize(variable: keras.Variable) -> None:
        taped = variable.trainable or keras.backend.is_float_dtype(variable.dtype)
        with made_trainable(variable, taped):
            original(variable)

    return initialize
