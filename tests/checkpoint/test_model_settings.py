"""Settings of the model that a hook changes are told by name, and what steps note is not."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore
from tests.sweeps import only

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


class Scales(keras.layers.Layer):
    """Notes what it sees in its `call`, and has a setting that a method of its own sets."""

    def __init__(self) -> None:
        super().__init__()
        self.traces, self.size, self._scale = 0, None, 1.0

    def call(self, x: Any) -> Any:
        self.traces += 1
        self.note(x)
        return x * self._scale

    def note(self, x: Any) -> None:
        self.size = x.shape[-1]

    def set_scale(self, scale: float) -> None:
        self._scale = scale


class Weighs(keras.losses.Loss):
    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0

    def call(self, y: Any, predicted: Any) -> Any:
        return self.weight * keras.ops.mean(keras.ops.square(y - predicted), axis=-1)


def anneals(model: keras.Model, loss: Any) -> None:
    model.layers[0].rate *= 0.5
    model.make_train_function(force=True)


def scales(model: keras.Model, loss: Any) -> None:
    model.layers[1].set_scale(2.0)


def weighs(model: keras.Model, loss: Any) -> None:
    loss.weight *= 0.5


def decays(model: keras.Model, loss: Any) -> None:
    model.optimizer.weight_decay = 0.1


def counts(model: keras.Model, loss: Any) -> None:
    model.counter = getattr(model, "counter", 0) + 1


def harmless(model: keras.Model, loss: Any) -> None:
    model.optimizer.learning_rate = 0.01
    model.layers[1].trainable = False
    model.stop_training = False
    model.evaluate(X, X[:, :1], verbose=0)
    model.make_train_function(force=True)


def told(hook: Callable[[keras.Model, Any], None], folder: Path, **compiled: Any) -> list[str]:
    model = keras.Sequential([keras.layers.Dropout(0.5), Scales(), keras.layers.Dense(1)])
    loss = Weighs()
    model.compile("sgd", loss, metrics=["mae"], **compiled)
    hooks = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: hook(model, loss))
    backup = BackupAndRestore(folder, save_freq=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfit.fit(model, X, X[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[hooks, backup])
    found = [str(each.message) for each in caught if "A callback has changed" in str(each.message)]
    return [text.partition("A callback has changed ")[2].partition(" in the ")[0] for text in found]


@pytest.mark.parametrize(
    ("hook", "name"),
    only(
        [(scales, "Scales._scale")],
        [
            (anneals, "Dropout.rate"),
            (scales, "Scales._scale"),
            (weighs, "Weighs.weight"),
            (decays, "SGD.weight_decay"),
            (counts, "Sequential.counter"),
        ],
    ),
)
def test_a_setting_that_a_hook_changes_is_told_once(tmp_path: Path, hook: Any, name: str) -> None:
    assert told(hook, tmp_path) == [name]


@pytest.mark.long
def test_so_is_one_of_keras_in_eager_steps_which_save_those_of_the_program(tmp_path: Path) -> None:
    assert told(anneals, tmp_path / "keras", run_eagerly=True) == ["Dropout.rate"]
    assert told(scales, tmp_path / "own", run_eagerly=True) == []


@pytest.mark.parametrize("eager", only([False], [False, True]))
def test_what_is_no_setting_is_not_told(tmp_path: Path, eager: bool) -> None:
    assert told(harmless, tmp_path, run_eagerly=eager) == []
