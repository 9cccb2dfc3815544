"""What TensorFlow's runtime in this process is like, which nothing public tells.

Private: `tensorflow.python.eager.context`.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import context


def tensorflow_has_run() -> bool:
    """Whether TensorFlow ran an operation in this process."""
    return getattr(context.context(), "_context_handle", None) is not None


def has_global_seed() -> bool:
    """Whether somebody has called `tf.random.set_seed`."""
    return context.global_seed() is not None


def runtime() -> Any:
    """The runtime, with which all graphs that were traced are gone; Keras' own tests renew it."""
    return context.context()
