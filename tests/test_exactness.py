"""C1: training on several replicas computes what Keras computes on one device.

Each case makes a compiled model and its data. Keras' own `fit` trains one copy on one device, kfit
another on several replicas, and the weights and the history must agree. The sizes leave a last
batch that is full, that is shared unevenly, or that leaves some replicas without any example.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers, regularizers

import kfit

BATCH_SIZE = {7: 5, 64: 16, 101: 20, 128: 50}
"""Examples -> global batch size: the last batch has 2, 16, 1 and 28 examples."""

ALL = [(examples, replicas) for examples in BATCH_SIZE for replicas in (2, 3, 4)]
WITH_EMPTY_REPLICA = [(101, 2), (7, 3), (101, 2), (101, 3), (101, 2), (7, 4), (101, 2), (101, 4)]
"""What the cases take in turn; more replicas take longer to trace."""

UNEVEN = {"unscaled_step_where_replicas_meet": (101, 3)}
"""Cases that could not fail where all replicas with examples have as many."""

WITHOUT = [combination for combination in ALL if combination not in WITH_EMPTY_REPLICA]

Case = Callable[[int], tuple[Any, ...]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Notes a case: a function of the number of examples, to `(model, data)` or with arguments."""
    CASES[function.__name__] = function
    return function


# Data and models.


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def numbers(*shape: int) -> np.ndarray:
    return rng().normal(size=shape).astype("float32")


def labels(examples: int, classes: int, *inner: int) -> np.ndarray:
    return rng().integers(0, classes, (examples, *inner))


def positive(*shape: int) -> np.ndarray:
    return rng().uniform(0.1, 2.0, shape).astype("float32")


def sgd(**options: Any) -> optimizers.Optimizer:
    return optimizers.SGD(0.2, **options)


