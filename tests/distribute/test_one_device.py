"""One device that is named: the model's variables are moved there, as to several devices."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute import Mirrored, OneDevice
from tests.sweeps import only

FIXED = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}


def _sgd_or_adam() -> keras.optimizers.Optimizer:
    """Each variable has an optimizer that only the function knows until it is built."""
    sgd, adam = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam(0.1)
    return keras.optimizers.MultiOptimizer(lambda v: sgd if "bias" in v.path else adam)


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
    "average": lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=3),
    "MultiOptimizer": _sgd_or_adam,
}


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def _trained(optimizer: Any, kind: type[keras.Model], strategy: Any) -> list[np.ndarray]:
    """Trains in two `fit`s of three epochs; returns the weights and the optimizer's variables."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    model = kind(inputs, keras.layers.Dense(1)(hidden))
    model.compile(optimizer(), "mse")
    x = np.random.default_rng(1).normal(size=(24, 4)).astype("float32")
    fit = model.fit if strategy is None else kfit.Trainer(model, strategy).fit
    for _ in range(2):
        fit(x, x[:, :1], **FIXED)
    return [*model.get_weights(), *(np.array(v) for v in model.optimizer.variables)]


DAILY = [("Adam", OwnStep), ("momentum", keras.Model), ("MultiOptimizer", OwnStep)]


@pytest.mark.parametrize(("name", "kind"), only(DAILY, product(OPTIMIZERS, [keras.Model, OwnStep])))
def test_optimizers_go_on_with_their_state(name: str, kind: type[keras.Model]) -> None:
    if name == "MultiOptimizer" and not hasattr(keras.optimizers, name):
        pytest.skip("MultiOptimizer is new in Keras 3.15")
    optimizer = OPTIMIZERS[name]
    expected = _trained(optimizer, kind, None)
    for strategy in (
        OneDevice("CPU:0"),
        OneDevice("CPU:1"),
        tf.distribute.OneDeviceStrategy("CPU:0"),
    ):
        found = _trained(optimizer, kind, strategy)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_a_variable_stays_the_same_from_call_to_call(tiny: Any) -> None:
    """So that no graph is traced again, and whoever refers to it finds the trained value."""
    model, (x, y) = tiny.model(optimizer=keras.optimizers.Adam(0.1)), tiny.data(16)
    trainer = kfit.Trainer(model, OneDevice("CPU:0"))
    trainer.fit(x, y, batch_size=8, verbose=0)
    inside = [variable.value for variable in model.optimizer.variables]
    trainer.fit(x, y, batch_size=8, verbose=0)
    assert all(v.value is value for v, value in zip(model.optimizer.variables, inside, strict=True))


def test_a_model_goes_on_to_several_devices_and_to_keras(tiny: Any) -> None:
    (x, y), models = tiny.data(16), []
    ways = [
        lambda model: kfit.fit(model, x, y, strategy=OneDevice("CPU:1"), **FIXED),
        lambda model: kfit.fit(model, x, y, strategy=Mirrored(["CPU:0", "CPU:1"]), **FIXED),
        lambda model: model.fit(x, y, **FIXED),
        lambda model: kfit.fit(model, x, y, strategy=OneDevice("CPU:1"), **FIXED),
    ]
    for used in (ways, [ways[2]] * 4):
        models.append(tiny.model(optimizer=keras.optimizers.Adam(0.01, epsilon=1e-2)))
        for way in used:
            way(models[-1])
    assert tiny.distance(*models) < 1e-5


def test_strategies_know_their_variables() -> None:
    device, mirrored = OneDevice("CPU:1"), Mirrored(["CPU:0", "CPU:1"])
    plain = tf.Variable(1.0)
    with device.scope():
        own = tf.Variable(1.0)
    with mirrored.scope():
        copies = tf.Variable(1.0)
    assert [device.is_placed(each) for each in (plain, own, copies)] == [False, True, False]
    assert [OneDevice("CPU:0").is_placed(each) for each in (plain, own, copies)] == [
        True,
        False,
        False,
    ]
    assert [mirrored.is_placed(each) for each in (plain, own, copies)] == [False, False, True]


class AtEpochEnd(keras.callbacks.Callback):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self.call = call

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.call()


@pytest.mark.parametrize("given", ["CPU:0", tf.distribute.OneDeviceStrategy])
def test_functions_that_were_traced_before_see_what_is_trained(tiny: Any, given: Any) -> None:
    strategy = OneDevice(given) if isinstance(given, str) else given("CPU:0")
    (x, y), seen = tiny.data(16), []
    model = tiny.model(optimizer=keras.optimizers.Adam(0.1))
    traced = tf.function(model)
    traced(x)
    hook = AtEpochEnd(lambda: seen.append(np.abs(traced(x) - model.predict(x, verbose=0)).max()))
    kfit.fit(model, x, y, strategy=strategy, callbacks=[hook], **FIXED)
    assert max(seen) < 1e-5


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (OneDevice("CPU:0"), Mirrored(["CPU:0", "CPU:1"])),
        (OneDevice("CPU:0"), OneDevice("CPU:1")),
        (OneDevice("CPU:1"), OneDevice("CPU:0")),
        (Mirrored(["CPU:0", "CPU:1"]), OneDevice("CPU:0")),
    ],
)
def test_a_hook_may_train_the_model_on_another_device(tiny: Any, outer: Any, inner: Any) -> None:
    (x, y), models = tiny.data(16), []
    for strategies in ((None, None), (outer, inner)):
        model = tiny.model(optimizer=keras.optimizers.Adam(0.05, epsilon=1e-2))
        fits = [model.fit if s is None else kfit.Trainer(model, s).fit for s in strategies]
        once = partial(fits[1], x, y, **{**FIXED, "epochs": 1})
        fits[0](x, y, callbacks=[AtEpochEnd(once)], **FIXED)
        models.append(model)
    assert tiny.distance(*models) < 1e-5


def test_an_optimizer_of_the_model_may_be_applied_in_a_hook_on_one_replica(tiny: Any) -> None:
    (x, y), models = tiny.data(16), []
    for strategy in (None, Mirrored(["CPU:0"])):
        model = tiny.model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))

        def step(model: keras.Model = model) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            variables = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, variables), variables)

        fit = model.fit if strategy is None else kfit.Trainer(model, strategy).fit
        fit(x, y, callbacks=[AtEpochEnd(step)], **FIXED)
        models.append(model)
    assert tiny.distance(*models) < 1e-5
