"""What layers keep from step to step, on several replicas: as on one device, or refused by name."""

import ast
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.exactness.cases.data import regression
from tests.sweeps import only, sweep


class Keeps(layers.Layer):
    """Keeps one number of what it sees, and changes nothing."""

    def __init__(self, take: Any, aggregation: str = "none", dtype_kept: str = "float32") -> None:
        super().__init__(name="keeps")
        self._take, self._made = take, {"aggregation": aggregation, "dtype": dtype_kept}

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="kept", **self._made
        )

    def call(self, x: Any) -> Any:
        self._take(self.kept, x)
        return x


def counts(kept: Any, x: Any) -> None:
    kept.assign_add(ops.cast(ops.shape(x)[0], kept.dtype))


def adds(kept: Any, x: Any) -> None:
    kept.assign_add(ops.cast(ops.sum(x), kept.dtype))


def adds_inside(kept: Any, x: Any) -> None:
    kept.value.assign_add(ops.cast(ops.sum(x), kept.dtype))


def counts_steps_inside(kept: Any, x: Any) -> None:
    kept.value.assign_add(1)


def averages(kept: Any, x: Any) -> None:
    kept.assign(0.9 * kept + 0.1 * ops.mean(x))


def takes_the_first(kept: Any, x: Any) -> None:
    kept.assign(x[0, 0])


def counts_steps(kept: Any, x: Any) -> None:
    kept.assign_add(1)


def averages_over_all(kept: Any, x: Any) -> None:
    total, rows = ops.sum(x[:, 0]), ops.cast(ops.shape(x)[0], x.dtype)
    replica = tf.distribute.get_replica_context()
    if replica is not None and tf.distribute.has_strategy():
        total, rows = replica.all_reduce("sum", total), replica.all_reduce("sum", rows)
    kept.assign(0.9 * kept + 0.1 * total / rows)


def draws(kept: Any, x: Any) -> None:
    kept.assign(keras.random.uniform(()))


def adds_in_a_branch(kept: Any, x: Any) -> None:
    if tf.is_tensor(x):
        add = lambda: tf.identity(kept.assign_add(1.0))  # noqa: E731
        tf.cond(tf.reduce_mean(x) > 0, add, lambda: tf.identity(kept._value))


EXACT = {
    "number_of_examples": (counts, "sum", "float32"),
    "whole_number_of_examples": (counts, "sum", "int32"),
    "sum_in_halves": (adds, "sum", "float64"),
    "sum_past_keras": (adds_inside, "sum", "float32"),
    "steps_past_keras": (counts_steps_inside, "none", "int64"),
    "moving_average": (averages, "mean", "float32"),
    "first_example": (takes_the_first, "only_first_replica", "float32"),
    "steps": (counts_steps, "none", "int64"),
    "average_over_all_replicas": (averages_over_all, "none", "float32"),
}
REFUSED = {
    "number_of_examples": counts,
    "sum": adds,
    "sum_past_keras": adds_inside,
    "moving_average": averages,
    "random_numbers": draws,
    "in_a_branch": adds_in_a_branch,
}


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.normal(size=(n, 4)).astype("float32"), draw.normal(size=(n, 2)).astype("float32")


