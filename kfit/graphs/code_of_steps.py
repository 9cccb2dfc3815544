"""Finds out whose code has made an operation: that of a step or a loss itself, or a layer's."""

from __future__ import annotations

import inspect
import os

import keras
import tensorflow as tf

_OF_LAYERS = inspect.getsourcefile(keras.Layer)
_OF_NORMALIZATION = inspect.getsourcefile(keras.layers.BatchNormalization)
_OF_RAGGED = os.path.dirname(str(inspect.getsourcefile(tf.RaggedTensor))) + os.sep
_OF_TAPES = inspect.getsourcefile(tf.GradientTape)
_KERAS = os.path.dirname(keras.__file__) + os.sep
_OF_OPERATIONS = os.path.dirname(str(inspect.getsourcefile(keras.Operation))) + os.sep
_OF_OTHERS = tuple(
    os.path.dirname(file) + os.sep for file in (tf.__file__, os.path.dirname(__file__))
)
"""The folders of TensorFlow and of kfit."""
_GRADIENTS = "gradient_tape/"
"""What TensorFlow writes into the names of operations that compute gradients."""
_ACCUMULATED = "/accumulator"
"""What it writes into the names of the lists in which a loop keeps values for its gradients."""


def is_of_gradients(op: tf.Operation) -> bool:
    """Returns whether an operation computes gradients, or keeps a value of a loop for them.

    Args:
        op: An operation of the step's graph, or of a loop in it.
    """
    if op.type == "TensorListPushBack":
        return _ACCUMULATED in op.inputs[0].op.name
    return _GRADIENTS in op.name


def is_of_step(op: tf.Operation) -> bool:
    """Returns whether code outside of layers has made an operation, such as a `train_step`.

    What a layer computes is its own (`kfit.exactness.across_layers`). Operations that compute
    gradients are no code of a step.

    Args:
        op: An operation of the step's graph.
    """
    if is_of_gradients(op):
        return False
    return not any(frame.filename in (_OF_LAYERS, _OF_TAPES) for frame in op.traceback)


def place_in_layer(op: tf.Operation) -> str | None:
    """Returns where code of a layer has made an operation, such as "at model.py, line 9".

    It is the innermost line that is not Keras' or TensorFlow's; in a layer of Keras it is the line
    of Keras, and in a functional model the operation. The result is None if no layer and no model
    has made the operation.

    Args:
        op: An operation of the step's graph.
    """
    if is_of_gradients(op):
        return None
    frames = list(op.traceback)
    files = [frame.filename for frame in frames]
    if _OF_LAYERS not in files or _OF_TAPES in files:
        return None
    inside = frames[len(files) - files[::-1].index(_OF_LAYERS) :]
    own = [each for each in inside if not each.filename.startswith((_KERAS, *_OF_OTHERS))]
    of_keras = [each for each in inside if each.filename.startswith(_KERAS) and each.name == "call"]
    if not (own or of_keras):
        return "in a `tf.function`"  # of which only the call is in the graph
    found = (own or of_keras)[-1]
    if found.filename.startswith(_OF_OPERATIONS):
        return f"in an operation of `keras.ops` ({op.type})"
    return f"at {os.path.basename(found.filename)}, line {found.lineno}"


def is_of_batch_normalization(op: tf.Operation) -> bool:
    """Returns whether Keras' BatchNormalization, or a class derived from it, made an operation.

    Args:
        op: An operation of the step's graph.
    """
    return any(frame.filename == _OF_NORMALIZATION for frame in op.traceback)


def is_of_ragged_tensors(op: tf.Operation) -> bool:
    """Returns whether TensorFlow's code of ragged tensors made an operation.

    Args:
        op: An operation of the step's graph.
    """
    return any(frame.filename.startswith(_OF_RAGGED) for frame in op.traceback)
