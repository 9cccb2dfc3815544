"""Models as people write them: subclassed, and with training steps of their own."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("programs")
class Chain(keras.Model):
    """A subclassed model: inputs side by side, layers one after the other, then its heads."""

    def __init__(self, body: Any, heads: Any) -> None:
        super().__init__()
        self.body = body
        self.heads = heads

    def call(self, inputs: Any) -> Any:
        if isinstance(inputs, dict):
            inputs = [inputs[name] for name in sorted(inputs)]
        if isinstance(inputs, (list, tuple)):
            inputs = keras.ops.concatenate(list(inputs), axis=-1)
        x = inputs
        for layer in self.body:
            x = layer(x)
        outputs = [head(x) for head in self.heads]
        return outputs[0] if len(outputs) == 1 else outputs


class OwnStep(keras.Model):
    """Trains by a gradient tape of its own, as in Keras' guide."""

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = self.changed(tape.gradient(loss, self.trainable_variables))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(
                    loss, sample_weight=keras.ops.shape(keras.tree.flatten(x)[0])[0]
                )
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def changed(self, gradients: Any) -> Any:
        """What the optimizer gets of the tape's gradients."""
        return gradients


class ClipsByHand(OwnStep):
    """Clips the gradients of its tape, and not by its optimizer."""

    def changed(self, gradients: Any) -> Any:
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        return clipped


class OwnLoss(keras.Model):
    """Adds to the compiled loss what its outputs weigh, and evaluates by a step of its own."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        first = keras.ops.cast(keras.tree.flatten(y_pred)[0], loss.dtype)
        return loss + 0.1 * keras.ops.mean(keras.ops.square(first))

    def test_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=False)
        for metric in self.metrics:
            if metric.name == "loss":
                examples = keras.ops.shape(keras.tree.flatten(x)[0])[0]
                metric.update_state(loss, sample_weight=examples)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


class OwnTrackers(keras.Model):
    """Trains with a loss and trackers of its own, which `compile` knows nothing of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error_tracker = keras.metrics.MeanAbsoluteError(name="error")
        self.squared = keras.losses.MeanSquaredError()

    def train_step(self, data: Any) -> Any:
        x, y = data[0], data[1]
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.squared(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return self.tracked(loss, y, y_pred)

    def test_step(self, data: Any) -> Any:
        y_pred = self(data[0], training=False)
        return self.tracked(self.squared(data[1], y_pred), data[1], y_pred)

    def tracked(self, loss: Any, y: Any, y_pred: Any) -> Any:
        self.loss_tracker.update_state(loss, sample_weight=keras.ops.shape(y)[0])
        self.error_tracker.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "error": self.error_tracker.result()}

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker, self.error_tracker]


class Adversaries(keras.Model):
    """Two networks with an optimizer each: one makes targets, one tells them from real ones."""

    def __init__(self, maker: Any, judge: Any) -> None:
        super().__init__()
        self.maker = maker
        self.judge = judge
        self.maker_tracker = keras.metrics.Mean(name="maker_loss")
        self.judge_tracker = keras.metrics.Mean(name="loss")

    def compile(self, maker_optimizer: Any, judge_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.maker_optimizer = maker_optimizer
        self.judge_optimizer = judge_optimizer
        self.loss_fn = loss_fn

    def call(self, x: Any) -> Any:
        return self.maker(x)

    @property
    def metrics(self) -> Any:
        return [self.judge_tracker, self.maker_tracker]

    def judged(self, x: Any, real: Any) -> Any:
        made = self.maker(x)
        answers = self.judge(keras.ops.concatenate([made, real], axis=0))
        truth = keras.ops.concatenate(
            [keras.ops.zeros_like(made), keras.ops.ones_like(real)], axis=0
        )
        return self.loss_fn(truth, answers)

    def train_step(self, data: Any) -> Any:
        x, real = data[0], data[1]
        with tf.GradientTape() as tape:
            judge_loss = self.judged(x, real)
        weights = self.judge.trainable_weights
        self.judge_optimizer.apply(tape.gradient(judge_loss, weights), weights)
        with tf.GradientTape() as tape:
            made = self.maker(x)
            maker_loss = self.loss_fn(keras.ops.ones_like(made), self.judge(made))
        weights = self.maker.trainable_weights
        self.maker_optimizer.apply(tape.gradient(maker_loss, weights), weights)
        examples = keras.ops.shape(real)[0]
        self.judge_tracker.update_state(judge_loss, sample_weight=examples)
        self.maker_tracker.update_state(maker_loss, sample_weight=examples)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Any) -> Any:
        loss = self.judged(data[0], data[1])
        self.judge_tracker.update_state(loss, sample_weight=keras.ops.shape(data[1])[0])
        return {"loss": self.judge_tracker.result()}


class ByName:
    """Which of two optimizers takes a variable: one is for kernels."""

    def __init__(self, kernels: Any, rest: Any) -> None:
        self.kernels = kernels
        self.rest = rest

    def __call__(self, variable: Any) -> Any:
        return self.kernels if variable.name == "kernel" else self.rest

    def values(self) -> Any:
        """Both, which Keras asks for when it is compiled."""
        return [self.kernels, self.rest]
