"""Programs of several `fit`s, interrupted and run again in the same process, as in a notebook."""

import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import fits
from kfit.training.which_fit import Beginner
from tests.sweeps import only

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
STEPS = 4
"""The steps of an epoch."""


@pytest.fixture(autouse=True)
def nothing_before() -> None:
    """A `fit` that another test has left unfinished would be the last interrupted one."""
    fits.forget()


class Life:
    """Calls `fit` with one directory; is interrupted after so many steps."""

    def __init__(self, folder: Path, dies_after: int | None = None) -> None:
        self.folder, self.dies_after = folder, dies_after
        self.steps = 0
        self.save_freq: Any = 1

    def fit(
        self,
        model: keras.Model,
        epochs: int,
        x: Any = X,
        others: Sequence[Any] = (),
        folder: str = "",
    ) -> None:
        def step(batch: int, logs: Any) -> None:
            self.steps += 1
            if self.steps == self.dies_after:
                raise KeyboardInterrupt  # as the stop button does

        counter = keras.callbacks.LambdaCallback(on_train_batch_end=step)
        backup = BackupAndRestore(self.folder / folder, save_freq=self.save_freq)
        kfit.fit(model, x, Y, 4, epochs, verbose=0, callbacks=[backup, counter, *others])


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


@pytest.mark.parametrize(
    "program", only([two, of_two_models, folds], PROGRAMS), ids=lambda program: program.__name__
)
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


TRIALS = """
results = []
for rate in (0.9, 0.5, 0.7):
    keras.utils.set_random_seed(1)
    model = made()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, old: rate * old)
    life.fit(model, 2, others=[schedule])
    results.append(model.get_weights())
"""
"""A cell of trials that differ only in a callback, of which a snapshot's settings say nothing."""


def in_cells(life: Life, *cells: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs code as cells of a notebook, each of which is compiled when it is run.

    Args:
        life: What calls `fit`.
        cells: The code of the cells.
        names: The names that earlier cells have defined.
    """
    names = {} if names is None else names
    names |= {"keras": keras, "kfit": kfit, "made": made, "life": life, "time": time}
    for cell in cells:
        exec(compile(cell, "<cell>", "exec"), names)
    return names


def test_a_cell_of_trials_is_run_again(tmp_path: Path) -> None:
    expected = in_cells(Life(tmp_path / "untouched"), TRIALS)["results"]
    with pytest.raises(KeyboardInterrupt):
        in_cells(Life(tmp_path / "backup", 4 * STEPS + 2), TRIALS)
    again = Life(tmp_path / "backup")
    found = in_cells(again, TRIALS)["results"]
    for trial, other in zip(found, expected, strict=True):
        for weights, value in zip(trial, other, strict=True):
            np.testing.assert_array_equal(weights, value)
    assert again.steps == 2 * STEPS - 1


def test_a_later_run_in_the_same_process_is_the_one_that_is_repeated(tmp_path: Path) -> None:
    """The `fit`s of a run that had come to its end are none of it."""
    life = Life(tmp_path)
    in_cells(life, TRIALS)
    life.dies_after = life.steps + 2 * STEPS + 2
    with pytest.raises(KeyboardInterrupt):
        in_cells(life, TRIALS)
    taken = life.steps
    in_cells(life, TRIALS)
    assert life.steps - taken == 4 * STEPS - 1
    assert fits.program_of(str(tmp_path)).fits == 6


def test_a_loop_that_goes_on_after_an_error_is_warned(tmp_path: Path) -> None:
    life = Life(tmp_path, STEPS + 2)
    keras.utils.set_random_seed(1)
    life.fit(made(), 1)
    with pytest.raises(KeyboardInterrupt):
        life.fit(made(), 2)
    with pytest.warns(UserWarning, match="the second `fit` .* another model and other weights"):
        life.fit(made(), 2)


def test_a_retry_among_fits_that_begin_alike_is_warned(tmp_path: Path) -> None:
    def trial(rate: float) -> None:
        keras.utils.set_random_seed(1)
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, old: rate * old)
        life.fit(made(), 2, others=[schedule])

    life = Life(tmp_path, 2 * STEPS + 2)
    trial(0.9)
    with pytest.raises(KeyboardInterrupt):
        trial(0.5)
    with pytest.warns(UserWarning, match="others of the program began in the same way"):
        trial(0.5)
    assert life.steps == 4 * STEPS + 1


TRIAL = """
def trial(rate):
    keras.utils.set_random_seed(1)
    model = made()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, old: rate * old)
    life.fit(model, 2, others=[schedule])
    models[rate] = model
