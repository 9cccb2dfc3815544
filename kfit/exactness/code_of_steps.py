"""Finds out whether an operation was made by a step or a loss itself, and not by a layer in it."""

from __future__ import annotations

import inspect

import keras
import tensorflow as tf

_OF_LAYERS = inspect.getsourcefile(keras.Layer)
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
