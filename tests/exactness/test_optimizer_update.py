"""The optimizer's step: refused where no sum is meant, skipped by all replicas or by none."""

from typing import Any

import pytest
from keras import layers, losses, optimizers

import kfit
from tests.exactness.cases.added_losses import UnscaledStep
from tests.exactness.cases.data import regression
from tests.exactness.cases.models import regressor, sgd


def test_gradients_of_values_that_nobody_reduced_are_refused(tiny: Any) -> None:
    model = UnscaledStep([layers.Input((4,)), layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction=None))
    with pytest.raises(ValueError, match=r"`reduction=None`.*`self.optimizer.scale_loss\(loss\)`"):
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
