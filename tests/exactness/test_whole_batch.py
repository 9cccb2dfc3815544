"""Losses and metrics that are computed from the examples of all replicas."""

import warnings
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.exactness.cases.data import labels, numbers, rng, words
from tests.sweeps import only

EXAMPLES = 17
X, Y = numbers(EXAMPLES, 4), rng().uniform(size=(EXAMPLES, 3)).astype("float32")
LABELS, WEIGHTS = labels(EXAMPLES, 3), rng().uniform(0.5, 2, EXAMPLES).astype("float32")
OPTIONS: dict[str, Any] = {"batch_size": 8, "verbose": 0}
"""The third and last batch has one example, so that all replicas but the first have none."""


def root(y: Any, p: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(y - p)))


def of_some(y: Any, p: Any) -> Any:
    chosen = ops.cast(y > 0.3, p.dtype)
    return ops.sum(ops.square(y - p) * chosen) / ops.sum(chosen)


def correlation(y: Any, p: Any) -> Any:
    y, p = y - ops.mean(y), p - ops.mean(p)
    return 1 - ops.sum(y * p) / ops.sqrt(ops.sum(y * y) * ops.sum(p * p) + 1e-6)


def contrast(y: Any, p: Any) -> Any:
    """Compares each example with all others, and has a value for each (InfoNCE)."""
    logits = ops.matmul(ops.normalize(y, axis=-1), ops.transpose(ops.normalize(p, axis=-1))) / 0.5
    own = ops.arange(ops.shape(logits)[0])
    return keras.losses.sparse_categorical_crossentropy(own, logits, from_logits=True)


