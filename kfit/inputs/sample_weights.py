"""The weight of each example: the user's `sample_weight`, or that of its class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.heartbeat.tracebacks import warn_user


def weights_of(y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None) -> Any:
    """Returns the sample weights for each output of the model.

    They are the user's `sample_weight`, or are made from `class_weight`. If both are None, the
    result is None.

    Raises:
        ValueError: If both are given, or if they do not fit `y`.
    """
    if class_weight is not None:
        if sample_weight is not None:
            raise ValueError("`class_weight` and `sample_weight` exclude each other.")
        if y is None:
            raise ValueError("`class_weight` needs `y`, the classes. Received: y=None")
        return class_weights_of(y, class_weight)
    if sample_weight is None or not keras.tree.is_nested(y):
        return sample_weight
    if keras.tree.is_nested(sample_weight):
        try:
            keras.tree.assert_same_structure(y, sample_weight)
        except ValueError as error:
            raise ValueError(
                "`sample_weight` must have the structure of `y`, one array an output, or be one "
                f"array. Received: {error}"
            ) from error
        return sample_weight
    if len(sample_weight.shape) > 1 and tuple(sample_weight.shape[1:]) != (1,):
        raise ValueError(
            "`sample_weight` for a model of several outputs must be one array an output, or one "
            f"array of shape (examples,). Received: shape {tuple(sample_weight.shape)}"
        )
    return keras.tree.map_structure(lambda _: sample_weight, y)


def class_weights_of(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """Returns a sample weight for each label: the weight of its class, by default 1.0.

    Args:
        y: Labels of shape `(n,)` or `(n, 1)`, or one-hot of shape `(n, classes)`.
        class_weight: The weight of each class, by the number of the class.

    Raises:
        ValueError: If the labels are not numbers, or those of several outputs.
    """
    if keras.tree.is_nested(y):
        raise ValueError("`class_weight` is only supported for models with a single output.")
    labels = np.asarray(y)
    if labels.dtype.kind not in "biuf":
        raise ValueError(
            f"`class_weight` needs `y` to be numbers of classes. Received: {labels.dtype}"
        )
    if labels.ndim > 1:
        labels = labels[..., 0] if labels.shape[-1] == 1 else np.argmax(labels, axis=-1)
    labels = np.round(labels).astype("int64")
    weights = np.ones(labels.shape, keras.config.floatx())
    for label, weight in class_weight.items():
        weights[labels == int(label)] = weight
    return weights


def weigh_batch(batch: Any, class_weight: Mapping[int, float]) -> Any:
    """Returns a batch with the weights of its classes; as in Keras, one without targets as it is.

    Args:
        batch: `(x, y)`, or inputs alone.
        class_weight: The weight of each class, as for `fit`.

    Raises:
        ValueError: If the batch has weights of its own, or targets of several outputs.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if sample_weight is not None:
        raise ValueError("`class_weight` and sample weights yielded by `x` exclude each other.")
    if y is None:
        warn_user("`class_weight` has no effect: `x` yields batches without `y`, the classes.")
        return batch
    return x, y, class_weights_of(y, class_weight)


def weigh_pipeline(dataset: tf.data.Dataset, class_weight: Mapping[int, float]) -> tf.data.Dataset:
    """Returns a data set of batches `(x, y, sample_weight)` with the weights of their classes.

    Args:
        dataset: Batches `(x, y)`.
        class_weight: The weight of each class, by the number of the class.

    Raises:
        ValueError: If the batches have no targets, those of several outputs, or weights.
    """
    keys = tf.constant([int(label) for label in class_weight], tf.int64)
    values = tf.constant([float(w) for w in class_weight.values()], keras.config.floatx())
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 1.0)

    @tf.autograph.experimental.do_not_convert
    def weigh(*batch: Any) -> tuple[Any, Any, tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
            batch[0] if len(batch) == 1 else batch
        )
        if sample_weight is not None:
            raise ValueError("`class_weight` and sample weights yielded by `x` exclude each other.")
        if tf.nest.is_nested(y):
            raise ValueError("`class_weight` is only supported for models with a single output.")
        if y is None:
            raise ValueError("`class_weight` needs `y`, the classes, but `x` yields no targets.")
        return x, y, table.lookup(_classes(y))

    return dataset.map(weigh)


def _classes(y: tf.Tensor) -> tf.Tensor:
    """Converts targets to class indices, by which their class weights are looked up.

    Args:
        y: Class indices of shape `(n,)` or `(n, 1)`, or one-hot rows of shape `(n, classes)`. As in
            Keras, targets of unknown rank are class indices.

    Returns:
        An int64 tensor of class indices.
    """

    def numbers(labels: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.round(labels) if labels.dtype.is_floating else labels, tf.int64)

    if y.shape.rank is None or y.shape.rank < 2:
        return numbers(y)
    is_column = tf.equal(tf.shape(y)[-1], 1)
    return tf.cond(is_column, lambda: numbers(y[..., 0]), lambda: tf.argmax(y, axis=-1))