def keeping(*kept: layers.Layer, **compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    branches = [layer(x) for layer in kept]
    model = keras.Model(x, layers.Dense(2)(layers.Average()([x, *branches])))
    model.compile(keras.optimizers.SGD(0.1), "mse", **compiled)
    return model


def keepers(names: Iterable[str]) -> list[layers.Layer]:
    made = []
    for name in names:
        made.append(Keeps(*EXACT[name]))
        made[-1].name = name
    return made


def kept_by(model: keras.Model) -> dict[str, float]:
    return {each.name: float(each.kept) for each in model.layers if hasattr(each, "kept")}


SOME = ["whole_number_of_examples", "moving_average", "steps"]


@pytest.mark.parametrize(
    ("names", "replicas", "jit"),
    sweep(
        [
            (SOME, 3, False),
            (list(EXACT), 3, False),
            (list(EXACT), 2, False),
            (list(EXACT), 3, True),
        ],
        every=4,
    ),
)
def test_what_layers_keep_is_that_of_one_device(
    tiny: Any, names: list[str], replicas: int, jit: bool
) -> None:
    """In `fit`, `evaluate` and `predict`; the last batch leaves a replica without an example."""

    # XLA compiles what meets no other replica.
    chosen = [name for name in names if not jit or "all" not in name]
    one, many = keeping(*keepers(chosen)), keeping(*keepers(chosen), jit_compile=jit)
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    x, y = data(18)
    fixed = {"batch_size": 8, "verbose": 0}
    for model in (one, trainer):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The variable .* is declared")
            model.fit(x, y, shuffle=False, epochs=2, **fixed)
            model.evaluate(x, y, **fixed)
            model.predict(x, **fixed)
    wanted = kept_by(one)
    assert kept_by(many) == pytest.approx(wanted, rel=1e-5)
    assert wanted["whole_number_of_examples"] == 4 * 18
    assert tiny.distance(one, many) < 1e-5


@pytest.mark.parametrize("name", only(["number_of_examples"], REFUSED))
def test_what_nobody_declared_is_refused_before_the_first_step(tiny: Any, name: str) -> None:
    model = keeping(Keeps(REFUSED[name]))
    before = tiny.weights(model)
    with pytest.raises(
        ValueError, match=r"keeps/kept.*Keeps 'keeps'.*aggregation=.sum.*all_reduce"
    ):
        kfit.Trainer(model, tiny.strategy(2)).fit(*data(8), batch_size=8, verbose=0)
    assert tiny.distance(before, tiny.weights(model)) == 0.0
    kfit.Trainer(model, tiny.strategy(1)).fit(*data(8), batch_size=8, verbose=0)


class StepsByHand(keras.Model):
    """Updates its own weights, without an optimizer that could add up gradients."""

    takes_inputs = False

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - y))
        for variable, grad in zip(
            self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            variable.assign_sub(ops.mean(x) + 0 * variable if self.takes_inputs else 0.1 * grad)
        return {"loss": loss}


def by_hand() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    model = StepsByHand(x, layers.Dense(2)(x))
    model.compile()
    return model


def test_weights_that_a_step_updates_by_gradients_are_those_of_one_device(tiny: Any) -> None:
    (x, y), (one, two) = data(17), (by_hand(), by_hand())
    one.fit(x, y, batch_size=7, shuffle=False, verbose=0)
    kfit.Trainer(two, tiny.strategy(2)).fit(x, y, batch_size=7, shuffle=False, verbose=0)
    assert tiny.distance(one, two) < 1e-5


def test_weights_that_a_step_updates_by_other_values_are_refused(tiny: Any) -> None:
    model = by_hand()
    model.takes_inputs = True
    with pytest.raises(ValueError, match=r"kernel' of Dense.*examples of one replica"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*data(8), verbose=0)


class SetsItsOptimizer(keras.Model):
    """Changes what its optimizer keeps, by the function `change`."""

    change: Any

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x) - y))
        grads = tape.gradient(loss, self.trainable_variables)
        type(self).change(self.optimizer, loss, x)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


def sets(change: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    kind = type("SetsItsOptimizer", (SetsItsOptimizer,), {"change": staticmethod(change)})
    model = kind(x, layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.1))
    return model


def rate_of_the_loss(optimizer: Any, loss: Any, x: Any) -> None:
    optimizer.learning_rate.assign(0.1 / (1.0 + loss))


def rate_of_the_loss_by_its_setter(optimizer: Any, loss: Any, x: Any) -> None:
    optimizer.learning_rate = 0.1 / (1.0 + loss)


def counts_examples(optimizer: Any, loss: Any, x: Any) -> None:
    optimizer.iterations.assign_add(tf.shape(x)[0])


def rate_of_the_steps(optimizer: Any, loss: Any, x: Any) -> None:
    optimizer.learning_rate.assign(0.1 / (1.0 + tf.cast(optimizer.iterations, "float32")))


def rate_of_the_whole_loss(optimizer: Any, loss: Any, x: Any) -> None:
    replicas = tf.distribute.get_replica_context()
    number = tf.cast(tf.shape(x)[0], "float32")
    total, count = replicas.all_reduce("sum", [loss * number, number])
    optimizer.learning_rate.assign(0.1 / (1.0 + total / count))


def rate_of_a_branch(optimizer: Any, loss: Any, x: Any) -> None:
    def lower() -> Any:
        return optimizer.learning_rate.assign(0.05)

    tf.cond(optimizer.iterations > 1, lower, lambda: tf.constant(0.0))


@pytest.mark.parametrize("change", [rate_of_the_steps, rate_of_the_whole_loss, rate_of_a_branch])
def test_a_rate_that_is_equal_on_all_replicas_is_that_of_one_device(tiny: Any, change: Any) -> None:
    (x, y), (one, two) = data(17), (sets(change), sets(change))
    one.fit(x, y, batch_size=7, shuffle=False, verbose=0)
    kfit.Trainer(two, tiny.strategy(2)).fit(x, y, batch_size=7, shuffle=False, verbose=0)
    assert tiny.distance(one, two) < 1e-5
    assert float(two.optimizer.learning_rate) == pytest.approx(float(one.optimizer.learning_rate))