def regressor(optimizer: Any = None, **compiled: Any) -> keras.Model:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(2)])
    compiled = {"loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(sgd() if optimizer is None else optimizer, **compiled)
    return model


def regression(examples: int) -> tuple[np.ndarray, np.ndarray]:
    return numbers(examples, 4), 2 * numbers(examples, 2) + 1


def heads(outputs: dict[str, Any], **compiled: Any) -> keras.Model:
    """Independent outputs, so that a wrong gradient shows in its own head."""
    x = layers.Input((4,))
    model = keras.Model(x, {name: layers.Dense(2, name=name)(x) for name in outputs})
    model.compile(sgd(), loss=outputs, **compiled)
    return model


REDUCED = {
    "mean_of_all": losses.MeanSquaredError(reduction="sum_over_batch_size"),
    "mean": losses.Huber(reduction="mean"),
    "sum": losses.MeanAbsoluteError(reduction="sum"),
    "weighted_mean": losses.LogCosh(reduction="mean_with_sample_weight"),
}
LOSS_WEIGHTS = {"mean_of_all": 1.0, "mean": 0.5, "sum": 0.05, "weighted_mean": 2.0}


# Losses, weights and masks.


@case
def plain(n: int) -> Any:
    return regressor(), regression(n)


@case
def every_reduction(n: int) -> Any:
    model = heads(REDUCED, loss_weights=LOSS_WEIGHTS)
    return model, (numbers(n, 4), {name: numbers(n, 2) + 1 for name in REDUCED})


@case
def every_reduction_with_sample_weights(n: int) -> Any:
    model = heads(REDUCED, loss_weights=LOSS_WEIGHTS, weighted_metrics={"sum": ["mae"]})
    targets = {name: numbers(n, 2) + 1 for name in REDUCED}
    return (
        model,
        (numbers(n, 4), targets),
        {"sample_weight": {name: positive(n) for name in REDUCED}},
    )


@case
def no_reduction(n: int) -> Any:
    model = regressor(optimizers.SGD(0.02), loss=losses.MeanSquaredError(reduction=None))
    return model, regression(n), {"sample_weight": positive(n)}


@case
def no_reduction_beside_a_mean(n: int) -> Any:
    """As on one device the mean counts once for each value of the other loss."""
    taken = {"values": losses.MeanSquaredError(reduction=None), "mean": losses.LogCosh()}
    model = heads(taken)
    model.optimizer.learning_rate = 0.01
    return model, (numbers(n, 4), {name: numbers(n, 2) + 1 for name in taken})


@case
def sample_weight_and_weighted_metrics(n: int) -> Any:
    model = regressor(weighted_metrics=["mse", metrics.RootMeanSquaredError(name="rmse")])
    return model, regression(n), {"sample_weight": positive(n)}


@case
def class_weight(n: int) -> Any:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "softmax")])
    model.compile(sgd(), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model, (numbers(n, 4), labels(n, 3)), {"class_weight": {0: 0.2, 2: 3.0}}


@case
def a_loss_function_of_the_user(n: int) -> Any:
    def loss(y_true: Any, y_pred: Any) -> Any:
        return ops.max(ops.square(y_true - y_pred), axis=-1)

    return regressor(loss=loss, metrics=[loss]), regression(n)


@case
def losses_over_the_whole_batch(n: int) -> Any:
    taken = {
        "dice": losses.Dice(),
        "by_class": losses.Dice(axis=0),
        "added": losses.Tversky(alpha=0.3, beta=0.7, reduction="sum"),
        "by_example": losses.Tversky(axis=1, alpha=0.2),
    }
    x = layers.Input((4,))
    model = keras.Model(x, {name: layers.Dense(3, "sigmoid", name=name)(x) for name in taken})
    model.compile(sgd(), loss=taken, metrics={"dice": ["mae"]})
    return model, (numbers(n, 4), {name: labels(n, 2, 3) for name in taken})


def words(n: int, length: int = 5) -> np.ndarray:
    """Sentences of several lengths, padded with 0."""
    tokens = rng().integers(1, 9, (n, length))
    tokens[np.arange(length) >= rng().integers(1, length + 1, n)[:, None]] = 0
    return tokens


@case
def embedding_with_mask(n: int) -> Any:
    layer = layers.Embedding(9, 3, mask_zero=True)
    model = keras.Sequential([layers.Input((5,)), layer, layers.LSTM(4), layers.Dense(1)])
    model.compile(sgd(), "mse")
    return model, (words(n), numbers(n, 1))


@case
def masked_predictions(n: int) -> Any:
    sequence = [layers.Embedding(9, 3, mask_zero=True), layers.Dense(3)]
    model = keras.Sequential([layers.Input((5,)), *sequence])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(sgd(), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model, (words(n), labels(n, 3, 5)), {"sample_weight": positive(n, 5)}


@case
def masked_predictions_with_temporal_weights(n: int) -> Any:
    x = numbers(n, 4, 3)
    x[rng().random((n, 4)) < 0.4] = 0.0
    model = keras.Sequential([layers.Input((4, 3)), layers.Masking(), layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    return model, (x, numbers(n, 4, 2)), {"sample_weight": positive(n, 4)}


@case
def ignore_class(n: int) -> Any:
    targets = labels(n, 4, 6) - 1
    model = keras.Sequential([layers.Input((6, 2)), layers.Dense(3)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model.compile(sgd(), loss)
    return model, (numbers(n, 6, 2), targets)


@case
def several_outputs(n: int) -> Any:
    x = layers.Input((4,))
    shared = layers.Dense(5, "tanh")(x)
    outputs = [layers.Dense(2, name="a")(shared), layers.Dense(1, "sigmoid", name="b")(shared)]
    model = keras.Model(x, outputs)
    model.compile(
        sgd(),
        loss=["mse", "binary_crossentropy"],
        loss_weights=[0.3, 2.0],
        metrics=[["mae"], ["accuracy"]],
    )
    return model, (numbers(n, 4), [numbers(n, 2), labels(n, 2, 1)])


class AddsLoss(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(loss=0.3 * ops.mean(ops.square(x)))
        return x


@case
def added_loss(n: int) -> Any:
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4, "tanh"), AddsLoss(), layers.Dense(2)]
    )
    model.compile(sgd(), "mse")
    return model, regression(n)


class AddsValues(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.05 * ops.sum(ops.square(x), axis=-1))
        self.add_loss(0.05 * ops.mean(ops.square(x), axis=0))
        return x


@case
def added_values_of_examples(n: int) -> Any:
    """Keras adds up what is no scalar: over examples, or over features of their mean."""
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "tanh"), AddsValues()])
    model.add(layers.Dense(2))
    model.compile(sgd(), "mse")
    return model, regression(n)


class MeetsByItself(layers.Layer):
    """Centers rows by the mean of all, and looks at all of them."""

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        if context is None:  # built outside of the replicas
            return x
        rows = tf.cast(tf.shape(x)[0], x.dtype)
        mean = context.all_reduce("SUM", tf.reduce_sum(x, 0)) / context.all_reduce("SUM", rows)
        everything = tf.stop_gradient(context.all_gather(x, 0))
        likeness = tf.matmul(x, everything, transpose_b=True)
        return x - mean + 0.1 * tf.reduce_logsumexp(likeness, 1, keepdims=True)


@case
def layers_that_meet_by_themselves(n: int) -> Any:
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4), MeetsByItself(), layers.Dense(2)]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model, regression(n)


