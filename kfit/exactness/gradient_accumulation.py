"""Gradient accumulation: each replica adds up its own gradients, and they are summed at the end.

With `gradient_accumulation_steps=w` an optimizer updates in the last step of every window of w
steps. Until then the sum over the replicas can wait, because it is linear. So each replica adds its
gradients to a variable of its own ("part"), beside Keras' accumulators, which are equal on all
replicas. The last step of a window adds the sum of the parts. Before something reads the
accumulators earlier (a hook, a snapshot), the parts are settled: their sum over the replicas is
added to Keras' accumulators, and the parts are set to zero.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.optimizers import accumulated_gradients, step_count

Optimizer: TypeAlias = keras.optimizers.Optimizer


class _Part(NamedTuple):
    """The gradients for one model variable that each replica has accumulated by itself.

    Attributes:
        optimizer: The optimizer that updates the model variable.
        place: The index of the model variable among those of the optimizer.
        variable: A variable of which each replica has its own value: the sum of the replica's
            gradients.
    """

    optimizer: Optimizer
    place: int
    variable: tf.Variable

    @property
    def total(self) -> keras.Variable:
        """Keras' own accumulator for the same model variable, which is equal on all replicas.

        The accumulator is private in Keras.
        """
        total: keras.Variable = accumulated_gradients(self.optimizer)[self.place]
        return total


class GradientAccumulation:
    """The gradients that each replica has accumulated by itself, for the optimizers of one model.

    With `gradient_accumulation_steps` the gradients are summed over the replicas only when the
    optimizer updates the variables, and not in each step.

    Args:
        strategy: kfit's wrapper of the `tf.distribute` strategy that runs the steps.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._parts: dict[tuple[int, int], _Part] = {}
        self._windows: dict[int, int] = {}
        self._fold = tf.function(self._folded, autograph=False)

    def part(self, optimizer: Optimizer, place: int) -> tf.Variable:
        """Returns the variable to which each replica adds its own gradients for one model variable.

        The first call makes the variable. Call this method in the cross-replica context (in the
        strategy's scope, but on no replica).

        Args:
            optimizer: The optimizer.
            place: The index of the model variable among those of the optimizer.
        """
        # What the graph that is traced now goes by, whatever the optimizer is set to later.
        self._windows[id(optimizer)] = int(optimizer.gradient_accumulation_steps)
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
        """Adds what the replicas have accumulated by themselves to Keras' accumulators.

        It is called before a hook or a snapshot may read the accumulators. The replicas' own sums
        are set to zero. It is a collective: all tasks must call it after the same step. If nothing
        is accumulated, it does nothing.
        """
        optimizers = {id(part.optimizer): part.optimizer for part in self._parts.values()}
        if any(_is_in_window(each, self._windows[place]) for place, each in optimizers.items()):
            with self._strategy.scope():
                self._fold(len(self._parts))

    def _folded(self, count: int) -> None:
        """Does the work of `settle` in a graph, with one collective for all accumulators.

        Args:
            count: The number of accumulators. The function does not read it. It is an argument
                only so that `tf.function` traces again when it has changed.
        """
        parts = list(self._parts.values())

        def fold() -> None:
            sums = self._strategy.sum_gradients([part.variable + 0 for part in parts])
            for part, value in zip(parts, sums, strict=True):
                part.total.assign_add(value)
                part.variable.assign(tf.zeros_like(part.variable))

        self._strategy.run(fold)


def _is_in_window(optimizer: Optimizer, window: int) -> bool:
    """Returns whether an optimizer has accumulated gradients since its last update.

    If not, each replica's own sums are zero, so `settle` has nothing to do.

    Args:
        optimizer: The optimizer.
        window: The number of steps between two updates.
    """
    # Private, because the public `iterations` counts windows and not steps.
    return int(step_count(optimizer).numpy()) % window != 0
