"""Variables made on the devices are as trainable as before, and can be added up."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute import new_variables
from kfit.internals import variables
from tests.distribute.test_placement import with_frozen_part

FIXED = {"batch_size": 8, "shuffle": False, "verbose": 0}


def test_nothing_is_thawed_for_others_while_it_is_made_or_moved(tiny: Any) -> None:
    x, y = tiny.data(8)
    part, model = with_frozen_part()
    told: list[bool] = []

    def watched(variable: keras.Variable, value: Any) -> None:
        told.extend(variable.trainable for each in part.variables if each is variable)
        variables.make_tf_variable(variable, value)

    def ones(shape: Any, dtype: Any) -> Any:
        told.append(late.kernel.trainable)
        return tf.ones(shape, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_variables, "make_tf_variable", watched)
        kfit.Trainer(model, tiny.strategy(2)).fit(x, y, **FIXED)
    late = keras.layers.Dense(5, kernel_initializer=ones, trainable=False)
    built_late = keras.Sequential([late, keras.layers.Dense(3)])
    built_late.compile("sgd", model.loss)
    kfit.Trainer(built_late, tiny.strategy(2)).fit(x, y, **FIXED)
    assert len(told) > len(part.variables)
    assert not any(told)
    for thawed in (model, built_late):
        layer, before = thawed.layers[0], thawed.layers[0].get_weights()
        layer.trainable = True
        thawed.compile("sgd", model.loss)
        kfit.Trainer(thawed, tiny.strategy(2)).fit(x, y, **FIXED)
        assert not np.allclose(before[0], layer.get_weights()[0])


def test_a_bool_of_a_metric_cannot_be_added_up(tiny: Any) -> None:
    class Seen(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="seen")
            self.any = self.add_variable((), initializer="zeros", dtype="bool", name="any")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.any.assign(keras.ops.logical_or(self.any, keras.ops.any(y_pred > 0)))

        def result(self) -> Any:
            return keras.ops.cast(self.any, "float32")

        def reset_state(self) -> None:
            self.any.assign(False)

    x, y = tiny.data(16)
    model = tiny.model(metrics=[Seen()])
    kfit.Trainer(model, "one_device").fit(x, y, **FIXED)
    with pytest.raises(ValueError, match="'seen/any' has the dtype 'bool', but the values of"):
        kfit.Trainer(model, tiny.strategy(2)).fit(x, y, **FIXED)
    assert kfit.Trainer(model, "one_device").fit(x, y, **FIXED).history["seen"]


def test_integers_of_a_metric_have_no_mean(tiny: Any) -> None:
    class Steps(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="steps")
            self.taken = self.add_variable(
                (), initializer="zeros", dtype="int32", aggregation="mean", name="taken"
            )

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.taken.assign(self.taken + 1)

        def result(self) -> Any:
            return keras.ops.cast(self.taken, "float32")

    x, y = tiny.data(16)
    model = tiny.model(metrics=[Steps()])
    with pytest.raises(ValueError, match="'steps/taken' has the dtype 'int32' and is declared"):
        kfit.Trainer(model, tiny.strategy(2)).fit(x, y, **FIXED)
