"""Functions as the metrics of a small model: their values, and what kfit warns of."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras

import kfit

Function = Callable[[Any, Any], Any]


def evaluated_on(
    functions: Mapping[str, Function],
    strategy: Any,
    *,
    data: tuple[Any, ...],
    shape: tuple[int | None, ...] = (4,),
    **options: Any,
) -> tuple[dict[str, Any], str]:
    """Evaluates a layer of four units with functions as its metrics, by their names.

    Args:
        functions: The functions of targets and predictions.
        strategy: What kfit evaluates on; None for Keras.
        data: The positional arguments of `evaluate`.
        shape: The shape of an example.
        **options: Further arguments of `evaluate`.

    Returns:
        The logs, and the warnings that speak of replicas as one text.
    """
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(shape), keras.layers.Dense(4)])
    metrics = [keras.metrics.MeanMetricWrapper(f, name=name) for name, f in functions.items()]
    # Keras computes the same numbers eagerly, without the time to trace.
    model.compile("sgd", "mse", metrics=metrics, run_eagerly=strategy is None)
    options |= {"verbose": 0, "return_dict": True}
    if strategy is None:
        return model.evaluate(*data, **options), ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logs = kfit.Trainer(model, strategy).evaluate(*data, **options)
    return logs, " ".join(str(each.message) for each in caught if "replicas" in str(each.message))
