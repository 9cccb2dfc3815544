"""Programs that leave out what they have done already, killed and run again: nothing is lost."""

from pathlib import Path
from typing import Any

import keras
import pytest

from kfit.checkpoint import at_exit
from tests.callbacks.test_around_fit import STEPS, Life, compiled, lived
from tests.sweeps import only


def made() -> keras.Model:
    """A model without generators of random numbers, which no model file keeps."""
    model = keras.Sequential([keras.Input((4,)), *map(keras.layers.Dense, (5, 3))])
    compiled(model, 0.1)
    return model


def trained(life: Life, model: keras.Model, epochs: int = 2) -> keras.Model:
    life.fit(model, epochs)
    return model


def saved(life: Life, model: keras.Model, name: str) -> keras.Model:
    model.save(life.folder / name)
    life.moment()
    return model


def show(life: Life, model: keras.Model) -> None:
    life.show([weights.tolist() for weights in model.get_weights()])


def of_a_file(life: Life) -> None:
    """Both phases have equal settings."""
    file = life.folder / "first.keras"
    if file.exists():
        model = keras.models.load_model(file)
    else:
        model = saved(life, trained(life, made()), file.name)
    show(life, trained(life, model))


def of_weights(life: Life) -> None:
    """The second phase has an optimizer of its own."""
    model, file = made(), life.folder / "first.weights.h5"
    if not file.exists():
        trained(life, model)
        model.save_weights(file)
        life.moment()
    model.load_weights(file)
    compiled(model, 0.1)
    show(life, trained(life, model))


def of_three(life: Life) -> None:
    phases = [life.folder / f"{number}.keras" for number in (2, 1)]
    done = [file for file in phases if file.exists()]
    model = keras.models.load_model(done[0]) if done else made()
    for number in range(1 + len(done), 4):
        saved(life, trained(life, model, 1), f"{number}.keras")
    show(life, model)


def folds(life: Life) -> None:
    """Cross-validation: all begin with the same weights."""
    model = made()
    begin = model.get_weights()
    for _ in range(3):
        model.set_weights(begin)
        compiled(model, 0.1)
        show(life, trained(life, model, 1))


PROGRAMS = {f.__name__: f for f in (of_a_file, of_weights, of_three, folds)}
MOMENTS = {"of_a_file": 19, "of_weights": 19, "of_three": 18, "folds": 15}
SOME = {"of_a_file": (10, 14), "of_weights": (11,), "of_three": (13,), "folds": (13,)}
"""Of two phases one ends at moment 9, and 10 is when its file is there."""


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        *only([("of_three", SOME["of_three"])], SOME.items()),
        *[
            pytest.param(name, range(1, count + 1), marks=pytest.mark.long)
            for name, count in MOMENTS.items()
        ],
    ],
)
@pytest.mark.filterwarnings("ignore:.*begins with the weights that")
def test_each_phase_is_trained_once(tmp_path: Path, name: str, moments: Any) -> None:
    program = PROGRAMS[name]
    untouched = lived(program, _made(tmp_path / "untouched"))
    for moment in moments:
        folder = _made(tmp_path / str(moment))
        first = lived(program, folder, moment)
        second = lived(program, folder)
        again = first.steps + second.steps - untouched.steps
        assert 0 <= again <= 2, f"killed at moment {moment}: {again} steps done again"
        assert second.printed == untouched.printed, f"killed at moment {moment}"


@pytest.mark.long
def test_a_program_without_a_seed_leaves_out_a_phase(tmp_path: Path) -> None:
    lived(of_a_file, tmp_path, dies_at=10 + STEPS + 1)
    with pytest.warns(
        UserWarning, match="the first `fit` .* the weights that the second one began with"
    ):
        second = lived(of_a_file, tmp_path, seed=7)
    assert 0 < second.steps <= STEPS + 1


@pytest.mark.long
def test_a_fit_that_is_not_called_again_is_kept_and_told_of(tmp_path: Path) -> None:
    def program(life: Life) -> None:
        trained(life, made())
        trained(life, made())

    def shortened(life: Life) -> None:
        trained(life, made())

    lived(program, tmp_path, dies_at=2 * STEPS + 1 + STEPS)
    lived(shortened, tmp_path)
    path = str(tmp_path / "backup")
    assert "cut off in a `fit` that this run has ended without" in at_exit._LEFT[path]
    assert path in at_exit._UNFINISHED  # so nothing is deleted
    again = lived(program, tmp_path)
    assert 0 < again.steps <= STEPS + 2
    assert path not in at_exit._LEFT
    assert path not in at_exit._UNFINISHED


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
