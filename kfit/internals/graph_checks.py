"""Checks of kfit that run in the graph of a step, and the words of one that has failed.

TensorFlow raises the error of an assertion in a graph between lines that name nodes of the graph.
How it writes the message of the assertion there is not documented, so only this module reads it.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

Tensor = Any

_MARK = "kfit: "
"""What the messages of kfit's own checks begin with, to tell them from those of programs."""
_FAILED = re.compile(rf"assertion failed: \[{_MARK}(.*?)\]((?: \[[^\[\]]*\])*)", re.DOTALL)


def check_in_graph(condition: Tensor, message: str, received: list[Tensor]) -> tf.Operation:
    """Returns an operation that fails if a condition is not met.

    Args:
        condition: The condition, a boolean scalar.
        message: What must be, in whole sentences. It must not contain the character `]`.
        received: Tensors to be shown after it.
    """
    return tf.debugging.Assert(condition, [f"{_MARK}{message} Received:", *received], summarize=10)


def failed_check(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the message of the check of kfit that has failed; empty if an error is another one.

    Args:
        error: An error of a graph call.
    """
    found = _FAILED.search(error.message)
    if found is None:
        return ""
    values = re.findall(r"\[([^\[\]]*)\]", found[2])
    message = re.sub(r"\\(['\"])", r"\1", found[1])  # TensorFlow puts a backslash before quotes
    return f"{message} {', '.join(values)}"