class UnscaledStep(keras.Sequential):
    """Takes gradients of its loss as most do, without `optimizer.scale_loss`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred)


@case
def unscaled_step_where_replicas_meet(n: int) -> Any:
    """Replicas of 6 and 7 examples owe gradients to each other."""
    normalized = layers.BatchNormalization(synchronized=True)
    model = UnscaledStep([layers.Input((4,)), layers.Dense(4), normalized, layers.Dense(3)])
    model.add(layers.Softmax())
    model.compile(sgd(), losses.Dice(), metrics=["mae"])
    return model, (numbers(n, 4), np.eye(3, dtype="float32")[labels(n, 3)])


@case
def added_loss_before_replicas_meet(n: int) -> Any:
    """They meet in the normalization, and again in the loss, before the added one is read."""
    hidden = [layers.Dense(4, "tanh", activity_regularizer="l2"), AddsLoss()]
    # Of a batch of one example the usual epsilon would magnify what is rounded 30 times.
    normalized = layers.BatchNormalization(synchronized=True, epsilon=0.1)
    model = keras.Sequential([layers.Input((4,)), *hidden, normalized, layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    return model, regression(n), {"sample_weight": positive(n)}


@case
def weight_and_activity_regularizers(n: int) -> Any:
    first = layers.Dense(
        4,
        kernel_regularizer=regularizers.L1L2(0.01, 0.02),
        bias_regularizer=regularizers.L2(0.03),
        activity_regularizer=regularizers.L2(0.05),
    )
    model = keras.Sequential([layers.Input((4,)), first, layers.Dense(2)])
    model.compile(sgd(), "mse")
    return model, regression(n)


# Optimizers.


@case
def clipnorm(n: int) -> Any:
    return regressor(sgd(clipnorm=0.1)), regression(n)


@case
def global_clipnorm(n: int) -> Any:
    return regressor(sgd(global_clipnorm=0.1)), regression(n)


@case
def clipvalue(n: int) -> Any:
    return regressor(sgd(clipvalue=0.05)), regression(n)


@case
def gradient_accumulation(n: int) -> Any:
    return regressor(
        optimizers.Adam(0.01, epsilon=1e-2, gradient_accumulation_steps=3)
    ), regression(n)


@case
def accumulation_clipping_decay_and_averages(n: int) -> Any:
    optimizer = sgd(
        momentum=0.9,
        nesterov=True,
        gradient_accumulation_steps=2,
        global_clipnorm=0.2,
        weight_decay=0.01,
        use_ema=True,
        ema_momentum=0.8,
        ema_overwrite_frequency=2,
    )
    return regressor(optimizer), regression(n)


@case
def weight_decay(n: int) -> Any:
    return regressor(optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-2)), regression(n)


@case
def averages_at_the_end(n: int) -> Any:
    return regressor(sgd(use_ema=True, ema_momentum=0.5)), regression(n)


@case
def averages_every_two_steps(n: int) -> Any:
    optimizer = sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    return regressor(optimizer), regression(n)


@case
def learning_rate_schedule(n: int) -> Any:
    schedule = optimizers.schedules.ExponentialDecay(0.3, 2, 0.7)
    return regressor(optimizers.SGD(schedule, momentum=0.5)), regression(n)


@case
def constraints(n: int) -> Any:
    first = layers.Dense(
        5, kernel_constraint=keras.constraints.MaxNorm(0.5), bias_constraint="non_neg"
    )
    model = keras.Sequential([layers.Input((4,)), first, layers.Dense(2)])
    model.compile(sgd(), "mse")
    return model, regression(n)


@case
def overflow_on_one_replica(n: int) -> Any:
    x, y = regression(n)
    y[3] = 3e38  # the step that sees this example is skipped, and the loss scale halved
    return regressor(optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)), (x, y)


@case
def two_optimizers_in_one(n: int) -> Any:
    model = regressor()
    of_first = {id(v) for v in model.layers[0].trainable_variables}
    chosen = lambda variable: optimizers_of[id(variable) in of_first]  # noqa: E731
    # Adam corrects its averages by the number of steps, which only it counts.
    optimizers_of = {True: sgd(clipnorm=0.1), False: optimizers.Adam(0.01, epsilon=1e-2)}
    model.compile(optimizers.MultiOptimizer(chosen), "mse")
    return model, regression(n)


# Layers.


@case
def sparse_gradients(n: int) -> Any:
    embedding = layers.Embedding(9, 3)
    model = keras.Sequential([layers.Input((5,)), embedding, layers.Flatten(), layers.Dense(2)])
    model.compile(optimizers.Adam(0.01, epsilon=1e-2, global_clipnorm=0.1), "mse")
    return model, (words(n), numbers(n, 2))


@case
def convolution(n: int) -> Any:
    features = [layers.Conv2D(3, 2, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    model = keras.Sequential([layers.Input((5, 5, 1)), *features, layers.Dense(3)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model, (numbers(n, 5, 5, 1), labels(n, 3))


@case
def synchronized_batch_normalization(n: int) -> Any:
    norm = layers.BatchNormalization(synchronized=True, momentum=0.7)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(5), norm, layers.Dense(2)])
    model.compile(optimizers.SGD(0.05), "mse")
    return model, regression(n)


@case
def masked_synchronized_batch_normalization(n: int) -> Any:
    x = numbers(n, 5, 3)
    x[rng().random((n, 5)) < 0.4] = 0.0
    norm = layers.BatchNormalization(synchronized=True, momentum=0.7)
    model = keras.Sequential([layers.Input((5, 3)), layers.Masking(), layers.Dense(4), norm])
    model.add(layers.Dense(2))
    model.compile(optimizers.SGD(0.05), "mse")
    return model, (x, numbers(n, 5, 2))


@case
def low_rank_adapters_on_whole_numbers(n: int) -> Any:
    """LoRA beside kernels that are quantized to int8, of a Dense and of an Embedding."""
    embedding, dense = layers.Embedding(9, 4), layers.Dense(6, "tanh")
    model = keras.Sequential([layers.Input((5,)), embedding, dense, layers.Dense(2)])
    for layer in (embedding, dense):
        layer.enable_lora(2)
        layer.quantize("int8")
    model.compile(optimizers.LossScaleOptimizer(sgd(momentum=0.5)), "mse")
    return model, (words(n), numbers(n, 5, 2))


@case
def text(n: int) -> Any:
    vocabulary = ["up", "down", "left", "right"]
    lookup = layers.StringLookup(vocabulary=vocabulary, output_mode="multi_hot")
    model = keras.Sequential([layers.Input((3,), dtype="string"), lookup, layers.Dense(1)])
    model.compile(sgd(), "mse")
    return model, (tf.constant(rng().choice(vocabulary, (n, 3))), numbers(n, 1))


@case
def several_inputs(n: int) -> Any:
    inputs = {"a": layers.Input((2,), name="a"), "b": layers.Input((3,), name="b")}
    outputs = layers.Dense(2)(layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = keras.Model(inputs, outputs)
    model.compile(sgd(), "mse")
    return model, ({"a": numbers(n, 2), "b": numbers(n, 3)}, numbers(n, 2))


# Metrics.


@case
def metrics_of_two_classes(n: int) -> Any:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(1, "sigmoid")])
    compiled = [
        "accuracy",
        metrics.AUC(name="auc", num_thresholds=50),
        metrics.Precision(thresholds=[0.3, 0.6], name="precision"),
        metrics.Recall(name="recall"),
        metrics.BinaryIoU(name="iou"),
    ]
    weighted = [metrics.AUC(name="weighted_auc"), metrics.Precision(name="weighted_precision")]
    model.compile(sgd(), "binary_crossentropy", metrics=compiled, weighted_metrics=weighted)
    return model, (numbers(n, 4), labels(n, 2, 1)), {"sample_weight": positive(n)}


@case
def metrics_of_several_classes(n: int) -> Any:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "softmax")])
    compiled = [
        metrics.F1Score(average="macro", name="f1"),
        metrics.OneHotMeanIoU(3, name="iou"),
        metrics.TopKCategoricalAccuracy(2, name="top2"),
        metrics.CosineSimilarity(name="cosine"),
    ]
    model.compile(sgd(), "categorical_crossentropy", metrics=compiled)
    return model, (numbers(n, 4), np.eye(3, dtype="float32")[labels(n, 3)])


# Models that define their own steps.


class OwnStep(keras.Model):
    """The way of Keras' guide: its own gradients, with the compiled loss and metrics."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


