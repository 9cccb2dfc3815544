"""An optimizer of the program's own that changes gradients counts as code to be read."""

import warnings
from typing import Any

import keras
import pytest
import tensorflow as tf

import kfit
from kfit.exactness.own_code import has_own_code, takes_one_loss
from tests.sweeps import sweep

FIXED: Any = {"batch_size": 7, "shuffle": False, "verbose": 0}


class Clips(keras.optimizers.SGD):
    """Clips the gradients before Keras' own update gets them."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply([tf.clip_by_norm(grad, 0.1) for grad in grads], trainable_variables)


class Centers(keras.optimizers.SGD):
    """Changes gradients where they are summed already."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(tf.clip_by_norm(gradient, 0.1), variable, learning_rate)


def with_own_method() -> Any:
    optimizer = keras.optimizers.SGD(0.5)
    old = optimizer.apply_gradients

    def apply_gradients(pairs: Any) -> Any:
        return old([(tf.clip_by_norm(grad, 0.1), variable) for grad, variable in pairs])

    optimizer.apply_gradients = apply_gradients
    return optimizer


@pytest.mark.parametrize("make", sweep([lambda: Clips(0.5), with_own_method]))
def test_gradients_that_an_optimizer_changes_are_those_of_the_batch(tiny: Any, make: Any) -> None:
    (x, y), one, two = tiny.data(17), *(tiny.model(optimizer=make()) for _ in range(2))
    assert has_own_code(one)
    assert not takes_one_loss(one)
    one.run_eagerly = True  # the same numbers, without the time to trace
    one.fit(x, y, **FIXED)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        kfit.Trainer(two, tiny.strategy(2)).fit(x, y, **FIXED)
    assert tiny.distance(one, two) < 1e-5


def test_what_an_optimizer_changes_in_eager_steps_is_warned_of(tiny: Any) -> None:
    model = tiny.model(optimizer=Clips(0.5), run_eagerly=True)
    with pytest.warns(UserWarning, match=r"metric or optimizer .* `apply` changes gradients only"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*tiny.data(8), verbose=0)


def test_changes_of_summed_gradients_need_no_reading(tiny: Any) -> None:
    model = tiny.model(optimizer=Centers(0.5))
    assert not has_own_code(model)
    assert takes_one_loss(model)
    assert has_own_code(tiny.model(optimizer=keras.optimizers.LossScaleOptimizer(Clips(0.5))))
