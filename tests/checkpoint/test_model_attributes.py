"""What Python code in eager steps changes is saved as variables are, and goes on after a cut."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint.model_attributes import ModelAttributes
from kfit.objects import entries

STEPS = 5
X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")

counted = 0


class CutError(Exception):
    """Ends a training as a kill would."""


class Cutter(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == self._step:
            raise CutError


class Tally:
    """An object of the program's own that a layer holds."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x * (2.0 if self.calls % 4 == 0 else 1.0)


class Wavers(keras.layers.Layer):
    """A number, lists and dicts as Keras keeps them, generators and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[int] = []
        self.table: dict[str, Any] = {"most": 0, "last": [0]}
        self.kinds: set[int] = set()
        self.draw = random.Random(1)
        self.tallies = [Tally(), Tally()]
        self.noise = [keras.random.SeedGenerator(1)]

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        note(self)
        self.seen.append(self.calls)
        self.kinds.add(self.calls % 7)
        self.table["most"] = max(self.seen)
        self.table["last"][0] += len(self.kinds)
        self.last = x[0, 0]
        scale = self.draw.random() + 1e-3 * (self.table["last"][0] + len(self.seen))
        return self.tallies[self.calls % 2](x) * scale

    @property
    def state(self) -> Any:
        calls = [tally.calls for tally in self.tallies]
        table = {**self.table, "last": list(self.table["last"])}
        return self.calls, list(self.seen), table, set(self.kinds), calls, float(self.last)


def note(layer: Wavers) -> None:
    """Counts outside of the class, whose own code does not name the attribute."""
    layer.calls += 1


class Counts(keras.Model):
    """Counts its steps in an attribute, and in a variable at the top of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.wavers, self.dense = Wavers(), keras.layers.Dense(2)
        self.taken = 0

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(self.wavers(x, training=training))

    def train_step(self, data: Any) -> Any:
        global counted
        counted += 1
        self.taken += 1
        x, y = data
        return super().train_step((x * 2 if (self.taken + counted) % 3 == 0 else x, y))


class Rises(keras.losses.Loss):
    """A loss with a weight that rises, as some warm up."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0.0

    def call(self, y: Any, predicted: Any) -> Any:
        self.weight += 0.1
        return self.weight * keras.ops.mean(keras.ops.square(y - predicted), axis=-1)


def counts(**compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = Counts()
    model.compile(keras.optimizers.SGD(0.01), Rises(), **compiled)
    return model


def with_activation(**compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    tallied = keras.layers.Dense(2, activation=Tally())
    model = keras.Sequential([keras.Input((3,)), tallied])
    model.compile(keras.optimizers.SGD(0.01), "mse", **compiled)
    return model


def state_of(model: Any) -> Any:
    if not isinstance(model, Counts):
        return model.layers[0].activation.calls
    return model.taken, model.wavers.state, model.loss.weight, counted


def fit(model: keras.Model, *callbacks: Any, epochs: int = 1) -> None:
    trainer = kfit.Trainer(model, "one_device")
    trainer.fit(X, X[:, :2], batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks))


def trained(
    make: Callable[..., keras.Model], backup: Path, *callbacks: Any, **compiled: Any
) -> Any:
    """Trains as a new process would."""
    global counted
    counted = 0
    entries._PROCESSES.clear()
    model = make(**compiled)
    fit(model, BackupAndRestore(backup, save_freq=2), *callbacks, epochs=3)
    return model.get_weights(), state_of(model)


def assert_goes_on(make: Callable[..., keras.Model], folder: Path, **compiled: Any) -> None:
    weights, state = trained(make, folder / "whole", **compiled)
    for cut in (3, 7):
        backup = folder / str(cut)
        with pytest.raises(CutError):
            trained(make, backup, Cutter(cut), **compiled)
        weights_again, state_again = trained(make, backup, **compiled)
        assert state_again == state, f"cut at step {cut}"
        assert all(map(np.array_equal, weights, weights_again)), f"cut at step {cut}"


@pytest.mark.parametrize("make", [pytest.param(counts, marks=pytest.mark.long), with_activation])
def test_what_eager_steps_change_is_state(make: Callable[..., keras.Model], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The state of")
        assert_goes_on(make, tmp_path, run_eagerly=True)


@pytest.mark.long
def test_what_steps_change_while_functions_run_eagerly_is_state(tmp_path: Path) -> None:
    tf.config.run_functions_eagerly(True)
    try:
        assert_goes_on(counts, tmp_path)
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_roll_back_takes_it_back(tmp_path: Path) -> None:
    model = counts(run_eagerly=True)
    model(X)
    own = ModelAttributes(model)
    own.begin()
    first = own.state_dict()
    fit(model)
    before, state = state_of(model)[:3], own.state_dict()
    fit(model)
    own.load_state_dict(state)
    assert state_of(model)[:3] == before
    own.load_state_dict(first)
    assert (model.taken, model.wavers.calls, list(model.wavers.seen)) == (0, 0, [])


@pytest.mark.long
def test_nothing_of_a_compiled_model_nor_of_keras_is_saved(tmp_path: Path) -> None:
    layers = [keras.layers.Dropout(0.5), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    for model, compiled in ((counts(), {}), (keras.Sequential(layers), {"run_eagerly": True})):
        model.compile("adam", "mse", metrics=["mae"], **compiled)
        model(X)
        own = ModelAttributes(model)
        own.begin()
        fit(model)
        assert own.state_dict() == []


class Keeps(keras.layers.Layer):
    """Keeps what nobody can save, and what Keras' own attributes hold."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.built = True

    def call(self, x: Any) -> Any:
        self.kept = {len(x): object()}
        return x * self.scale

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_what_nobody_can_save_is_told(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), Keeps(), keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=True)
    says = r"The state of the model is not saved whole: Keeps.kept \(a TrackedDict\)"
    with pytest.warns(UserWarning, match=says) as told:
        fit(model, BackupAndRestore(tmp_path, save_freq=1))
    assert len([each for each in told if "saved whole" in str(each.message)]) == 1