@case
def own_train_step(n: int) -> Any:
    x = layers.Input((4,))
    model = OwnStep(x, layers.Dense(2)(layers.Dense(5, "tanh")(x)))
    model.compile(sgd(clipnorm=0.5), "mse", weighted_metrics=["mae"])
    return model, regression(n), {"sample_weight": positive(n)}


class OwnLossAndMetrics(keras.Model):
    """A step that knows nothing of scaling, with a loss that is a plain mean."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(5, "tanh"), layers.Dense(2)
        self.loss_metric = metrics.Mean(name="loss")
        self.error_metric = metrics.MeanAbsoluteError(name="error")

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.loss_metric, self.error_metric]

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss_metric.update_state(loss)
        self.error_metric.update_state(y, y_pred)
        return {"loss": self.loss_metric.result(), "error": self.error_metric.result()}


@case
def own_train_step_and_metrics(n: int) -> Any:
    model = OwnLossAndMetrics()
    model.compile(optimizer=sgd(global_clipnorm=0.3))
    return model, regression(n)


class ReturnsScalars(OwnLossAndMetrics):
    """Returns the values of the batch, and no metric."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"batch_loss": loss}


class ReducesByItself(OwnLossAndMetrics):
    """Takes the mean of values that its loss does not reduce, as TensorFlow's guides do."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            values = losses.MeanSquaredError(reduction="none")(y, self(x, training=True))
            loss = ops.mean(values)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"batch_loss": loss}


@case
def own_train_step_that_reduces_by_itself(n: int) -> Any:
    model = ReducesByItself()
    model.compile(optimizer=sgd())
    return model, regression(n)


@case
def own_train_step_that_returns_values(n: int) -> Any:
    model = ReturnsScalars()
    model.compile(optimizer=sgd())
    return model, regression(n)


class OwnLoss(keras.Model):
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = ops.mean(ops.square(y - y_pred) * 0.5)
        return loss + 0.1 * ops.mean(ops.abs(y_pred)) + sum(self.losses)


@case
def own_compute_loss(n: int) -> Any:
    x = layers.Input((4,))
    model = OwnLoss(x, layers.Dense(2, kernel_regularizer="l2")(x))
    model.compile(sgd())
    return model, regression(n)


class OwnMetrics(keras.Model):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.largest = metrics.MeanAbsoluteError(name="largest")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        self.largest.update_state(ops.max(y, -1), ops.max(y_pred, -1))
        return {**results, "largest": self.largest.result()}


@case
def own_compute_metrics(n: int) -> Any:
    x = layers.Input((4,))
    model = OwnMetrics(x, layers.Dense(2)(x))
    model.compile(sgd(), "mse", metrics=["mae"])
    return model, regression(n)


class Gan(keras.Model):
    """Two models, two optimizers, a compile of its own; its noise comes with the data."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Input((3,)), layers.Dense(4)])
        critic = [layers.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(1)]
        self.discriminator = keras.Sequential(critic)
        self.d_loss, self.g_loss = metrics.Mean(name="d_loss"), metrics.Mean(name="g_loss")
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.d_loss, self.g_loss]

    def train_step(self, batch: Any) -> dict[str, Any]:
        real, noise = batch
        fake = self.generator(noise)
        examples = ops.concatenate([fake, real], axis=0)
        truth = ops.concatenate([ops.ones_like(fake[:, :1]), ops.zeros_like(real[:, :1])], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(examples))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            guesses = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros_like(guesses), guesses)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


@case
def gan(n: int) -> Any:
    model = Gan()
    model.compile(
        optimizers.SGD(0.1, momentum=0.5), sgd(), losses.BinaryCrossentropy(from_logits=True)
    )
    return model, (numbers(n, 4) + 2, numbers(n, 3))


# Ways to run.


