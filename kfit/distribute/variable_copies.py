"""Copies the values of many variables to others in one graph call.

A variable on several devices is read and written by many operations. If each of them runs by
itself, copying takes about a millisecond for each variable. In a graph it takes microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class VariableCopies:
    """An object that copies the values of variables to other variables, usually the same each time.

    `Placement` has one such object to copy a model's variables to the strategy's devices, and
    another one to copy them back. The first copy is made without a graph, since tracing a graph
    takes longer than a copy. If the next copy is between the same variables, it is made in a graph,
    which is then used again.
    """

    def __init__(self) -> None:
        self._known: list[tf.Variable] = []
        self._graph: Any = None

    def run(self, sources: Sequence[tf.Variable], targets: Sequence[tf.Variable]) -> None:
        """Assigns the value of each source to the target with the same index.

        Call it in the cross-replica context of the strategy (in its scope, but on no replica).

        Args:
            sources: The variables that are read. If each replica has its own value of a variable,
                as of a metric's variables, the values are combined as the variable's `aggregation`
                declares, for example to their sum.
            targets: The variables that are assigned, of the same shapes and dtypes as the sources.
        """

        def copy() -> None:
            for source, target in zip(sources, targets, strict=True):
                target.assign(tf.convert_to_tensor(source))

        now = [*sources, *targets]
        if not now:
            return
        if len(now) != len(self._known) or not all(map(operator.is_, now, self._known)):
            self._known, self._graph = now, None
            copy()
            return
        if self._graph is None:
            self._graph = tf.function(copy, autograph=False).get_concrete_function()
        self._graph()
