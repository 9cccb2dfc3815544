"""Gradient accumulation: each replica adds up its own gradients, and they are summed at the end.

With `gradient_accumulation_steps=w` an optimizer updates in the last step of every window of w
steps. Until then the sum over the replicas can wait, because it is linear. So each replica adds its
gradients to a variable of its own ("part"), beside Keras' accumulators, which are equal on all
replicas. The last step of a window adds the sum of the parts. Before something reads the state
earlier (a hook, a snapshot), the parts are settled: their sum is added to Keras' accumulators, and
the parts are set to zero.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.optimizers import accumulated_gradients, step_count

Optimizer: TypeAlias = keras.optimizers.Optimizer


class _Part(NamedTuple):
    """The replicas' parts of one of an optimizer's accumulators.

    Attributes:
        optimizer: The optimizer.
        place: Index of the accumulator in the optimizer's list.
        variable: The sum that each replica has accumulated by itself.
    """

    optimizer: Optimizer
    place: int
    variable: tf.Variable

    @property
    def total(self) -> keras.Variable:
        """Keras' accumulator. It is private in Keras."""
        total: keras.Variable = accumulated_gradients(self.optimizer)[self.place]
        return total


class GradientAccumulation:
    """The gradients that each replica has accumulated by itself, for the optimizers of one model.

    Args:
        strategy: The adapter.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._parts: dict[tuple[int, int], _Part] = {}
        self._fold = tf.function(self._folded, autograph=False)

    def part(self, optimizer: Optimizer, place: int) -> tf.Variable:
        """The per-replica variable for an accumulator, made at the first call.

        Call it in the cross-replica context.

        Args:
            optimizer: The optimizer.
            place: Index of the accumulator in the optimizer's list.
        """
        key = id(optimizer), place
        if key not in self._parts:
            total = accumulated_gradients(optimizer)[place]
            with tf.init_scope(), self._strategy.scope():
                variable = tf.Variable(
                    tf.zeros(total.shape, total.dtype),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
            self._parts[key] = _Part(optimizer, place, variable)
        return self._parts[key].variable

    def settle(self) -> None:
        """Adds the sums of the parts to Keras' accumulators, and sets the parts to zero.

        It is a collective: all tasks call it after the same step. Between windows it does nothing.
        """
        optimizers = {id(part.optimizer): part.optimizer for part in self._parts.values()}
        if any(_is_in_window(optimizer) for optimizer in optimizers.values()):
            with self._strategy.scope():
                self._fold(len(self._parts))

    def _folded(self, count: int) -> None:
        """Settles all parts in one collective. Another `count` makes `tf.function` trace again."""
        parts = list(self._parts.values())

        def fold() -> None:
            sums = self._strategy.sum_gradients([part.variable + 0 for part in parts])
            for part, value in zip(parts, sums, strict=True):
                part.total.assign_add(value)
                part.variable.assign(tf.zeros_like(part.variable))

        self._strategy.run(fold)


def _is_in_window(optimizer: Optimizer) -> bool:
    """Whether an accumulation window is under way; otherwise all parts are zero."""
    # Private, because the public `iterations` counts windows and not steps.
    steps = int(step_count(optimizer).numpy())
    return steps % int(optimizer.gradient_accumulation_steps) != 0
