"""Reads from a model what a callback writes about it: weights, learning rates, steps taken."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_values import get_values, value_here


def weights_by_path(model: keras.Model, strategy: Strategy | None) -> dict[str, np.ndarray]:
    """Returns the values of a model's weights by their paths, such as "sequential/dense/kernel".

    If two weights have the same path, "_2" is added to that of the second one, and so on.

    Args:
        model: The model.
        strategy: The strategy on whose devices the weights are. All its tasks must call the
            function. None under `keras.Model.fit`.
    """
    weights = list(model.weights)
    if strategy is None:
        values = [weight.numpy() for weight in weights]
    else:
        values = get_values(weights, strategy)
    found: dict[str, np.ndarray] = {}
    for weight, value in zip(weights, values, strict=True):
        path = name = weight.path.replace(":", "_")
        count = 1
        while name in found:
            count += 1
            name = f"{path}_{count}"
        found[name] = np.asarray(value)
    return found


def learning_rates(optimizer: Any) -> dict[str, float]:
    """Returns the learning rate of an optimizer by the name that Keras' TensorBoard gives it.

    Args:
        optimizer: A Keras optimizer, or None. A `MultiOptimizer` has a rate for each of its parts.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if hasattr(optimizer, "optimizers"):
        return {f"learning_rate_{each.name}": _rate(each) for each in optimizer.optimizers}
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return {"learning_rate": _rate(optimizer)}
    return {}


def steps_taken(optimizer: Any) -> int:
    """Returns how many steps an optimizer has taken, those that only add up gradients included.

    Args:
        optimizer: A Keras optimizer, or None.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    iterations = getattr(optimizer, "iterations", 0)
    return int(iterations) * (getattr(optimizer, "gradient_accumulation_steps", None) or 1)


def _rate(optimizer: Any) -> float:
    rate = optimizer.learning_rate
    is_kept = isinstance(rate, keras.Variable)  # a schedule computes it
    return float(value_here(rate) if is_kept else keras.ops.convert_to_numpy(rate))
