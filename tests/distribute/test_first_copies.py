"""Functions that were traced before a call of kfit, or in its hooks, see the present values."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.first_copies import FirstCopies, may_be_one
from tests.sweeps import only

FIXED = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
Fit = Callable[..., Any]


def model_of(is_built: bool) -> keras.Model:
    keras.utils.set_random_seed(1)
    first = [keras.Input((4,))] if is_built else []
    layers = [keras.layers.Dense(5), keras.layers.BatchNormalization(synchronized=True)]
    model = keras.Sequential([*first, *layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def program(fit: Fit, tiny: Any, is_built: bool) -> list[Any]:
    """Trains twice, and reads the model by functions of TensorFlow and Keras at all times."""
    model, seen = model_of(is_built), list[Any]()
    x, y = tiny.data(24)
    outputs = [tf.function(lambda z: model(z, training=False)) for _ in range(3)]

    def look(*functions: Any) -> None:
        seen.extend(function(x[:2]) for function in functions)
        # Keras' own methods, which keep what they have traced.
        seen.append(keras.Model.evaluate(model, x, y, verbose=0))
        seen.append(keras.Model.predict(model, x, verbose=0))

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            look(*outputs[:2])

    if is_built:
        look(outputs[0])
    for _ in range(2):
        fit(model, x, y, **FIXED, callbacks=[Looks()])
        look(*outputs)
        model.set_weights([weights * 0.9 for weights in model.get_weights()])
        look(*outputs)
        look()  # once more, since metrics are added up
    return [np.asarray(each) for each in [*seen, *model.get_weights()]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_built", "begins_anew"),
    only([(False, False)], itertools.product([True, False], [True, False])),
)
def test_what_was_traced_sees_the_present_values(
    tiny: Any, is_built: bool, begins_anew: bool
) -> None:
    strategy = tiny.strategy(2)
    trainers: list[kfit.Trainer] = []

    def fit(model: keras.Model, *args: Any, **kwargs: Any) -> None:
        if begins_anew or not trainers:
            trainers.append(kfit.Trainer(model, strategy))
        trainers[-1].fit(*args, **kwargs)

    expected = program(keras.Model.fit, tiny, is_built)
    for found, wanted in zip(program(fit, tiny, is_built), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_ordinary_variable_is_the_first_copy(tiny: Any) -> None:
    model = model_of(True)
    plain = [variable.value for variable in model.trainable_variables]
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.extend(
            variable.value.values[0] for variable in model.trainable_variables
        )
    )
    kfit.Trainer(model, tiny.strategy(2)).fit(
        *tiny.data(24), **{**FIXED, "epochs": 1}, callbacks=[look]
    )
    assert len(seen) == len(plain)
    for copy, variable, now in zip(seen, plain, model.trainable_variables, strict=True):
        assert copy is variable is now.value
        assert not hasattr(variable.handle, "_distributed_container")  # it is ordinary again


def test_a_variable_on_another_device_is_no_copy() -> None:
    plain = tf.Variable([1.0, 2.0])
    strategy = tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"])
    copies = FirstCopies()
    with copies.taken(), strategy.scope():
        copies.give(plain)
        made = tf.Variable([3.0, 4.0])
    first, second = made.values
    assert not may_be_one(plain, first)
    assert first is not plain
    assert [plain.numpy().tolist(), first.numpy().tolist()] == [[1, 2], [3, 4]]
    assert not may_be_one(made, made)
    assert may_be_one(second, second)


class Prunes(keras.callbacks.Callback):
    """Sets small weights to zero by a function that is traced at its first call."""

    @tf.function
    def prune(self) -> None:
        for weights in self.model.trainable_variables:
            weights.assign(tf.where(tf.abs(weights) < 0.2, 0.0, weights))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.prune()


def test_all_replicas_get_what_a_function_of_an_earlier_call_assigns(tiny: Any) -> None:
    x, y = tiny.data(24)

    def trained(fit: Fit) -> list[Any]:
        model, prunes = model_of(is_built=True), Prunes()
        prunes.set_model(model)
        prunes.prune()
        for _ in range(2):  # each `fit` of a Trainer has other copies
            fit(model, x, y, **FIXED, callbacks=[prunes])
        return list(model.get_weights())

    expected = trained(keras.Model.fit)
    assert any((weights == 0).any() for weights in expected[:1])
    strategy = tiny.strategy(2)
    got = trained(lambda model, *data, **given: kfit.Trainer(model, strategy).fit(*data, **given))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
