"""What `fit` does with its validation data before and during training."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit

OPTIONS: dict[str, Any] = {"batch_size": 4, "epochs": 2, "verbose": 0}


def test_validation_data_without_end_is_refused_before_training(tiny: Any) -> None:
    x, y = tiny.data(8)
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat()
    begun: list[Any] = []
    hook = keras.callbacks.LambdaCallback(on_train_begin=begun.append)
    with pytest.raises(ValueError, match=r"is wrong: it never ends\. Pass `validation_steps`"):
        kfit.fit(tiny.model(), x, y, validation_data=endless, callbacks=[hook], verbose=0)
    assert not begun


@pytest.mark.long
def test_a_generator_is_not_read_before_the_first_validation(tiny: Any) -> None:
    x, y = tiny.data(8)
    events: list[str] = []

    def batches() -> Any:
        while True:
            events.append("read")
            yield x, y

    hook = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: events.append("training"),
        on_epoch_end=lambda epoch, logs: events.append("epoch"),
    )
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(2))
    how = {"validation_data": batches(), "validation_steps": 2}
    trainer.fit(x, y, callbacks=[hook], **how, **OPTIONS)
    assert events[:2] == ["training", "read"]
    assert events.count("read") in range(4, 7)  # some may be fetched ahead


def test_the_models_own_evaluate_gets_the_sizes_of_the_validation(tiny: Any) -> None:
    seen: list[Any] = []

    class Own(keras.Sequential):
        def evaluate(self, **kwargs: Any) -> Any:
            named = ("x", "y", "sample_weight", "batch_size", "steps", "return_dict")
            seen.append([kwargs[name] for name in named])
            return {"loss": 1.5}

    x, y = tiny.data(8)
    weights = np.ones(8, "float32")
    model = Own([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    how = {"validation_batch_size": 2, "validation_steps": 3}
    history = kfit.Trainer(model, "one_device").fit(
        x, y, validation_data=(x, y, weights), **how, **OPTIONS
    )
    assert history.history["val_loss"] == [1.5, 1.5]
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[0][0], x)
    np.testing.assert_array_equal(seen[0][1], y)
    np.testing.assert_array_equal(seen[0][2], weights)
    assert seen[0][3:] == [2, 3, True]
