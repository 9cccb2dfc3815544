"""Several `fit`s on one data set that shuffles anew in each pass, cut off in any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import fits
from tests.sweeps import only

X = np.arange(33, dtype="float32")[:, None]


class CutOffError(Exception):
    pass


class OwnOptimizer(keras.Sequential):
    """A step with an optimizer of its own, beside the one of `compile`, which no step builds."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        self.own = keras.optimizers.Adam(0.01)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.own.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.fixture
def forgets() -> Iterator[None]:
    """Each program begins as in a process of its own."""
    yield
    fits.forget()


def program(
    folder: Path, cls: Any, strategy: Any, batches: Any, cut: tuple[int, int] | None
) -> list[Any]:
    """Three `fit`s, an evaluation after each; what they trained to, or nothing where cut off."""
    fits.forget()
    keras.utils.set_random_seed(3)
    data = batches(tf.data.Dataset.from_tensor_slices((X, X)).shuffle(50, seed=11).batch(5))
    model = cls([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    trainer = kfit.Trainer(model, strategy)
    scores = []
    for number in range(3):

        def may_cut(batch: int, logs: Any, number: int = number) -> None:
            if cut == (number, batch):
                raise CutOffError

        callbacks = [
            BackupAndRestore(folder, save_freq=3),
            keras.callbacks.LambdaCallback(on_train_batch_begin=may_cut),
        ]
        trainer.fit(data, epochs=2, validation_data=data, callbacks=callbacks, verbose=0)
        scores.append(trainer.evaluate(data, verbose=0))
    return [*model.get_weights(), *scores]


BATCHES = {
    "counted": lambda data: data,
    "of_unknown_length": lambda data: data.filter(lambda x, y: True),
    "cached_before": lambda data: data.cache().map(lambda x, y: (x + tf.random.uniform([]), y)),
}


@pytest.mark.usefixtures("forgets")
@pytest.mark.parametrize(
    ("cls", "kind", "cut"),
    only(
        [(keras.Sequential, "counted", (1, 4))],
        [
            (OwnOptimizer, "counted", (0, 4)),
            (OwnOptimizer, "of_unknown_length", (1, 4)),
            (keras.Sequential, "cached_before", (1, 4)),
            (keras.Sequential, "counted", (1, 4)),
            (keras.Sequential, "of_unknown_length", (2, 1)),
        ],
    ),
)
def test_the_order_is_that_of_the_untouched_program(
    tiny: Any, tmp_path: Path, cls: Any, kind: str, cut: tuple[int, int]
) -> None:
    what = cls, tiny.strategy(1), BATCHES[kind]
    expected = program(tmp_path / "untouched", *what, None)
    with pytest.raises(CutOffError):
        program(tmp_path / "cut", *what, cut)
    again = program(tmp_path / "cut", *what, None)
    for got, wanted in zip(again, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_data_set_that_is_used_further_in_one_process_is_warned_of(
    tiny: Any, tmp_path: Path
) -> None:
    fits.forget()
    data = tf.data.Dataset.from_tensor_slices((X, X)).shuffle(50, seed=11).batch(5)

    def fit(data: Any, cut: int | None) -> None:
        def may_cut(batch: int, logs: Any) -> None:
            if batch == cut:
                raise CutOffError

        callbacks = [
            BackupAndRestore(tmp_path, save_freq=2),
            keras.callbacks.LambdaCallback(on_train_batch_begin=may_cut),
        ]
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        fits.forget()
        trainer = kfit.Trainer(model, tiny.strategy(1))
        trainer.fit(data, epochs=1, callbacks=callbacks, verbose=0)

    with pytest.raises(CutOffError):
        fit(data, 4)
    with pytest.warns(UserWarning, match="has been begun in this process since"):
        fit(data, None)


@pytest.mark.long
def test_an_endless_data_set_goes_on_in_one_order(tiny: Any) -> None:
    """What is read ahead in the background must not begin a pass that the next `fit` misses."""
    orders = set()
    for _ in range(8):
        keras.utils.set_random_seed(3)
        data = tf.data.Dataset.from_tensor_slices((X[:13], X[:13])).shuffle(7, seed=11)
        data = data.batch(6).repeat()
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        trainer = kfit.Trainer(model, tiny.strategy(1))
        # Three batches a pass: the ninth is the last of one.
        trainer.fit(data, epochs=2, steps_per_epoch=4, verbose=0)
        orders.add(tuple(next(iter(data))[0].numpy()[:, 0]))
    assert len(orders) == 1


@pytest.mark.long
@pytest.mark.usefixtures("forgets")
def test_the_order_after_a_fit_that_a_callback_stopped(tiny: Any, tmp_path: Path) -> None:
    """It is cut off in its `on_train_end`, when no step of it is left."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    def stopped(folder: Path, *, cut: bool) -> list[Any]:
        fits.forget()
        keras.utils.set_random_seed(3)
        data = tf.data.Dataset.from_tensor_slices((X, X)).shuffle(50, seed=11).batch(5)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
        trainer = kfit.Trainer(model, tiny.strategy(1))

        def may_cut(logs: Any) -> None:
            if cut:
                raise CutOffError

        end = keras.callbacks.LambdaCallback(on_train_end=may_cut)
        backup = BackupAndRestore(folder, save_freq=3)
        trainer.fit(data, epochs=4, callbacks=[backup, Stops(), end], verbose=0)
        trainer.fit(data, epochs=1, callbacks=[BackupAndRestore(folder)], verbose=0)
        return [*model.get_weights()]

    expected = stopped(tmp_path / "untouched", cut=False)
    with pytest.raises(CutOffError):
        stopped(tmp_path / "cut", cut=True)
    again = stopped(tmp_path / "cut", cut=False)
    for got, wanted in zip(again, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
