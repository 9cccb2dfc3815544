"""What a hook may do with a variable that is on several devices."""

from typing import Any

import keras
import numpy as np

import kfit


def test_numpy_takes_the_variables_of_metrics_in_hooks(tiny: Any) -> None:
    model = tiny.model()
    found: list[float] = []

    def read(epoch: int, logs: Any) -> None:
        count = model.metrics[0].count
        found.extend([float(np.array(count.value)), float(np.asarray(count.value, "float64"))])
        found.append(float(count.numpy()))

    x, y = tiny.data()
    hook = keras.callbacks.LambdaCallback(on_epoch_end=read)
    kfit.Trainer(model, tiny.strategy(2)).fit(x, y, verbose=0, callbacks=[hook])
    assert found == [len(x)] * 3
