"""What an update does that several workers run without waiting, here traced without a cluster.

`tests/distribute/programs/asynchronous.py` trains by such steps on servers.
"""

from collections.abc import Callable
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from kfit.distribute import ParameterServer
from kfit.exactness.async_patches import keras_for_workers

VALUES = [np.array([1.0, 5.0, 2.0], "float32"), np.array([3.0, 4.0], "float32")]


class Workers:
    """A strategy with so many workers, as far as the tracing of an update asks."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def num_servers(self, task_type: str) -> int:
        return self.workers


class Own(keras.Metric):
    """A metric with two variables, whose update is a function of them and the values."""

    def __init__(self, update: Callable[[Any, Any, Any], None]) -> None:
        super().__init__(name="own")
        self.update = update
        self.first = self.add_variable((), "zeros", name="first")
        self.second = self.add_variable((2,), "zeros", name="second")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.update(self.first, self.second, y_pred)

    def result(self) -> Any:
        return self.first + ops.sum(self.second)


def _adds(first: Any, second: Any, values: Any) -> None:
    first.assign_add(ops.sum(values))
    first.assign(first - 2 * ops.mean(values))
    second.assign_add(1.0)


def _running_mean(first: Any, second: Any, values: Any) -> None:
    second.assign_add(1.0)
    first.assign_add((ops.mean(values) - first) / second[0])


OTHERS: dict[str, Callable[[Any, Any, Any], None]] = {
    "maximum": lambda first, second, values: first.assign(ops.maximum(first, ops.max(values))),
    "last value": lambda first, second, values: first.assign(ops.mean(values)),
    "decay": lambda first, second, values: first.assign(0.9 * first + ops.mean(values)),
    "running mean": _running_mean,
}


def _compiled(metric: keras.Metric) -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[metric])
    return model


def _updated(metric: keras.Metric, workers: int) -> tuple[list[np.ndarray], set[str]]:
    """Updates a metric by each of `VALUES`, as workers in turns do.

    Returns:
        The values of its variables, and the types of the operations that write to them.
    """
    model = _compiled(metric)
    model.evaluate(VALUES[1], VALUES[1], verbose=0)  # builds the metric
    model.reset_metrics()
    wrapped = next(m for m in model.metrics if metric in getattr(m, "metrics", []))
    with keras_for_workers(model, cast(ParameterServer, Workers(workers))):

        @tf.function(input_signature=[tf.TensorSpec((None,))])
        def update(values: Any) -> None:
            wrapped.update_state(values[:, None], values[:, None])

        operations = update.get_concrete_function().graph.get_operations()
    for values in VALUES:
        update(values)
    writes = {op.type for op in operations if op.type.startswith("Assign")}
    return [np.array(variable) for variable in metric.variables], writes


def _expected(metric: keras.Metric) -> list[np.ndarray]:
    for values in VALUES:
        metric.update_state(values[:, None], values[:, None])
    return [np.array(variable) for variable in metric.variables]


def test_a_metric_that_adds_is_added_to() -> None:
    found, writes = _updated(Own(_adds), 2)
    np.testing.assert_allclose(found[0], _expected(Own(_adds))[0], rtol=1e-6)
    np.testing.assert_array_equal(found[1], [2, 2])
    assert writes == {"AssignAddVariableOp", "AssignSubVariableOp"}


@pytest.mark.parametrize("what", OTHERS)
def test_a_metric_that_does_more_is_updated_as_by_keras(what: str) -> None:
    with pytest.warns(UserWarning, match="'own' does more with its variable 'first'"):
        found, _ = _updated(Own(OTHERS[what]), 2)
    for one, other in zip(_expected(Own(OTHERS[what])), found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_a_worker_alone_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    found, _ = _updated(Own(OTHERS["maximum"]), 1)
    assert float(found[0]) == 5.0
    assert not [each for each in recwarn if "does more" in str(each.message)]


@pytest.mark.parametrize("make", [keras.metrics.RootMeanSquaredError, keras.metrics.R2Score])
def test_metrics_of_keras_are_added_to(make: Callable[[], keras.Metric]) -> None:
    _, writes = _updated(make(), 2)
    assert writes == {"AssignAddVariableOp"}


def test_assign_add_is_that_of_keras() -> None:
    vector = keras.Variable([1.0, 2.0], trainable=False)
    number = keras.Variable(5, dtype="int32", trainable=False)
    with keras_for_workers(_compiled(keras.metrics.Mean()), cast(ParameterServer, Workers(2))):

        @tf.function
        def step() -> Any:
            first = vector.assign_add(1.0)  # a number, for a vector
            vector.assign_sub(3.0)
            number.assign_sub(0.5)  # 4.5, which an integer holds as 4
            return first, number.assign_add(2)

        first, second = step()
    np.testing.assert_array_equal(first, [2.0, 3.0])
    np.testing.assert_array_equal(vector.numpy(), [-1.0, 0.0])
    assert int(second) == int(number) == 6
