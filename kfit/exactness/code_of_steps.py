"""Finds out whose code has made an operation: that of a step or a loss itself, or a layer's."""

from __future__ import annotations

import inspect

import keras
import tensorflow as tf

_OF_LAYERS = inspect.getsourcefile(keras.Layer)
_OF_NORMALIZATION = inspect.getsourcefile(keras.layers.BatchNormalization)
_OF_TAPES = inspect.getsourcefile(tf.GradientTape)
_GRADIENTS = "gradient_tape/"
"""What TensorFlow writes into the names of operations that compute gradients."""


def is_of_step(op: tf.Operation) -> bool:
    """Returns whether code outside of layers has made an operation, such as a `train_step`.

    What a layer computes is its own: kfit warns of no layer that computes across the examples of a
    batch, such as BatchNormalization. Operations that compute gradients are no code of a step.

    Args:
        op: An operation of the step's graph.
    """
    if _GRADIENTS in op.name:
        return False
    return not any(frame.filename in (_OF_LAYERS, _OF_TAPES) for frame in op.traceback)


def is_of_batch_normalization(op: tf.Operation) -> bool:
    """Returns whether Keras' BatchNormalization, or a class derived from it, made an operation.

    Args:
        op: An operation of the step's graph.
    """
    return any(frame.filename == _OF_NORMALIZATION for frame in op.traceback)
