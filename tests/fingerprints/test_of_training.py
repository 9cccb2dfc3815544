"""What a process draws anew is no part of a training's fingerprint."""

from typing import Any

import keras

from kfit.fingerprints.of_training import of_model


def described(*layers: Any) -> dict[str, Any]:
    return of_model(keras.Sequential([keras.Input((4, 4, 1)), *layers]))


def test_seeds_that_layers_draw_are_left_out() -> None:
    one, other = (keras.layers.RandomCrop(2, 2) for _ in range(2))
    assert one.seed != other.seed
    assert described(one) == described(other)
    assert described(one) != described(keras.layers.RandomCrop(2, 3))
