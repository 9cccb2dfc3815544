"""Layers as people write them: with state that training changes, and with losses of their own."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("programs")
class CountsCalls(keras.layers.Layer):
    """Counts the batches that it was trained on."""

    def build(self, input_shape: Any) -> None:
        self.calls = self.add_weight(
            shape=(),
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
            name="calls",
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
        return x + 0.001 * keras.ops.cast(self.calls, x.dtype)


@keras.saving.register_keras_serializable("programs")
class AddsUp(keras.layers.Layer):
    """Adds up what it was trained on, over all examples."""

    def build(self, input_shape: Any) -> None:
        self.total = self.add_weight(
            shape=input_shape[-1:],
            initializer="zeros",
            trainable=False,
            aggregation="sum",
            name="total",
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.total.assign_add(keras.ops.sum(x, axis=tuple(range(len(x.shape) - 1))))
        return x


@keras.saving.register_keras_serializable("programs")
class MovingAverage(keras.layers.Layer):
    """Keeps a moving average of its inputs' mean, and takes it from them when it predicts."""

    def build(self, input_shape: Any) -> None:
        self.average = self.add_weight(
            shape=input_shape[-1:],
            initializer="zeros",
            trainable=False,
            aggregation="mean",
            name="average",
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            mean = keras.ops.mean(x, axis=tuple(range(len(x.shape) - 1)))
            self.average.assign(0.9 * self.average + 0.1 * mean)
            return x
        return x - keras.ops.cast(self.average, x.dtype)


@keras.saving.register_keras_serializable("programs")
class AddsMeanLoss(keras.layers.Layer):
    """Adds the mean of its squared inputs to the loss."""

    def call(self, x: Any) -> Any:
        # Keras adds it to losses of the variables' type, which is not that of mixed policies' x.
        whole = keras.ops.cast(x, self.variable_dtype)
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(whole)))
        return x


@keras.saving.register_keras_serializable("programs")
class LastOfSequence(keras.layers.Layer):
    """The last step of a sequence, masked or not."""

    def call(self, x: Any, mask: Any = None) -> Any:
        return x[:, -1]

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        return None