@pytest.mark.parametrize(
    "change", [rate_of_the_loss, rate_of_the_loss_by_its_setter, counts_examples]
)
def test_what_a_replica_alone_sets_of_an_optimizer_is_refused(tiny: Any, change: Any) -> None:
    """Keras, and not the program, declares `aggregation="only_first_replica"` for them."""
    name = "iteration" if change is counts_examples else "learning_rate"
    with pytest.raises(
        ValueError, match=rf"'sgd(_\d+)?/{name}' of the model's optimizer .*in a hook"
    ):
        kfit.Trainer(sets(change), tiny.strategy(2)).fit(*data(8), verbose=0)


@pytest.mark.parametrize("change", [rate_of_the_steps, rate_of_the_whole_loss])
def test_without_a_graph_a_rate_is_not_refused(tiny: Any, change: Any) -> None:
    (x, y), (one, two) = data(17), (sets(change), sets(change))
    one.fit(x, y, batch_size=7, shuffle=False, verbose=0)
    two.run_eagerly = True
    kfit.Trainer(two, tiny.strategy(2)).fit(x, y, batch_size=7, shuffle=False, verbose=0)
    assert tiny.distance(one, two) < 1e-5


class KeepsOutsideOfKeras(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.kept = tf.Variable(0.0, trainable=False)

    def call(self, x: Any) -> Any:
        self.kept.assign_add(1.0)
        return x


def test_a_tf_variable_that_a_step_changes_is_refused(tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)tf.Variable `kept` of.*add_weight"):
        kfit.Trainer(keeping(KeepsOutsideOfKeras()), tiny.strategy(2)).fit(*data(8), verbose=0)


def recurrent(make: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([layers.Input(batch_shape=(5, 3, 4)), make(), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


RECURRENT = {
    "lstm": (3, lambda: layers.LSTM(3, stateful=True)),
    "both_ways": (2, lambda: layers.Bidirectional(layers.GRU(3, stateful=True))),
    "cells": (4, lambda: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)], stateful=True)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RECURRENT)
def test_states_of_examples_stay_those_of_the_examples(tiny: Any, name: str) -> None:
    replicas, make = RECURRENT[name]
    one, many = recurrent(make), recurrent(make)
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(15, 3, 4)).astype("float32"), draw.normal(size=(15, 2))
    fixed = {"batch_size": 5, "verbose": 0}

    class Resets(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and name == "lstm":
                self.model.layers[0].reset_states()

    for model in (one, trainer):
        model.fit(x, y, shuffle=False, epochs=3, callbacks=[Resets()], **fixed)
        model.evaluate(x, y, **fixed)
    np.testing.assert_allclose(
        trainer.predict(x, **fixed), one.predict(x, **fixed), rtol=1e-5, atol=1e-6
    )
    assert tiny.distance(one, many) < 1e-5
    with pytest.raises(ValueError, match=r"stateful.*as many examples as its state has rows, 5.*4"):
        trainer.fit(x[:4], y[:4], batch_size=4, verbose=0)


ASSIGNED_IN_STEPS = {
    ("normalization/batch_normalization.py", "call"): "means, or equal where synchronized",
    ("normalization/batch_normalization.py", "_update_renorm_statistics"): "the same",
    ("normalization/spectral_normalization.py", "call"): "computed from weights",
    ("rnn/rnn.py", "call"): "rows of the examples",
}
NOT_IN_STEPS = {
    "_int4_build",
    "adapt",
    "load_own_variables",
    "quantize",
    "reset_state",
    "set_weights",
    "update_state",
}
"""Loading, adapting to data, quantizing, resetting: between steps."""


@pytest.mark.long
def test_every_assignment_of_a_layer_of_keras_is_known() -> None:
    """A new one is the moment to decide what becomes of it on several replicas."""
    folder = Path(keras.__file__).parent / "src" / "layers"
    found = set()
    for path in folder.rglob("*.py"):
        if path.name.endswith("_test.py"):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and any(
                isinstance(node, ast.Attribute) and node.attr.startswith("assign")
                for node in ast.walk(function)
            ):
                found.add((path.relative_to(folder).as_posix(), function.name))
    in_steps = {(path, name) for path, name in found if name not in NOT_IN_STEPS}
    assert in_steps == ASSIGNED_IN_STEPS.keys(), sorted(in_steps ^ ASSIGNED_IN_STEPS.keys())


@pytest.mark.parametrize("replicas", sweep([2, 3]))
def test_moving_statistics_are_the_weighted_mean_of_the_replicas(tiny: Any, replicas: int) -> None:
    norm = layers.BatchNormalization(momentum=0.9)
    model = keras.Sequential([layers.Input((4,)), norm, layers.Dense(2)])
    model.compile("sgd", "mse")
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
