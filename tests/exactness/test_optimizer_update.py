"""The optimizer's step: refused where no sum is meant, skipped by all replicas or by none."""

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers, losses, optimizers

import kfit
from tests.exactness.cases.added_losses import UnscaledStep
from tests.exactness.cases.data import regression
from tests.exactness.cases.models import regressor, sgd
from tests.sweeps import only, sweep


def test_gradients_of_values_that_nobody_reduced_are_refused(tiny: Any) -> None:
    model = UnscaledStep([layers.Input((4,)), layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction=None))
    with pytest.raises(ValueError, match=r"`reduction=None`.*`self.optimizer.scale_loss\(loss\)`"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*regression(8), verbose=0)


class EverySecondStep(keras.Sequential):
    """Adds up gradients by hand, and calls the optimizer in a branch."""

    def build(self, *args: Any) -> None:
        super().build(*args)
        self.sums = [
            keras.Variable(v * 0, trainable=False, aggregation="sum")
            for v in self.trainable_variables
        ]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        for total, grad in zip(self.sums, grads, strict=True):
            total.assign_add(grad)
        now = [total.value for total in self.sums]
        due = self.optimizer.iterations % 2 == 0
        tf.cond(due, lambda: self.optimizer.apply(now, self.trainable_variables), lambda: None)
        return {"loss": loss}


class AppliesOwnWay(keras.Sequential):
    """Calls the optimizer in the way that is set."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        grads = tape.gradient(loss, variables)
        if self.way == "unknown":
            self.optimizer.apply(grads, variables)
        elif self.way == "fewer":
            self.optimizer.apply(grads[:2])
        else:
            self.optimizer.apply(grads)
        return {"loss": loss}


@pytest.mark.parametrize("kind", only(["plain"], ["plain", "average", "window", "loss scale"]))
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("unknown", "Unknown variable: <Variable path="),
        ("fewer", "Received a list of 2 gradients, but the optimizer is tracking 4"),
        ("unbuilt", "the optimizer must already be built on a list of variables"),
    ],
)
def test_what_keras_refuses_to_update_is_refused_in_its_words(
    tiny: Any, way: str, told: str, kind: str
) -> None:
    options: dict[str, dict[str, Any]] = {
        "average": {"use_ema": True, "ema_overwrite_frequency": 2},
        "window": {"gradient_accumulation_steps": 2},
    }
    optimizer: Any = optimizers.SGD(0.1, **options.get(kind, {}))
    optimizer = optimizers.LossScaleOptimizer(optimizer) if kind == "loss scale" else optimizer
    model = AppliesOwnWay([layers.Input((4,)), layers.Dense(3), layers.Dense(2)])
    model.way = way
    if way != "unbuilt":
        built_for = model.layers[0] if way == "unknown" else model
        optimizer.build(built_for.trainable_variables)
    model.compile(optimizer)
    with pytest.raises(ValueError, match=told):
        kfit.Trainer(model, tiny.strategy(2)).fit(*regression(8), verbose=0)


def test_an_optimizer_in_a_branch_is_refused_with_a_way_out(tiny: Any) -> None:
    model = EverySecondStep([layers.Input((4,)), layers.Dense(2)])
    model.compile(sgd())
    with pytest.raises(ValueError, match=r"`tf.cond`.*`gradient_accumulation_steps=n`"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*regression(8), verbose=0)


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


@pytest.mark.long
def test_a_sum_over_the_replicas_is_not_searched_for_variables(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow would walk through the graphs of all replicas at each sum: a quadratic time."""
    import tensorflow.python.ops.op_selector as selector

    walk, lengths = selector.get_backward_walk_ops, [0]

    def walked(*args: Any, **kwargs: Any) -> Any:
        ops = walk(*args, **kwargs)
        lengths.append(len(ops))
        return ops

    monkeypatch.setattr(selector, "get_backward_walk_ops", walked)
    inputs = outputs = keras.Input((4,))
    for _ in range(6):
        outputs = keras.layers.Dense(4)(outputs)
        outputs = keras.layers.BatchNormalization(synchronized=True)(outputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, _ = tiny.data(8)
    kfit.Trainer(model, tiny.strategy(2)).fit(x, x, batch_size=8, verbose=0)
    assert len(lengths) > 20
    assert max(lengths) < 100


def with_kept_apply(optimizer: Any) -> Any:
    """Returns an optimizer whose own `apply` calls the one from before any step."""
    kept = optimizer.apply
    optimizer.apply = lambda grads, trainable_variables=None: kept(grads, trainable_variables)
    return optimizer


@pytest.mark.long
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, optimizers.LossScaleOptimizer])
def test_an_apply_from_before_the_step_gets_sums_over_the_replicas(tiny: Any, wrap: Any) -> None:
    (x, y), fixed = tiny.data(17), {"batch_size": 7, "shuffle": False, "verbose": 0}
    one, two = (
        tiny.model(optimizer=with_kept_apply(wrap(optimizers.SGD(0.5, momentum=0.5))))
        for _ in range(2)
    )
    one.fit(x, y, **fixed)
    kfit.Trainer(two, tiny.strategy(2)).fit(x, y, **fixed)
    assert tiny.distance(one, two) < 1e-5


@pytest.mark.parametrize("options", sweep([{"clipnorm": 0.1}, {"gradient_accumulation_steps": 2}]))
def test_an_apply_from_before_the_step_that_sums_too_late_is_refused(
    tiny: Any, options: Any
) -> None:
    model = tiny.model(optimizer=with_kept_apply(optimizers.SGD(0.5, **options)))
    with pytest.raises(ValueError, match=r"`apply` of the optimizer 'sgd.*call `super\(\).apply`"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*tiny.data(8), verbose=0)


class KeepsApply(keras.Sequential):
    """Calls a method of an optimizer that nobody has built."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.kept_apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def test_an_optimizer_that_each_replica_would_build_is_refused(tiny: Any) -> None:
    model = tiny.model(cls=KeepsApply, metrics=None)
    model.second = optimizers.Adam(0.1)
    model.kept_apply = model.second.apply
    with pytest.raises(ValueError, match=r"'adam.*is built within a step.*`optimizer.build"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*tiny.data(8), verbose=0)


class TrainsHidden(keras.Sequential):
    """Trains by what only a closure refers to."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            layer, optimizer = self.hidden()
            loss = loss + keras.ops.mean(layer(x))
        variables = [*self.trainable_variables, *layer.trainable_variables]
        optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.parametrize("hides", ["layer", "optimizer"])
def test_what_only_a_closure_refers_to_is_refused_with_a_way_out(tiny: Any, hides: str) -> None:
    layer, optimizer = layers.Dense(1, name="secret"), optimizers.SGD(0.1, name="secret")
    layer.build((None, 4))
    model = tiny.model(cls=TrainsHidden, metrics=None)
    optimizer.build([*model.trainable_variables, *layer.trainable_variables])
    model.hidden = lambda: (layer, optimizer)
    if hides == "layer":
        model.second_optimizer = optimizer
        told = r"'secret' updates 'secret/kernel'.*`model.discriminator = discriminator`"
    else:
        model.known = layer.variables
        told = r"'secret' is called.*`model.second_optimizer = optimizer`"
    with pytest.raises(ValueError, match=told):
        kfit.Trainer(model, tiny.strategy(2)).fit(*tiny.data(8), verbose=0)