@case
def compiled_by_xla(n: int) -> Any:
    return regressor(jit_compile=True), regression(n)


@case
def run_eagerly(n: int) -> Any:
    return regressor(run_eagerly=True), regression(n)


# Equal as far as their types allow.


def mixed_float16(n: int) -> Any:
    hidden = layers.Dense(8, "tanh", dtype="mixed_float16")
    model = keras.Sequential([layers.Input((4,)), hidden, layers.Dense(2)])
    model.compile(optimizers.LossScaleOptimizer(sgd(momentum=0.5)), "mse")
    return model, regression(n)


def mixed_bfloat16(n: int) -> Any:
    hidden = layers.Dense(8, "tanh", dtype="mixed_bfloat16")
    model = keras.Sequential([layers.Input((4,)), hidden, layers.Dense(2)])
    model.compile(sgd(), "mse", metrics=["mae"])
    return model, regression(n)


ROUGH: dict[str, Case] = {"mixed_float16": mixed_float16, "mixed_bfloat16": mixed_bfloat16}


def _chosen() -> list[Any]:
    """Each case where replicas stay empty, taken in turn; the plain one on all the rest.

    Every third case is fed by a tf.data pipeline, whose batches have no size while they are
    traced, the others by arrays, whose batches have one.
    """
    chosen = [("plain", *combination, False) for combination in WITHOUT]
    for turn, name in enumerate(CASES):
        combination = UNEVEN.get(name, WITH_EMPTY_REPLICA[turn % len(WITH_EMPTY_REPLICA)])
        chosen.append((name, *combination, turn % 3 == 2))
    return [pytest.param(*c, id=f"{c[0]}-{c[1]}_on_{c[2]}") for c in chosen]


def assert_equal_logs(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("name", "examples", "replicas", "as_dataset"), _chosen())
def test_fit_equals_one_device(
    tiny: Any, name: str, examples: int, replicas: int, as_dataset: bool
) -> None:
    def made() -> tuple[keras.Model, tuple[Any, ...], dict[str, Any]]:
        keras.utils.set_random_seed(1)
        model, data, *rest = CASES[name](examples)
        options = {"verbose": 0, "epochs": 2, **(rest[0] if rest else {})}
        if as_dataset:
            if "sample_weight" in options:
                data = (*data, options.pop("sample_weight"))
            data = tuple(keras.tree.lists_to_tuples(part) for part in data)
            return model, (_pipeline(data, examples),), options
        return model, data, {"batch_size": BATCH_SIZE[examples], "shuffle": False, **options}

    one, data, options = made()
    one.run_eagerly = True  # the same numbers, without the time to trace
    expected = one.fit(*data, **options).history
    many, data, options = made()
    got = kfit.Trainer(many, tiny.strategy(replicas)).fit(*data, **options).history

    assert tiny.distance(one, many) < 1e-5
    assert_equal_logs(got, expected)
    assert tiny.is_plain(many)


def _pipeline(data: tuple[Any, ...], examples: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH_SIZE[examples])


class NeedsARow(layers.Layer):
    """Fails on a batch without one, as `Equalization` does and layers of users may."""

    def call(self, x: Any) -> Any:
        return x + 0.0 * x[0]

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return mask


def that_needs_a_row() -> keras.Model:
    """A model in which all that replicas take together depends on which rows count."""
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    features = layers.BatchNormalization(synchronized=True)(NeedsARow()(layers.Dense(6)(x)))
    steps = NeedsARow()(layers.Masking()(layers.Reshape((2, 3))(layers.ReLU()(features))))
    masked = layers.Dense(2, name="masked")(steps)
    model = keras.Model(x, [masked, layers.Dense(3, "softmax", name="classes")(features)])
    model.compile(
        sgd(),
        [keras.losses.MeanSquaredError("mean_with_sample_weight"), keras.losses.Dice()],
        metrics=[["mae"], ["accuracy", keras.metrics.AUC(name="auc")]],
        weighted_metrics=[["mse"], [keras.metrics.CategoricalCrossentropy()]],
    )
    return model


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [("arrays", 2), ("data_set", 2), pytest.param("distributed", 2, marks=pytest.mark.long)],
)
def test_layers_that_need_a_row_have_one_on_every_replica(
    tiny: Any, kind: str, replicas: int
) -> None:
    n, size = 21, 10  # of the last batch but one replica is left without an example
    x, classes = numbers(n, 4), np.eye(3, dtype="float32")[labels(n, 3)]
    y, weights = (numbers(n, 2, 2), classes), (positive(n, 2), positive(n))

    def made(strategy: kfit.distribute.Strategy | None) -> dict[str, Any]:
        if kind == "arrays":
            whole = {"x": x, "y": list(y), "sample_weight": list(weights)}
            return {**whole, "batch_size": size, "verbose": 0}
        ds = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(size)
        distributed = strategy is not None and kind == "distributed"
        return {"x": strategy.distribute_dataset(ds) if distributed else ds, "verbose": 0}

    one = that_needs_a_row()
    one.run_eagerly = True
    expected = one.fit(**made(None), shuffle=False, epochs=2).history
    trainer = kfit.Trainer(that_needs_a_row(), tiny.strategy(replicas))
    got = trainer.fit(**made(trainer.strategy), shuffle=False, epochs=2).history
    assert tiny.distance(one, trainer.model) < 1e-5
    assert_equal_logs(got, expected)
    assert_equal_logs(
        trainer.evaluate(**made(trainer.strategy), return_dict=True),
        one.evaluate(**made(None), return_dict=True),
    )
    data = x[:1] if kind == "arrays" else tf.data.Dataset.from_tensors(x[:1])
    expected = one.predict(x, verbose=0)
    for predicted, whole in zip(trainer.predict(data, verbose=0), expected, strict=True):
        np.testing.assert_allclose(predicted, whole[:1], atol=1e-5)