def triplets(y: Any, p: Any) -> Any:
    distances = ops.sum(ops.square(p[:, None] - p[None]), -1)
    same = ops.cast(y[:, 0, None] // 0.4 == y[None, :, 0] // 0.4, p.dtype)
    furthest, nearest = ops.max(distances * same, 1), ops.min(distances + 10 * same, 1)
    return ops.mean(ops.relu(furthest - nearest + 1))


def largest(y: Any, p: Any) -> Any:
    return ops.max(ops.abs(y - p))


def f1(y: Any, p: Any) -> Any:
    y, p = ops.round(y), ops.round(ops.sigmoid(p))
    return 2 * ops.sum(y * p) / (ops.sum(y) + ops.sum(p) + 1e-7)


def r2(y: Any, p: Any) -> Any:
    return 1 - ops.sum(ops.square(y - p)) / ops.sum(ops.square(y - ops.mean(y)))


class Root(keras.losses.Loss):
    """The root of a mean, which contains a loss of Keras; and perhaps another tensor."""

    def __init__(self, other: Callable[[Any], Any] = ops.zeros_like, **options: Any) -> None:
        super().__init__(**options)
        self.other = other

    def call(self, y_true: Any, y_pred: Any) -> Any:
        distance = keras.losses.MeanSquaredError()(y_true, y_pred + self.other(y_pred))
        return ops.sqrt(distance)


class Supervised(keras.losses.Loss):
    """A supervised contrastive loss whose `__call__` replaces that of Keras."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        kinds = ops.reshape(ops.argmax(y_true, -1), (-1, 1))
        same = ops.cast(kinds == ops.transpose(kinds), y_true.dtype)
        rows = ops.normalize(ops.cast(y_pred, y_true.dtype), axis=-1)
        near = ops.log_softmax(ops.matmul(rows, ops.transpose(rows)))
        return -ops.mean(ops.sum(same / ops.sum(same, 1, keepdims=True) * near, 1))


class SumOfSquares(keras.losses.Loss):
    """A sum over the examples, which needs only those of the replica."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return 0.1 * ops.sum((y_true - ops.cast(y_pred, y_true.dtype)) ** 2)


class RootOfMean:
    """What is no loss has a `__call__`, which losses and other objects inherit."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return root(y_true, ops.cast(y_pred, y_true.dtype))


class ByMixin(RootOfMean, keras.losses.Loss):
    """A loss that inherits its `__call__` from what is no loss."""


class ByMixinTwice(ByMixin):
    """A loss that inherits it from a loss that inherits it."""


LOSSES: dict[str, Callable[[], Any]] = {
    "root": lambda: root,
    "of_some": lambda: of_some,
    "correlation": lambda: correlation,
    "contrast": lambda: contrast,
    "triplets": lambda: triplets,
    "largest": lambda: largest,
    "mean": lambda: "mse",
    "summed_root": lambda: Root(reduction="sum"),
    "weighted": lambda: Root(reduction="mean_with_sample_weight"),
    "function": lambda: tf.function(correlation),
    "dice": lambda: keras.losses.Dice(),
    "own_call": Supervised,
    "own_sum": SumOfSquares,
    "by_mixin": ByMixinTwice,
}


SOME = ("of_some", "contrast", "mean", "own_call", "own_sum", "by_mixin")
"""The losses of the daily test; each takes seconds to trace."""


def of_losses(names: Collection[str], precision: str = "float32", **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    model = keras.Model(x, {n: layers.Dense(3, name=n, dtype=precision)(x) for n in names})
    losses = {name: LOSSES[name]() for name in names}
    model.compile(keras.optimizers.SGD(0.1), losses, **options)
    return model


def assert_same(
    make: Callable[[], keras.Model],
    strategy: Any,
    x: Any,
    y: Any,
    weights: Any = None,
    within: float = 2e-6,
) -> None:
    """Fits and evaluates a model on one device and on several; no warning is allowed."""

    def numbers_of(trainer: Any) -> dict[str, Any]:
        fitted = trainer.fit(x, y, sample_weight=weights, shuffle=False, **OPTIONS).history
        rated = trainer.evaluate(x, y, sample_weight=weights, return_dict=True, **OPTIONS)
        return {f"fit_{name}": values[0] for name, values in fitted.items()} | rated

    one, several = make(), make()
    expected = numbers_of(one)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(replica|examples).*")
        got = numbers_of(kfit.Trainer(several, strategy))
    for ours, theirs in zip(several.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=within, atol=within)
    for name, value in expected.items():
        if not name.endswith("_loss"):  # Keras averages those of outputs over batches
            np.testing.assert_allclose(got[name], value, within, within, err_msg=name)


@pytest.mark.parametrize(
    ("names", "replicas", "weighted", "options"),
    only(
        [(SOME, 2, True, {})],
        [
            (SOME, 2, True, {}),
            (LOSSES, 2, False, {}),
            (LOSSES, 3, True, {"steps_per_execution": 3}),
            (SOME, 2, True, {"precision": "mixed_float16"}),
        ],
    ),
)
def test_losses(
    tiny: Any, names: Collection[str], replicas: int, weighted: bool, options: dict[str, Any]
) -> None:
    weights = dict.fromkeys(names, WEIGHTS) if weighted else None
    within = 2e-3 if "precision" in options else 2e-6
    targets = dict.fromkeys(names, Y)
    strategy = tiny.strategy(replicas)
    assert_same(lambda: of_losses(names, **options), strategy, X, targets, weights, within)


METRICS: dict[str, Callable[[], Any]] = {
    "along": lambda: keras.metrics.PearsonCorrelation(axis=0),
    "dice": lambda: keras.losses.dice,
    "root": lambda: root,
    "f1": lambda: f1,
    "r2": lambda: r2,
    "largest": lambda: largest,
    "contrast": lambda: contrast,
    "of_each": lambda: "mae",
}


def of_metrics(names: Collection[str]) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3)])
    metrics = [METRICS[name]() for name in names]
    model.compile(
        keras.optimizers.SGD(0.1), "mse", metrics=metrics, weighted_metrics=[contrast, "mse"]
    )
    return model


@pytest.mark.parametrize(
    ("names", "replicas"),
    only([(("along",), 2)], [(("along",), 2), (METRICS, 3)]),
)
def test_metrics(tiny: Any, names: Collection[str], replicas: int) -> None:
    assert_same(lambda: of_metrics(names), tiny.strategy(replicas), X, Y, WEIGHTS)


def of_sequences(loss: Any, *, mask: bool) -> keras.Model:
    keras.utils.set_random_seed(1)
    embedding = layers.Embedding(9, 4, mask_zero=mask)
    model = keras.Sequential([layers.Input((None,), dtype="int32"), embedding, layers.Dense(9)])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[] if mask else [of_words])
    return model


def of_words(y: Any, p: Any) -> Any:
    """The masked loss of TensorFlow's tutorials on translation."""
    loss = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
    mask = ops.cast(y != 0, loss.dtype)
    return ops.sum(loss * mask) / ops.sum(mask)


def of_length(y: Any, p: Any) -> Any:
    """A loss for each word, divided by a root of a mean over all words of the batch."""
    loss = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
    return loss / ops.sqrt(ops.mean(ops.square(loss)))


@pytest.mark.parametrize(
    ("loss", "mask"), only([(of_length, True)], [(of_words, False), (of_length, True)])
)
def test_sequences_and_their_masks(tiny: Any, loss: Any, mask: bool) -> None:
    x = words(EXAMPLES)
    assert_same(lambda: of_sequences(loss, mask=mask), tiny.strategy(2), x, x)


@pytest.mark.long
@pytest.mark.parametrize("eagerly", only([False], [False, True]))
def test_functions_of_keras_between_the_examples(tiny: Any, eagerly: bool) -> None:
    """kfit knows them by name, also where no graph can be read."""

    def make() -> keras.Model:
        keras.utils.set_random_seed(1)
        x = layers.Input((4,))
        one, other = layers.Dense(3)(x), layers.Dense(3)(x)
        model = keras.Model(x, {"circle": layers.UnitNormalization()(one), "along": other})
        made = {"circle": keras.losses.Circle(), "along": keras.losses.CosineSimilarity(axis=0)}
        metrics = {"along": [keras.losses.dice, keras.metrics.CosineSimilarity(axis=0)]}
        sgd = keras.optimizers.SGD(1e-3)
        model.compile(sgd, made, metrics=metrics, run_eagerly=eagerly)
        return model

    assert_same(make, tiny.strategy(2), X, {"circle": LABELS, "along": Y})


class CountsCalls(Root):
    """Adds 1 to a variable whenever it is called, which must be once in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = keras.Variable(0.0, trainable=False, aggregation="only_first_replica")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.calls.assign_add(1.0)
        return super().call(y_true, y_pred)


@pytest.mark.long
def test_a_loss_that_changes_a_variable_is_computed_once(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3)])
    model.counting = CountsCalls()
    model.compile("sgd", model.counting)
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.warns(UserWarning, match="how many replicas there are"):
        trainer.fit(X, Y, **OPTIONS)
    assert float(model.counting.calls.value) == 3


class Steps(keras.Model):
    """Takes the losses of several tensors, by a `train_step` of its own."""

    def __init__(self, take: Callable[..., Any]) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        self.take = take

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.take(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class OfBoth(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return root(y_true["a"], y_pred["a"]) + of_some(y_true["b"], y_pred["b"])


def of_steps(take: Callable[..., Any]) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = Steps(take)
    model.compile(keras.optimizers.SGD(0.1))
    return model


def of_structures(x: Any, y: Any, p: Any) -> Any:
    return OfBoth()({"a": y, "b": tf.nn.relu(y)}, {"a": p, "b": 2 * p})


@pytest.mark.long
@pytest.mark.parametrize(
    "take",
    only(
        [of_structures],
        [
            of_structures,
            lambda x, y, p: Root(reduction=None)(y, p),
            lambda x, y, p: keras.losses.Dice()(y, p),
        ],
    ),
)
def test_losses_in_a_step_of_the_users(tiny: Any, take: Any) -> None:
    one, several = of_steps(take), of_steps(take)
    one.fit(X, Y, shuffle=False, **OPTIONS)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(replica|examples).*")
        kfit.Trainer(several, tiny.strategy(3)).fit(X, Y, shuffle=False, **OPTIONS)
    assert tiny.distance(one, several) < 2e-6


def in_a_branch(y: Any, p: Any) -> Any:
    return tf.cond(tf.reduce_sum(y) > 0, lambda: Root()(y, p), lambda: 0.0)


def two_views(x: Any, y: Any, p: Any) -> Any:
    return Root()(tf.concat([y, y], 0), tf.concat([p, p + 1], 0))


WARNED: dict[str, Callable[..., Any]] = {
    "random": lambda x, y, p: Root(lambda p: keras.random.normal(ops.shape(p)))(y, p),
    "of_other_tensors": lambda x, y, p: Root(lambda p: x[:, :3])(y, p),
    "reversed": lambda x, y, p: Root()(y[::-1], p),
    "in_a_branch": lambda x, y, p: in_a_branch(y, p),
    "two_views": two_views,
}


@pytest.mark.parametrize("name", only(["of_other_tensors"], WARNED))
def test_what_cannot_be_gathered_is_warned_of(tiny: Any, name: str) -> None:
    trainer = kfit.Trainer(of_steps(WARNED[name]), tiny.strategy(2))
    with pytest.warns(UserWarning, match="how many replicas there are"):
        trainer.fit(X, Y, **OPTIONS)
