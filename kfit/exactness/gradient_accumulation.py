"""Gradient accumulation: each replica adds up its own gradients, and they are summed at the end.

With `gradient_accumulation_steps=w` an optimizer updates in the last step of every w, and until
then the replicas need nothing of each other: sums may wait, for they are linear. So each replica
has its part beside Keras' accumulators, which are equal on all of them. The last step of a window
takes the sum of the parts. Where somebody may look before that (a hook, a snapshot), the parts are
settled: added to Keras' accumulators, which then hold all there is.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.optimizers import accumulated_gradients, step_count

Optimizer: TypeAlias = keras.optimizers.Optimizer


class _Part(NamedTuple):
    """What replicas have of one of an optimizer's accumulators."""

    optimizer: Optimizer
    place: int
    variable: tf.Variable

    @property
    def total(self) -> keras.Variable:
        """Keras' accumulator. Private."""
        total: keras.Variable = accumulated_gradients(self.optimizer)[self.place]
        return total


class GradientAccumulation:
    """What replicas have accumulated, each for itself, in the optimizers of one model.

    Args:
        strategy: The adapter.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._parts: dict[tuple[int, int], _Part] = {}
        self._fold = tf.function(self._folded, autograph=False)

    def part(self, optimizer: Optimizer, place: int) -> tf.Variable:
        """Each replica's part of an optimizer's accumulator; call it outside of the replicas."""
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
        """Adds the parts to Keras' accumulators; all tasks call it after the same step."""
        optimizers = {id(part.optimizer): part.optimizer for part in self._parts.values()}
        if any(_is_in_window(optimizer) for optimizer in optimizers.values()):
            with self._strategy.scope():
                self._fold(len(self._parts))

    def _folded(self, count: int) -> None:
        """One exchange for all `count` parts, for which it is traced."""
        parts = list(self._parts.values())

        def fold() -> None:
            sums = self._strategy.sum_gradients([part.variable + 0 for part in parts])
            for part, value in zip(parts, sums, strict=True):
                part.total.assign_add(value)
                part.variable.assign(tf.zeros_like(part.variable))

        self._strategy.run(fold)


def _is_in_window(optimizer: Optimizer) -> bool:
    """Whether a window is under way: at its ends there is nothing to settle."""
    # Private: the public `iterations` counts accumulation.
    steps = int(step_count(optimizer).numpy())
    return steps % int(optimizer.gradient_accumulation_steps) != 0
