"""What layers add to the loss counts once, in whichever way a step runs."""

from typing import Any

import keras
import pytest

import kfit
from tests.exactness.cases.added_losses import added_values_of_examples
from tests.exactness.cases.models import sgd
from tests.sweeps import only


@pytest.mark.parametrize("way", only(["run_eagerly"], ["run_eagerly", "jit_compile"]))
def test_added_values_count_once_however_a_step_runs(tiny: Any, way: str) -> None:
    trained = []
    for strategy in (1, 2):
        keras.utils.set_random_seed(1)
        model, data = added_values_of_examples(10)
        model.compile(sgd(), "mse", **{way: True})
        kfit.Trainer(model, tiny.strategy(strategy)).fit(*data, shuffle=False, verbose=0)
        trained.append(model)
    assert tiny.distance(*trained) < 1e-5
