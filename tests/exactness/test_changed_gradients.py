"""A step that changes gradients by hand trains as on one device, or is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kfit
from tests.sweeps import only

draw = np.random.RandomState(0)
X = draw.normal(size=(21, 4)).astype("float32")
TOKENS = draw.randint(0, 3, size=(21, 5))
Change = Callable[[list[Any]], list[Any]]

CHANGES: dict[str, Change] = {
    "by_global_norm": lambda grads: tf.clip_by_global_norm(grads, 0.1)[0],
    "by_norm": lambda grads: [tf.clip_by_norm(grad, 0.05) for grad in grads],
    "by_value": lambda grads: [ops.clip(grad, -0.02, 0.03) for grad in grads],
    "signs": lambda grads: [0.1 * ops.sign(grad) for grad in grads],
    "unit": lambda grads: [grad / (1e-3 + tf.norm(grad)) for grad in grads],
}


class Step(keras.Sequential):
    """Changes the gradients of its tape before the optimizer has them."""

    change: Change
    scales = False
    logs_norm = True

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
            scaled = self.optimizer.scale_loss(loss) if self.scales else loss
        grads = tape.gradient(scaled, self.trainable_variables)
        norm = tf.linalg.global_norm(grads)
        self.optimizer.apply(self.change(grads), self.trainable_variables)
        logs = self.compute_metrics(x, y, y_pred)
        return {**logs, "norm": norm} if self.logs_norm else logs


def smaller(grads: list[Any]) -> list[Any]:
    return [0.002 * grad for grad in grads]


def dense() -> list[Any]:
    return [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]


def of_tokens() -> list[Any]:
    layers = keras.layers
    embedding = layers.Embedding(4, 3)
    return [keras.Input((5,)), embedding, layers.GlobalAveragePooling1D(), layers.Dense(1)]


def trained(
    strategy: Any, change: Change, *, layers: Any = dense, scales: bool = False, **optimizer: Any
) -> tuple[list[Any], dict[str, Any]]:
    keras.utils.set_random_seed(1)
    cls = type("Changes", (Step,), {"change": staticmethod(change), "scales": scales})
    model = cls(layers())
    is_sparse = layers is of_tokens
    rule = keras.optimizers.Adam(0.1) if is_sparse else keras.optimizers.SGD(0.5, **optimizer)
    model.compile(rule, "mse", metrics=["mae"])
    x = TOKENS if is_sparse else X
    trainer = kfit.Trainer(model, strategy)
    history: dict[str, Any] = {}
    for size in (8, 5):  # the second batch size gets a graph of its own
        history |= trainer.fit(x, 9 * X[:, :1], batch_size=size, shuffle=False, verbose=0).history
    return model.get_weights(), history


@pytest.mark.parametrize(
    ("change", "options"),
    [
        *only([("by_global_norm", {})], ((change, {}) for change in CHANGES)),
        pytest.param("by_global_norm", {"scales": True}, marks=pytest.mark.long),
        pytest.param("by_global_norm", {"layers": of_tokens}, marks=pytest.mark.long),
        pytest.param("by_norm", {"gradient_accumulation_steps": 2}, marks=pytest.mark.long),
        pytest.param(
            "by_value",
            {"scales": True, "use_ema": True, "ema_overwrite_frequency": 2},
            marks=pytest.mark.long,
        ),
    ],
)
def test_weights_and_logs_are_those_of_one_device(tiny: Any, change: str, options: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, three = (trained(tiny.strategy(n), CHANGES[change], **options) for n in (1, 3))
    assert tiny.distance(one[0], three[0]) < 1e-5
    # The norm is known of early sums only.
    for name, values in one[1].items():
        np.testing.assert_allclose(three[1][name], values, rtol=1e-5, err_msg=name)


def test_what_is_linear_needs_no_early_sum(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kfit.exactness import tape_gradients

    monkeypatch.setattr(tape_gradients, "early_sums", None)
    monkeypatch.setattr(Step, "logs_norm", False)
    one, two = (trained(tiny.strategy(n), smaller) for n in (1, 2))
    assert tiny.distance(one[0], two[0]) < 1e-5


@pytest.mark.long
def test_a_norm_of_gradients_that_nothing_changes_is_logged_as_on_one_device(tiny: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, two = (trained(tiny.strategy(n), smaller) for n in (1, 2))
    assert tiny.distance(one[0], two[0]) < 1e-5
    np.testing.assert_allclose(two[1]["norm"], one[1]["norm"], rtol=1e-5)


class Computes(keras.Sequential):
    """Computes gradients by itself, or multiplies those of a tape by the number of examples."""

    of: Callable[..., Any]

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        number = tf.cast(tf.shape(x)[0], "float32")
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean((y_pred - y) ** 2)
        own = (tf.matmul(x, y_pred - y, transpose_a=True), tf.reduce_sum(y_pred - y, 0))
        given = tape.gradient(loss, self.trainable_variables)
        grads = self.of(own, given, [each.value for each in self.trainable_variables], number)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": 0.0}


COMPUTED: dict[str, Callable[..., Any]] = {
    "sums": lambda own, given, values, n: own,
    "means": lambda own, given, values, n: [each / n for each in own],
    "times_number": lambda own, given, values, n: [n * each for each in given],
    "sums_and_decay": lambda own, given, values, n: [
        each + 0.5 * value for each, value in zip(own, values, strict=True)
    ],
    "sums_and_means": lambda own, given, values, n: [
        each - 2.0 * mean for each, mean in zip(own, given, strict=True)
    ],
    "clipped_times_number": lambda own, given, values, n: [
        n * each for each in tf.clip_by_global_norm(given, 0.1)[0]
    ],
}


@pytest.mark.parametrize("of", only(["clipped_times_number"], COMPUTED))
def test_computed_gradients_are_those_of_one_device(tiny: Any, of: str) -> None:
    def weights(replicas: int) -> list[Any]:
        keras.utils.set_random_seed(1)
        cls = type("Computed", (Computes,), {"of": staticmethod(COMPUTED[of])})
        model = cls([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        kfit.Trainer(model, tiny.strategy(replicas)).fit(
            X[:13], X[:13, :1], batch_size=8, shuffle=False, verbose=0
        )
        return model.get_weights()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, three = weights(1), weights(3)
    assert tiny.distance(one, three) < 1e-5


@pytest.mark.long
def test_random_numbers_are_warned_of(tiny: Any) -> None:
    with pytest.warns(UserWarning, match="changes gradients by numbers that differ"):
        trained(tiny.strategy(2), lambda grads: [g + tf.random.normal(g.shape) for g in grads])


def test_code_of_ones_own_in_a_layer_is_no_change(tiny: Any) -> None:
    class Doubles(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    model = keras.Sequential([*dense()[:2], Doubles(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        kfit.Trainer(model, tiny.strategy(2)).fit(X, X[:, :1], batch_size=8, verbose=0)


class TwoNetworks(keras.Model):
    """A game of two networks with an optimizer each, as GANs are; both clip."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = keras.Sequential(dense()), keras.Sequential(dense())

    def compile(self, **_: Any) -> None:
        super().compile()
        self.optimizers = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1)

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.one(x) - self.other(x) - 1.0))
        self._update(0, self.one, tape.gradient(loss, self.one.trainable_variables))
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.one(x) - self.other(x)))
        self._update(1, self.other, tape.gradient(loss, self.other.trainable_variables))
        return {"loss": loss}

    def _update(self, place: int, network: Any, grads: Any) -> None:
        clipped, _ = tf.clip_by_global_norm(grads, 0.1)
        pairs = zip(clipped, network.trainable_variables, strict=True)
        self.optimizers[place].apply_gradients(pairs)