def test_a_loss_may_return_a_number_of_python(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Rescaling(2.0)])
    model.compile("sgd", lambda y, y_pred: 0.25)
    x = numbers(7, 4)
    history = kfit.Trainer(model, tiny.strategy(2)).fit(x, x, verbose=0).history
    assert history["loss"] == [0.25]


EVALUATED = ["masked_predictions", "several_outputs", "own_compute_metrics"]


@pytest.mark.parametrize(("turn", "name"), list(enumerate(EVALUATED)), ids=EVALUATED)
def test_evaluate_and_predict_equal_one_device(tiny: Any, turn: int, name: str) -> None:
    examples, replicas = [(101, 2), (7, 3), (128, 2)][turn]
    model, data, *options = CASES[name](examples)
    options = dict(options[0] if options else {})
    fixed = {"batch_size": BATCH_SIZE[examples], "verbose": 0}
    model.run_eagerly = True
    expected = model.evaluate(*data, **options, **fixed, return_dict=True)
    model.run_eagerly = False
    predicted = model.predict(data[0], **fixed)

    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    got = trainer.evaluate(*data, **options, **fixed, return_dict=True)
    assert_equal_logs(got, expected)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        trainer.predict(data[0], **fixed),
        predicted,
    )


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_predict_keeps_the_order(tiny: Any, replicas: int) -> None:
    model = keras.Sequential([layers.Input((1,)), layers.Lambda(lambda x: [x * 2, x + 1])])
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    for examples, batch_size in BATCH_SIZE.items():
        x = np.arange(examples, dtype="float32")[:, None]
        doubled, next_ones = trainer.predict(x, batch_size=batch_size, verbose=0)
        np.testing.assert_array_equal(doubled, x * 2)
        np.testing.assert_array_equal(next_ones, x + 1)


class Spreads(layers.Layer):
    """Each row as a sparse one, and as one of its own length."""

    def call(self, x: Any) -> Any:
        lengths = tf.cast(x[:, 0], tf.int64) % 4
        return tf.sparse.from_dense(x), tf.RaggedTensor.from_tensor(x, lengths=lengths)

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, sparse=True), keras.KerasTensor(x.shape, ragged=True)


@pytest.mark.parametrize("replicas", [1, 3])
def test_predict_keeps_the_order_of_sparse_and_ragged_rows(tiny: Any, replicas: int) -> None:
    inputs = keras.Input((4,))
    trainer = kfit.Trainer(keras.Model(inputs, Spreads()(inputs)), tiny.strategy(replicas))
    x = np.arange(11 * 4, dtype="float32").reshape(11, 4) % 7
    sparse, ragged = trainer.predict(x, batch_size=5, verbose=0)
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), x)
    assert ragged.to_list() == [list(row[: int(row[0]) % 4]) for row in x]


class AsksTheOthers(layers.Layer):
    """Adds the sum over the replicas, as TensorFlow's guide shows it."""

    def call(self, x: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        return x if replica is None else x + replica.all_reduce("SUM", tf.reduce_mean(x))


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (
            layers.BatchNormalization(synchronized=True, name="norm"),
            r"`jit_compile=True` on several.*'norm'.*`jit_compile=False`, or.*`synchronized=False`",
        ),
        (AsksTheOthers(), r"(?s)AsksTheOthers.*`jit_compile=True` on several.*`jit_compile=False`"),
        (layers.Masking(), r"`jit_compile=True` on several.*masks.*`jit_compile=False`"),
        (None, r"`jit_compile=True` on several.*Dice.*`jit_compile=False`"),
    ],
    ids=["batch_normalization", "all_reduce", "mask", "dice"],
)
def test_what_xla_cannot_hold_is_told(tiny: Any, layer: Any, match: str) -> None:
    hidden = [] if layer is None else [layer]
    model = keras.Sequential([layers.Input((3, 4)), *hidden, layers.Dense(2)])
    model.compile("sgd", "dice" if layer is None else "mse", jit_compile=True)
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.raises(ValueError, match=match):
        trainer.fit(numbers(6, 3, 4), numbers(6, 3, 2), batch_size=4, verbose=0)
    assert tiny.is_plain(model)


@pytest.mark.parametrize("way", ["run_eagerly", "jit_compile"])
def test_added_values_count_once_however_a_step_runs(tiny: Any, way: str) -> None:
    trained = []
    for strategy in (1, 2):
        keras.utils.set_random_seed(1)
        model, data = added_values_of_examples(10)
        model.compile(sgd(), "mse", **{way: True})
        kfit.Trainer(model, tiny.strategy(strategy)).fit(*data, shuffle=False, verbose=0)
        trained.append(model)
    assert tiny.distance(*trained) < 1e-5


def test_a_loss_between_the_examples_of_a_batch_is_warned_of(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3), layers.UnitNormalization()])
    model.compile(sgd(), losses.Circle())
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.warns(UserWarning, match="'circle' compares the examples of a batch"):
        trainer.fit(numbers(8, 4), labels(8, 3), batch_size=8, verbose=0)


