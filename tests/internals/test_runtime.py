"""Training while TensorFlow's operations must be deterministic, so that no graph reads a clock."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import kfit


@pytest.fixture(autouse=True)
def deterministic() -> Any:
    tf.config.experimental.enable_op_determinism()
    yield
    config.disable_op_determinism()


@pytest.mark.parametrize("profile", [False, pytest.param(True, marks=pytest.mark.long)])
def test_data_that_is_waited_for_is_trained_on(tiny: Any, profile: bool) -> None:
    x, y = tiny.data(24)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    model = tiny.model()
    trainer = kfit.Trainer(model, tiny.strategy(2), seed=1)
    history = trainer.fit(data, epochs=2, verbose=0, profile=profile).history
    expected = tiny.model().fit(data, epochs=2, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    assert trainer.report().steps == 12