@pytest.mark.long
def test_two_networks_that_clip(tiny: Any) -> None:
    results = []
    for replicas in (1, 3):
        keras.utils.set_random_seed(1)
        model = TwoNetworks()
        model.compile()
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        history = trainer.fit(X, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        results.append((model.get_weights(), history["loss"]))
    assert tiny.distance(results[0][0], results[1][0]) < 1e-5
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5)


def test_gradients_of_changed_gradients_are_refused(tiny: Any) -> None:
    class Penalizes(keras.Sequential):
        def train_step(self, batch: Any) -> dict[str, Any]:
            x, y = batch
            weights = self.trainable_variables
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    loss = ops.mean(ops.square(y - self(x, training=True)))
                penalty = tf.linalg.global_norm(tape.gradient(loss, weights))
                total = loss + penalty
            grads, _ = tf.clip_by_global_norm(outer.gradient(total, weights), 0.1)
            self.optimizer.apply(grads, weights)
            return {"loss": loss}

    model = Penalizes(dense())
    model.compile("sgd", "mse")
    said = pytest.warns(UserWarning, match="neither a mean nor a sum")
    with said, pytest.raises(ValueError, match="computed from gradients of weights"):
        kfit.Trainer(model, tiny.strategy(2)).fit(X, X[:, :1], batch_size=8, verbose=0)