def test_gradients_of_values_that_nobody_reduced_are_refused(tiny: Any) -> None:
    model = UnscaledStep([layers.Input((4,)), layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction=None))
    with pytest.raises(ValueError, match=r"`reduction=None`.*`self.optimizer.scale_loss\(loss\)`"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*regression(8), verbose=0)


def test_float64_is_exact_to_float64(tiny: Any) -> None:
    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        x = layers.Input((4,), dtype="float64")
        norm = layers.BatchNormalization(synchronized=True, dtype="float64")
        hidden = norm(layers.Dense(5, "tanh", dtype="float64")(x))
        taken = {"mean": "mse", "sum": losses.MeanAbsoluteError(reduction="sum"), "dice": "dice"}
        names = {name: layers.Dense(2, "sigmoid", dtype="float64", name=name) for name in taken}
        model = keras.Model(x, {name: layer(hidden) for name, layer in names.items()})
        model.compile(sgd(global_clipnorm=1.0), loss=taken)
        return model

    keras.config.set_floatx("float64")
    try:
        x, y = rng().normal(size=(21, 4)), rng().uniform(size=(21, 2))
        fixed = {"batch_size": 8, "shuffle": False, "verbose": 0}
        one, many = made(), made()
        one.run_eagerly = True
        weighted = {"sample_weight": dict.fromkeys(["mean", "sum", "dice"], y[:, 0])}
        data = x, dict.fromkeys(["mean", "sum", "dice"], y)
        expected = one.fit(*data, **fixed, **weighted).history["loss"]
        got = kfit.Trainer(many, tiny.strategy(3)).fit(*data, **fixed, **weighted).history["loss"]
    finally:
        keras.config.set_floatx("float32")
    assert tiny.distance(one, many) < 1e-14
    assert got == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("window", [None, 2])
def test_float8_takes_the_largest_numbers_of_all_replicas(tiny: Any, window: int | None) -> None:
    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", 6)
        model = keras.Sequential([layers.Input((4,)), layers.Dense(6, "tanh", dtype=policy)])
        model.add(layers.Dense(2))
        model.compile(sgd(gradient_accumulation_steps=window), "mse")
        return model

    one, many = made(), made()
    fixed = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 2}
    expected = one.fit(*regression(21), **fixed).history["loss"]
    got = kfit.Trainer(many, tiny.strategy(3)).fit(*regression(21), **fixed).history["loss"]
    # What is rounded the other way is off by an eighth, and so are the gradients of a few.
    assert got == pytest.approx(expected, rel=1e-3)
    for largest, wanted in zip(many.variables, one.variables, strict=True):
        if largest.overwrite_with_gradient:
            np.testing.assert_allclose(largest, wanted, rtol=1e-2, err_msg=wanted.path)


def test_an_overflow_on_one_replica_skips_the_step_on_all(tiny: Any) -> None:
    optimizer = optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)
    model = regressor(optimizer)
    x, y = regression(6)
    trainer = kfit.Trainer(model, tiny.strategy(3))
    trainer.train_on_batch(x, y)
    assert (int(optimizer.iterations), float(optimizer.dynamic_scale)) == (1, 1024.0)
    before = tiny.weights(model)
    y[5] = 3e38  # an example of the last replica
    trainer.train_on_batch(x, y)
    assert tiny.distance(before, tiny.weights(model)) == 0.0
    assert (int(optimizer.iterations), float(optimizer.dynamic_scale)) == (1, 512.0)
    trainer.train_on_batch(*regression(6))
    assert int(optimizer.iterations) == 2
    assert tiny.distance(before, tiny.weights(model)) > 1e-3


def test_mixed_float16_equals_one_device_as_far_as_it_can(tiny: Any) -> None:
    fixed = {"batch_size": 20, "shuffle": False, "verbose": 0, "epochs": 3}

    def made() -> tuple[keras.Model, Any]:
        keras.utils.set_random_seed(1)
        return mixed_float16(101)

    (one, data), (many, _) = made(), made()
    expected = one.fit(*data, **fixed).history["loss"]
    got = kfit.Trainer(many, tiny.strategy(3)).fit(*data, **fixed).history["loss"]
    assert float(one.optimizer.dynamic_scale) == float(many.optimizer.dynamic_scale)
    assert got == pytest.approx(expected, rel=1e-2)
    assert tiny.distance(one, many) < 2e-2


