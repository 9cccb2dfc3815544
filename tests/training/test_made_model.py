"""Models that a trainer makes by a function."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers

import kfit
from kfit.distribute.factory import as_strategy
from kfit.training.made_model import made_model


def small() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


def cleared() -> keras.Model:
    keras.backend.clear_session()
    return small()


def without_items() -> keras.Model:
    return [].pop()


@pytest.mark.parametrize("make", [lambda: None, list])
def test_a_function_must_return_a_model(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"which must return a keras\.Model\. It returned: "):
        made_model(make, as_strategy("one_device"))


def test_on_one_device_a_function_may_clear_the_session() -> None:
    assert made_model(cleared, as_strategy("one_device")).count_params() == 5


def test_in_the_scope_of_a_strategy_it_may_not(tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"Call `clear_session\(\)` before you make the trainer"):
        kfit.Trainer(cleared, kfit.distribute.Mirrored(["CPU:0", "CPU:1"]))
    keras.backend.clear_session()
    trainer = kfit.Trainer(small, kfit.distribute.Mirrored(["CPU:0", "CPU:1"]))
    trainer.compile("sgd", "mse")
    trainer.fit(*tiny.data(8), verbose=0)


def test_errors_of_the_function_itself_are_its_own(strategy: Any) -> None:
    with pytest.raises(IndexError, match="pop from empty list"):
        kfit.Trainer(without_items, strategy)