"""
TWO_MODELS = """
keras.utils.set_random_seed(1)
models[1], models[2] = made(), made()
"""
PROGRAMS_IN_CELLS = {
    "statements": [TRIAL, "trial(0.9)\ntrial(0.5)\ntrial(0.7)"],
    "cells": [TRIAL, "trial(0.9)", "trial(0.5)", "trial(0.7)"],
    "alternating": [
        TWO_MODELS,
        "for _ in range(2):\n    life.fit(models[1], 1)\n    life.fit(models[2], 1)",
    ],
    "one_model": [TWO_MODELS, "for _ in range(3):\n    life.fit(models[1], 1)"],
}
"""Cells of a notebook, by name."""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Any]:
    """Runs cells in IPython, which compiles each statement of a cell by itself."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactive.InteractiveShell.instance()

    def run(life: Life, cells: Sequence[str]) -> dict[Any, Any]:
        shell.user_ns.setdefault("models", {})
        shell.user_ns |= {"keras": keras, "made": made, "life": life}
        for cell in cells:
            found = shell.run_cell(cell, store_history=True)
            if not found.success:
                break
        models = shell.user_ns["models"]
        return {name: model.get_weights() for name, model in models.items()}

    yield run
    interactive.InteractiveShell.clear_instance()


@pytest.mark.parametrize("name", only(["cells", "alternating"], PROGRAMS_IN_CELLS))
@pytest.mark.parametrize("from_cell", only([1], [0, 1]))
def test_cells_of_a_notebook_are_run_again(
    tmp_path: Path, notebook: Any, name: str, from_cell: int
) -> None:
    """All of them, or those after the one that makes models."""
    cells = PROGRAMS_IN_CELLS[name]
    expected = notebook(whole := Life(tmp_path / "whole"), cells)
    life = Life(tmp_path / "backup", whole.steps - 2)
    notebook(life, cells)
    assert life.steps == whole.steps - 2, "not interrupted"
    found = notebook(life, cells[from_cell:])
    for model, weights in expected.items():
        for value, other in zip(found[model], weights, strict=True):
            np.testing.assert_array_equal(value, other)
    assert life.steps == whole.steps + 1, "the step of the interruption is not saved"


MODELS = "keras.utils.set_random_seed(1)\nm, other = made(), made()"
IN_TURN = "for _ in range(2):\n    life.fit(m, 1)\n    life.fit(other, 1)"
IN_TWO_FOLDERS = IN_TURN.replace("m, 1", "m, 1, folder='a'").replace("r, 1", "r, 1, folder='b'")
TRIAL_CELLS = PROGRAMS_IN_CELLS["cells"]
FIRST, SECOND, THIRD = TRIAL_CELLS[1:]
AND_GETS = "and gets the weights of its last snapshot"
EARLIER_TRIAL = "others of the program began in the same way"


class Again(NamedTuple):
    """Cells that are run after others were interrupted.

    Attributes:
        cells: The cells that are interrupted.
        dies_after: After how many steps.
        again: The cells that are run then.
        steps: How many steps these take.
        doubt: What kfit warns of; empty if it does not warn.
    """

    cells: list[str]
    dies_after: int
    again: list[str]
    steps: int
    doubt: str = ""


AGAIN = {
    "one_left_out": Again(TRIAL_CELLS, 4 * STEPS + 2, [FIRST, THIRD], 2 * STEPS - 1),
    "one_twice": Again(
        TRIAL_CELLS, 4 * STEPS + 2, [FIRST, FIRST, SECOND, SECOND, THIRD], 2 * STEPS - 1
    ),
    "an_edited_loop_of_two_models": Again(
        [MODELS, IN_TURN], 3 * STEPS + 2, [f"# again\n{IN_TURN}"], STEPS - 1, "other lines"
    ),
    "two_folders": Again([MODELS, IN_TWO_FOLDERS], 3 * STEPS + 2, [IN_TWO_FOLDERS], STEPS - 1),
    "two_folders_in_cells": Again(
        [MODELS, IN_TWO_FOLDERS], 3 * STEPS + 2, [MODELS, IN_TWO_FOLDERS], STEPS - 1
    ),
}


