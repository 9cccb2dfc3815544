"""Programs of several `fit`s, interrupted and run again in the same process, as in a notebook."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import fits

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
STEPS = 4
"""The steps of an epoch."""


class Life:
    """Calls `fit` with one directory; is interrupted after so many steps."""

    def __init__(self, folder: Path, dies_after: int | None = None) -> None:
        self.folder, self.dies_after = folder, dies_after
        self.steps = 0

    def fit(self, model: keras.Model, epochs: int, x: Any = X) -> None:
        def step(batch: int, logs: Any) -> None:
            self.steps += 1
            if self.steps == self.dies_after:
                raise KeyboardInterrupt  # as the stop button does

        counter = keras.callbacks.LambdaCallback(on_train_batch_end=step)
        backup = BackupAndRestore(self.folder, save_freq=1)
        kfit.fit(model, x, Y, 4, epochs, verbose=0, callbacks=[backup, counter])


def made(units: int = 5, *, is_built: bool = True) -> keras.Model:
    layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers] if is_built else layers)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def two(life: Life) -> Any:
    keras.utils.set_random_seed(1)
    model = made()
    life.fit(model, 2)
    life.fit(model, 3)
    return model.get_weights()


def unbuilt(life: Life) -> Any:
    keras.utils.set_random_seed(1)
    model = made(is_built=False)
    life.fit(model, 2)
    life.fit(model, 3)
    return model.get_weights()


def of_two_models(life: Life) -> Any:
    keras.utils.set_random_seed(1)
    models = [made(), made(4)]
    for model in models:
        life.fit(model, 2)
    return [weights for model in models for weights in model.get_weights()]


def of_one_kind(life: Life) -> Any:
    keras.utils.set_random_seed(1)
    models = [made(), made()]
    for model in models:
        life.fit(model, 2)
    return [weights for model in models for weights in model.get_weights()]


def folds(life: Life) -> Any:
    """Cross-validation on three parts of the data: each begins with the same weights."""
    found = []
    for fold in range(3):
        keras.utils.set_random_seed(1)
        model = made()
        life.fit(model, 1, X + fold)
        found += model.get_weights()
    return found


PROGRAMS = (two, unbuilt, of_two_models, of_one_kind, folds)


AFTER = [pytest.param(3, marks=pytest.mark.long), pytest.param(2 * STEPS, marks=pytest.mark.long)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("after", [*AFTER, 2 * STEPS + 2])
def test_the_whole_program_is_run_again(
    tmp_path: Path, program: Callable[[Life], Any], after: int
) -> None:
    untouched = Life(tmp_path / "untouched")
    expected = program(untouched)
    with pytest.raises(KeyboardInterrupt):
        program(Life(tmp_path / "backup", after))
    again = Life(tmp_path / "backup")
    for weights, value in zip(program(again), expected, strict=True):
        np.testing.assert_array_equal(weights, value)
    assert 0 <= after + again.steps - untouched.steps <= 1


def test_a_program_without_a_seed_is_known_by_its_steps(tmp_path: Path) -> None:
    """The model that is made anew has other weights, and has taken no steps."""
    with pytest.raises(KeyboardInterrupt):
        _in_two_cells(Life(tmp_path, 2 * STEPS + 2))
    again = Life(tmp_path)
    model = _in_two_cells(again)
    assert int(model.optimizer.iterations) == 5 * STEPS
    assert again.steps == 3 * STEPS - 1, "the step of the interruption is not saved"


def _in_two_cells(life: Life) -> keras.Model:
    model = made()
    life.fit(model, 2)
    life.fit(model, 3)
    return model


def _of_a_second_phase(life: Life, model: keras.Model, file: Path) -> keras.Model:
    """A phase that is tried until it succeeds, each time from the file of the first phase."""
    model = keras.models.load_model(file)
    life.fit(model, 3)
    return model


def test_only_the_interrupted_fit_is_repeated(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = made()
    life = Life(tmp_path / "backup", 2 * STEPS + 2)
    life.fit(model, 2)
    with pytest.raises(KeyboardInterrupt):
        life.fit(model, 3)
    taken = life.steps
    life.fit(model, 3)
    assert life.steps - taken == 3 * STEPS - 1
    assert fits.program_of(str(tmp_path / "backup")).fits == 2
    for weights, value in zip(model.get_weights(), two(Life(tmp_path / "two")), strict=True):
        np.testing.assert_array_equal(weights, value)


def test_a_phase_that_loads_a_file_is_repeated(tmp_path: Path) -> None:
    """Its model is another object each time, and has taken the steps of the first phase."""
    keras.utils.set_random_seed(1)
    model, file = made(), tmp_path / "first.keras"
    life = Life(tmp_path / "backup", 2 * STEPS + 2)
    life.fit(model, 2)
    model.save(file)
    with pytest.raises(KeyboardInterrupt):
        _of_a_second_phase(life, model, file)
    taken = life.steps
    model = _of_a_second_phase(life, model, file)
    assert life.steps - taken == 3 * STEPS - 1
    assert int(model.optimizer.iterations) == 5 * STEPS


def test_one_fold_is_repeated(tmp_path: Path) -> None:
    """A function that makes its model and is called again continues the interrupted `fit`."""

    def of_one_fold(life: Life, fold: int) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = made()
        life.fit(model, 1, X + fold)
        return model

    life = Life(tmp_path, STEPS + 2)
    of_one_fold(life, 0)
    with pytest.raises(KeyboardInterrupt):
        of_one_fold(life, 1)
    taken = life.steps
    of_one_fold(life, 1)
    assert life.steps - taken == STEPS - 1