@pytest.mark.parametrize("replicas", [2, 3])
def test_moving_statistics_are_the_weighted_mean_of_the_replicas(tiny: Any, replicas: int) -> None:
    norm = layers.BatchNormalization(momentum=0.9)
    model = keras.Sequential([layers.Input((4,)), norm, layers.Dense(2)])
    model.compile(sgd(), "mse")
    x, y = regression(7)
    kept: list[Any] = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            kept.extend(norm.moving_mean._value.values)

    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    trainer.fit(x, y, batch_size=7, shuffle=False, verbose=0, callbacks=[Keep()])

    parts = [x[r * 7 // replicas : (r + 1) * 7 // replicas] for r in range(replicas)]
    shares = np.array([len(part) / 7 for part in parts])[:, None]
    means = np.stack([part.mean(0) for part in parts])
    variances = np.stack([part.var(0) for part in parts])
    np.testing.assert_allclose(norm.moving_mean, 0.1 * (shares * means).sum(0), atol=1e-6)
    np.testing.assert_allclose(
        norm.moving_variance, 0.9 + 0.1 * (shares * variances).sum(0), atol=1e-6
    )
    assert len(kept) == replicas
    assert all(np.array_equal(copy, kept[0]) for copy in kept)


class DropsByKerasItself(layers.Layer):
    """Drops examples by what `keras.random` draws where it is given no seed."""

    def call(self, x: Any, training: bool = False) -> Any:
        kept = keras.random.uniform((ops.shape(x)[0], 1)) < 0.5
        return ops.where(kept, x, 0.0) if training else x


def dropped_rows(
    tiny: Any, replicas: int, seed: int, epochs: int = 1, layer: Any = None
) -> np.ndarray:
    """Which of 64 examples a layer let through: only those have a gradient for their own weight."""
    keras.utils.set_random_seed(seed)
    layer = layers.Dropout(0.5, noise_shape=(None, 1)) if layer is None else layer()
    dense = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([layers.Input((64,)), layer, dense])
    model.compile(sgd(), losses.MeanSquaredError(reduction="sum"))
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    x, y = np.eye(64, dtype="float32"), np.ones((64, 1), "float32")
    trainer.fit(x, y, batch_size=64, shuffle=False, verbose=0, epochs=epochs)
    return model.get_weights()[0][:, 0] != 0


@pytest.mark.parametrize(
    ("replicas", "layer"), [(2, None), (4, None), (2, DropsByKerasItself)], ids=str
)
def test_replicas_draw_different_numbers_and_a_rerun_the_same(
    tiny: Any, replicas: int, layer: Any
) -> None:
    kept = dropped_rows(tiny, replicas, 3, layer=layer)
    masks = kept.reshape(replicas, -1)
    assert len({tuple(mask) for mask in masks}) == replicas
    assert 16 < kept.sum() < 48
    np.testing.assert_array_equal(dropped_rows(tiny, replicas, 3, layer=layer), kept)
    assert not np.array_equal(dropped_rows(tiny, replicas, 4, layer=layer), kept)


AUGMENTATIONS = [
    layers.RandomFlip,
    lambda: layers.RandomRotation(0.5),
    lambda: layers.RandomZoom(0.5),
    lambda: layers.RandomTranslation(0.5, 0.5),
    lambda: layers.RandomContrast(0.5),
    lambda: layers.RandomBrightness(0.5),
    lambda: layers.GaussianNoise(0.5),
    lambda: layers.GaussianDropout(0.5),
    lambda: layers.SpatialDropout2D(0.5),
]


class AugmentsAll(keras.Model):
    """Shows what each augmentation makes of a batch, as parts of the numbers a step returns."""

    def __init__(self) -> None:
        super().__init__()
        self.augmentations = [make() for make in AUGMENTATIONS]
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(ops.mean(x, (1, 2)))

    def train_step(self, batch: Any) -> dict[str, Any]:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        shown = {}
        for number, layer in enumerate(self.augmentations):
            seen = ops.sum(layer(batch[0], training=True) * numbers(8, 8, 8, 1))
            for replica in range(2):
                # A replica returns its part of a scalar, and the other one's part is nothing.
                shown[f"{number}_{replica}"] = seen * tf.cast(index == replica, tf.float32)
        return shown


def test_replicas_augment_differently_and_a_rerun_alike(tiny: Any) -> None:
    def shown(seed: int) -> np.ndarray:
        keras.utils.set_random_seed(seed)
        model = AugmentsAll()
        model.compile(sgd(), "mse")
        images = np.repeat(numbers(1, 8, 8, 1), 8, axis=0)
        # Twice 8 alike: what the replicas make of them differs by their draws alone.
        history = kfit.Trainer(model, tiny.strategy(2)).fit(
            np.concatenate([images, images]), np.zeros((16, 1)), batch_size=16, verbose=0
        )
        return np.array(list(history.history.values()))[:, 0].reshape(-1, 2)

    first = shown(1)
    assert (np.abs(first[:, 0] - first[:, 1]) > 1e-3).all(), first
    np.testing.assert_array_equal(shown(1), first)


def test_on_batch_methods_equal_one_device(tiny: Any) -> None:
    x, y = tiny.data(11)
    one, many = tiny.model(), tiny.model()
    trainer = kfit.Trainer(many, tiny.strategy(3))
    for rows in (slice(0, 11), slice(0, 2)):
        expected = one.train_on_batch(x[rows], y[rows], return_dict=True)
        assert_equal_logs(trainer.train_on_batch(x[rows], y[rows], return_dict=True), expected)
    weighted = {"class_weight": {0: 0.5, 1: 2.0}}
    assert trainer.train_on_batch(x, y, **weighted) == pytest.approx(
        one.train_on_batch(x, y, **weighted), rel=1e-5
    )
    assert trainer.test_on_batch(x, y) == pytest.approx(one.test_on_batch(x, y), rel=1e-5)
    np.testing.assert_allclose(trainer.predict_on_batch(x), one.predict_on_batch(x), atol=1e-6)
    assert tiny.distance(one, many) < 1e-5


def test_random_numbers_go_on_over_the_epochs(tiny: Any) -> None:
    once, twice = dropped_rows(tiny, 2, 3), dropped_rows(tiny, 2, 3, epochs=2)
    assert twice.sum() > once.sum()