@pytest.mark.parametrize(
    "name", only(["one_twice", "an_edited_loop_of_two_models", "two_folders"], AGAIN)
)
def test_cells_in_another_order(tmp_path: Path, name: str) -> None:
    cells, dies_after, again, steps, doubt = AGAIN[name]
    new: dict[str, Any] = {"models": {}}
    expected = in_cells(Life(tmp_path / "untouched"), *cells, names=new)
    names: dict[str, Any] = {"models": {}}
    with pytest.raises(KeyboardInterrupt):
        in_cells(Life(tmp_path / "backup", dies_after), *cells, names=names)
    life = Life(tmp_path / "backup")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        found = in_cells(life, *again, names=names)
    assert [doubt in str(each.message) for each in told] == [True] * bool(doubt)
    assert life.steps == steps
    for one, other in zip(weights_of(found), weights_of(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def weights_of(names: dict[str, Any]) -> list[np.ndarray]:
    """Returns the weights of all models that cells have made."""
    models = [*names["models"].values(), *(names[name] for name in ("m", "other") if name in names)]
    return [weights for model in models for weights in model.get_weights()]


@pytest.mark.parametrize("listed", ["trial(0.7)", "for rate in (0.5, 0.7): trial(rate)"])
def test_trials_that_are_cut_to_those_left_are_warned(tmp_path: Path, listed: str) -> None:
    """Nothing of a trial tells it from others but the callback that sets its rate."""
    names: dict[str, Any] = {"models": {}}
    life = Life(tmp_path, 4 * STEPS + 2)
    with pytest.raises(KeyboardInterrupt):
        in_cells(life, TRIAL, "for rate in (0.9, 0.5, 0.7): trial(rate)", names=names)
    with pytest.warns(
        UserWarning, match=rf"the third .* taken for the first one {AND_GETS}, but {EARLIER_TRIAL}"
    ):
        in_cells(life, listed, names=names)


def test_an_interruption_in_another_directory_is_none_of_a_loop(tmp_path: Path) -> None:
    """The trials are alike, but one run of a loop repeats none of its own."""
    with pytest.raises(KeyboardInterrupt):
        Life(tmp_path / "given_up", 2).fit(made(), 1)
    names: dict[str, Any] = {"models": {}}
    life = Life(tmp_path / "backup")
    in_cells(life, TRIAL, "for rate in (0.9, 0.5): trial(rate)", names=names)
    in_cells(life, "trial(0.7)", names=names)
    assert life.steps == 6 * STEPS


PHASES = """
def phases():
    life.fit(m, 2)
    life.fit(m, 3)

while True:
    try:
        phases()
        break
    except KeyboardInterrupt:
        pass
"""


def test_phases_of_one_model_are_tried_again(tmp_path: Path) -> None:
    expected = two(Life(tmp_path / "untouched"))
    life = Life(tmp_path / "backup", 3 * STEPS)
    with pytest.warns(
        UserWarning, match=f"taken for the first one {AND_GETS}, but the program has caught the"
    ):
        found = in_cells(life, "keras.utils.set_random_seed(1)\nm = made()", PHASES)
    for one, other in zip(found["m"].get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert life.steps == 5 * STEPS + 1


def test_another_model_in_a_later_cell_is_warned(tmp_path: Path) -> None:
    names: dict[str, Any] = {"models": {}}
    caught = "try: life.fit(m, 2)\nexcept KeyboardInterrupt: pass"
    in_cells(life := Life(tmp_path, STEPS + 2), MODELS, caught, names=names)
    with pytest.warns(UserWarning, match="for it .*, but it begins with another model and other"):
        in_cells(life, "life.fit(other, 2)", names=names)


LIMITED = """
for rate in (1, 2):
    keras.utils.set_random_seed(1)
    slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.1))
    life.fit(made(), 100, others=[slow, kfit.callbacks.TimeLimit(0.5)])
"""


def test_trials_of_a_limited_time_are_warned(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=f"is taken for it {AND_GETS}, but it begins with another model"
    ):
        in_cells(Life(tmp_path), LIMITED)


def test_a_signal_in_the_last_hook_does_not_train_once_more(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model, life = made(), Life(tmp_path)
    stop = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        life.fit(model, 2, others=[stop])
    life.fit(model, 2)
    assert life.steps == 2 * STEPS == int(model.optimizer.iterations)


def test_a_fit_without_a_snapshot_is_told_to_begin_with_what_is_left(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model, life = made(), Life(tmp_path, 2)
    life.save_freq = "epoch"
    with pytest.raises(KeyboardInterrupt):
        life.fit(model, 1)
    with pytest.warns(UserWarning, match="first `fit` .* before its first snapshot"):
        life.fit(model, 1)
    assert int(model.optimizer.iterations) == STEPS + 2


def test_an_error_before_it_is_known_which_fit_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def number(*_: Any) -> int:
        raise OSError("the disk is away for a moment")

    model, life = made(), Life(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Beginner, "number", number)
        with pytest.raises(OSError, match="for a moment"):
            life.fit(model, 1)
    life.fit(model, 1)
    life.fit(model, 1)
    assert life.steps == 2 * STEPS


def test_a_new_optimizer_does_not_hide_what_is_left(tmp_path: Path) -> None:
    model, life = made(), Life(tmp_path, 2)
    life.save_freq = "epoch"
    with pytest.raises(KeyboardInterrupt):
        life.fit(model, 1)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    with pytest.warns(UserWarning, match="first `fit` .* before its first snapshot"):
        life.fit(model, 1)
