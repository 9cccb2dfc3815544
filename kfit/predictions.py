"""Executions that return what the model says, in order and without padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.inputs import Layout, Run
from kfit.steps import make_step


class Prediction:
    """Runs a model's predict step, one batch at a time.

    Args:
        model: The model, its variables being placed.
        strategy: The adapter.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self._model = model
        self._strategy = strategy
        self._step = make_step(model, model.predict_step, strategy)
        self._functions: dict[Layout, Any] = {}

    def run(self, run: Run, steps: int) -> tuple[int, list[Any]]:
        """Predicts the next `steps` batches of `run`, or fewer where its data ends.

        Returns:
            The number of batches, and for each a structure of tensors with a row for each example
            of the global batch, in their order; on every task.
        """
        batches: list[Any] = []
        with self._strategy.scope():
            while len(batches) < steps:
                if run.iterator is None:
                    element = run.element
                elif run.layout.endless:
                    element = run.iterator.get_next()
                else:
                    optional = run.iterator.get_next_as_optional()
                    if not optional.has_value():
                        break
                    element = optional.get_value()
                batches.append(self._outputs(element, run.layout))
        return len(batches), batches

    def _outputs(self, element: Any, layout: Layout) -> Any:
        if self._model.run_eagerly:
            return self._batch(layout, element)
        if layout not in self._functions:
            self._functions[layout] = tf.function(
                partial(self._batch, layout),
                reduce_retracing=True,
                autograph=False,
            )
        return self._functions[layout](element)

    def _batch(self, layout: Layout, element: Any) -> Any:
        outputs = self._step(element, layout)
        if self._strategy.num_replicas == 1:
            return outputs
        return keras.tree.map_structure(self._gathered, outputs)

    def _gathered(self, value: Any) -> Any:
        parts = self._strategy.local_results(value)
        if self._strategy.num_workers > 1:
            return self._strategy.gather(value, axis=0)
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, parts)
        return tf.stack(parts) if parts[0].shape.rank == 0 else tf.concat(parts, 0)


def concatenate(batches: list[Any]) -> Any:
    """The outputs of all batches as arrays with a row for each example.

    Batches whose inner dimensions differ become a `tf.RaggedTensor`, as in Keras.
    """
    return keras.tree.map_structure(lambda *parts: _joined(list(parts)), *batches)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, 0)
    arrays = [np.asarray(part) for part in parts]
    if arrays[0].ndim == 0:
        return np.stack(arrays)
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    same_tail = 0
    for sizes in zip(*(array.shape[:0:-1] for array in arrays), strict=True):
        if len(set(sizes)) > 1:
            break
        same_tail += 1
    shape = arrays[0].shape[arrays[0].ndim - same_tail :] if same_tail else ()
    return tf.ragged.constant(arrays, inner_shape=shape or None).merge_dims(0, 1)
