"""What a graph of steps keeps of the outputs of each step, and the logs that are made of it.

Of several steps in one graph call only the last one's outputs are logged. So each step keeps the
outputs in a form that a loop can pass on, and what is costly is done once, after the last step.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.graphs import of_unknown_shape
from kfit.steps.metrics import combine, flat_logs, read_metrics, read_results
from kfit.steps.prediction import joined_rows
from kfit.steps.replica_parts import as_tensors, is_composite, of_one_shape
from kfit.steps.returned import Returned


class Outputs:
    """The outputs of a model's train or test step, as its logs need them.

    Args:
        model: The model, whose metrics are in the logs.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the steps run.
        returned: How the step's values are combined over the replicas; filled when it is traced.
        default_step: Whether the step is Keras' own, which returns only metrics.
    """

    def __init__(
        self, model: keras.Model, strategy: Strategy, returned: Returned, *, default_step: bool
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._returned = returned
        self._default_step = default_step

    def kept(self, outputs: Any) -> Any:
        """Returns those outputs of a step that the logs need, each combined over the replicas.

        Of outputs with rows, the rows of each replica of this task are returned, since only those
        of the last step are needed. The result is empty if the step is Keras' own, whose outputs
        are metrics, which are read separately (`read_metrics`).
        """
        if self._default_step:
            return ()
        flat = flat_logs(outputs)
        return {name: self._over_replicas(name, value) for name, value in flat.items()}

    def _over_replicas(self, name: str, value: Any) -> Any:
        parts = self._strategy.local_results(value)
        if name in self._returned.rows:
            if is_composite(parts[0]) and self._strategy.num_workers > 1:
                raise ValueError(
                    f"The model's step returns {name!r}, a ragged or sparse tensor, whose rows "
                    "several workers cannot exchange. Return a dense one, as of `to_tensor()` or "
                    f"`tf.sparse.to_dense`. Received: {parts[0]}"
                )
            return parts
        if name in self._returned.sums and self._strategy.num_replicas > 1:
            with tf.control_dependencies(of_one_shape(f"The model's step returns {name!r}", parts)):
                return self._strategy.reduce("sum", value)
        return as_tensors(parts[0])

    def logs(self, kept: Any) -> dict[str, Any]:
        """Makes the logs of what the last step has kept (`kept`), perhaps after a loop."""
        results = self._returned.results if self._strategy.num_replicas > 1 else {}
        if not isinstance(kept, dict):
            return combine(None, read_metrics(self._model, self._strategy), results)
        outputs = {name: self._joined(name, value) for name, value in kept.items()}
        # A result that Python computes can be read in no graph, and here it need not be.
        metrics = list(self._returned.metrics.values()) if results else []
        return combine(outputs, read_results(metrics, self._strategy) if metrics else {}, results)

    def _joined(self, name: str, value: Any) -> Any:
        of_batch = self._returned.rows.get(name)
        if of_batch is None:
            return value
        if self._strategy.num_workers > 1:
            return of_batch(self._strategy.gather_parts(value))
        return of_batch(joined_rows(value))


def blank(spec: Any) -> Any:
    """Returns a tensor for a loop to begin with, which is like `spec` in all that is static."""
    if isinstance(spec, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        return tf.nest.map_structure(blank, spec, expand_composites=True)
    if isinstance(spec, (tf.SparseTensor, tf.SparseTensorSpec)):
        rank = spec.shape.rank or 1
        shape = of_unknown_shape(tf.zeros([rank], tf.int64), [rank])
        return tf.SparseTensor(tf.zeros([0, rank], tf.int64), tf.zeros([0], spec.dtype), shape)
    if spec.shape.is_fully_defined():
        return tf.zeros(spec.shape, spec.dtype)
    sizes = [size or 0 for size in spec.shape] if spec.shape.rank else []
    return of_unknown_shape(tf.zeros(sizes, spec.dtype), spec.shape)
