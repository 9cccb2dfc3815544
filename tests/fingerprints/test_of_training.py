"""What a process draws anew is no part of a training's fingerprint."""

import time
from typing import Any

import keras

from kfit.fingerprints import compare, differing_attributes
from kfit.fingerprints.of_training import fingerprint_of, of_model


def described(*layers: Any) -> dict[str, Any]:
    return of_model(keras.Sequential([keras.Input((4, 4, 1)), *layers]))


def test_seeds_that_layers_draw_are_left_out() -> None:
    one, other = (keras.layers.RandomCrop(2, 2) for _ in range(2))
    assert one.seed != other.seed
    assert described(one) == described(other)
    assert described(one) != described(keras.layers.RandomCrop(2, 3))


def test_seeds_of_layers_in_wrappers_are_left_out() -> None:
    def wrapped() -> dict[str, Any]:
        inner = keras.layers.RandomCrop(2, 2), keras.layers.LSTM(2, recurrent_dropout=0.5)
        return {
            **of_model(keras.Sequential([keras.layers.TimeDistributed(inner[0])])),
            **of_model(keras.Sequential([keras.layers.Bidirectional(inner[1])])),
            **described(keras.layers.RandAugment()),
        }

    assert wrapped() == wrapped()
    crops = (keras.layers.TimeDistributed(keras.layers.RandomCrop(2, n)) for n in (2, 3))
    one, other = (of_model(keras.Sequential([crop])) for crop in crops)
    assert one != other


class Timed(keras.Model):
    """A model with a setting, and with what a clock gave."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.start_time = time.time()


class TimedLoss(keras.losses.Loss):
    """A loss with a setting, and with what a clock gave."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.start_time = time.time()


def test_numbers_that_may_be_no_settings_are_not_compared() -> None:
    def fingerprint(rate: float = 0.1, scale: float = 1.0) -> dict[str, Any]:
        model = Timed(rate)
        model.compile("sgd", TimedLoss(scale))
        nothing: Any = None, None, None
        return fingerprint_of(model, nothing, None, seed=1, class_weight=None, validation={})

    one = fingerprint()
    assert list(one["attributes"]) == ["model: timed (0).start_time", "loss: loss.start_time"]
    assert compare(one, fingerprint()) == []
    assert [each.section for each in differing_attributes(one, fingerprint())] == ["model", "loss"]
    assert {each.section for each in compare(one, fingerprint(rate=0.2))} == {"model"}
    assert {each.section for each in compare(one, fingerprint(scale=2.0))} == {"loss"}
