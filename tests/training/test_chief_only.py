"""What tasks that are not the chief leave out, and that calls within calls leave it out as well."""

from pathlib import Path
from typing import Any

import keras

from kfit.training.chief_only import saving_nothing


def model() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def saves(trained: Any, path: Path) -> bool:
    trained.save(path)
    trained.save_weights(path.with_suffix(".weights.h5"))
    return path.exists() or path.with_suffix(".weights.h5").exists()


def test_a_call_within_a_call_saves_nothing_and_neither_does_what_follows_it(
    tmp_path: Path,
) -> None:
    trained = model()
    with saving_nothing(trained):
        with saving_nothing(trained):
            assert not saves(trained, tmp_path / "inner.keras")
        assert not saves(trained, tmp_path / "outer.keras")
    assert not {"save", "save_weights", "export"} & set(vars(trained))
    assert saves(trained, tmp_path / "after.keras")


def test_a_save_of_the_models_own_is_there_again() -> None:
    trained = model()
    object.__setattr__(trained, "save", lambda path: "own")
    with saving_nothing(trained):
        assert trained.save("nowhere") is None
    assert trained.save("nowhere") == "own"
