"""Layers as people write them: with state that training changes, and with losses of their own."""

from typing import Any

import keras
import tensorflow as tf


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


@keras.saving.register_keras_serializable("programs")
class AttendsToItself(keras.layers.Layer):
    """Attention of a sequence to itself; each step to those before it only, if it is causal."""

    def __init__(self, causal: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.causal = causal
        self.supports_masking = True
        self.attention = keras.layers.MultiHeadAttention(2, key_dim=2, use_bias=False)

    def build(self, input_shape: Any) -> None:
        self.attention.build(input_shape, input_shape)

    def call(self, x: Any) -> Any:
        return x + self.attention(x, x, use_causal_mask=self.causal)

    def get_config(self) -> Any:
        return {**super().get_config(), "causal": self.causal}


@keras.saving.register_keras_serializable("programs")
class CountsSteps(keras.layers.Layer):
    """Counts the steps, and does not say what becomes of the count on several replicas."""

    def build(self, input_shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1)
        return x


@keras.saving.register_keras_serializable("programs")
class KeepsOwnMean(keras.layers.Layer):
    """Keeps a mean over the examples, and does not say what becomes of it on several replicas."""

    def build(self, input_shape: Any) -> None:
        self.mean = self.add_weight(
            shape=input_shape[-1:], initializer="zeros", trainable=False, name="mean"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(keras.ops.mean(x, axis=tuple(range(len(x.shape) - 1))))
        return x


@keras.saving.register_keras_serializable("programs")
class HoldsVariable(keras.layers.Layer):
    """Multiplies by a variable of TensorFlow's that nothing changes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = tf.Variable(0.9, trainable=False)

    def call(self, x: Any) -> Any:
        return x * keras.ops.cast(self.factor, x.dtype)


@keras.saving.register_keras_serializable("programs")
class CountsInVariable(keras.layers.Layer):
    """Counts the steps in a variable of TensorFlow's, which Keras does not list."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps = tf.Variable(0.0, trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1.0)
        return x + 0.01 * keras.ops.cast(self.steps, x.dtype)
