"""Losses and metrics as people write them, in terms of the examples and of their number."""

from typing import Any

import keras


def squares(y_true: Any, y_pred: Any) -> Any:
    """A value for each example, or for each step of its sequence."""
    y_true = keras.ops.cast(y_true, y_pred.dtype)
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def number_of(y_pred: Any) -> Any:
    """The number of examples."""
    return keras.ops.cast(keras.ops.shape(y_pred)[0], y_pred.dtype)


def mean_of_squares(y_true: Any, y_pred: Any) -> Any:
    """A mean over all examples."""
    return keras.ops.mean(squares(y_true, y_pred))


def sum_by_number(y_true: Any, y_pred: Any) -> Any:
    """A mean, as a sum that is divided."""
    return keras.ops.sum(squares(y_true, y_pred)) / number_of(y_pred)


def sum_of_parts(y_true: Any, y_pred: Any) -> Any:
    """A mean, as a sum of what was divided."""
    return keras.ops.sum(squares(y_true, y_pred) / number_of(y_pred))


def sum_of_squares(y_true: Any, y_pred: Any) -> Any:
    """A sum over all examples."""
    return 0.1 * keras.ops.sum(squares(y_true, y_pred))


def mean_of_multiples(y_true: Any, y_pred: Any) -> Any:
    """A sum over all examples, as the mean of what was multiplied."""
    return 0.1 * keras.ops.mean(squares(y_true, y_pred) * number_of(y_pred))


def mean_and_sum(y_true: Any, y_pred: Any) -> Any:
    """Two terms of two kinds."""
    errors = squares(y_true, y_pred)
    return keras.ops.mean(errors) + 0.01 * keras.ops.sum(keras.ops.abs(y_pred)) + 0.5


class OwnAverage(keras.metrics.Metric):
    """Adds up sums, means and what all replicas agree on."""

    def __init__(self) -> None:
        super().__init__(name="own_average")
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")
        self.batches = self.add_variable((), "zeros", name="batches")
        self.scale = self.add_variable((), "ones", name="scale")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = squares(y_true, y_pred)
        self.total.assign_add(keras.ops.cast(keras.ops.sum(errors), self.dtype))
        self.count.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], self.dtype))
        parts = keras.ops.sum(errors / number_of(y_pred))
        self.batches.assign(self.batches + keras.ops.cast(parts, self.dtype))
        self.scale.assign(2.0)

    def result(self) -> Any:
        return self.scale * self.total / (self.count + 1e-6) + self.batches
