"""What is drawn apart disturbs nothing, and follows from the seed."""

import random
from typing import Any

import keras
import pytest

import kfit
from kfit.distribute.python_random import apart


def test_it_goes_on_as_if_nothing_had_been_drawn() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = apart().random()
    assert random.random() == expected
    random.seed(1)
    assert apart().random() == first
    assert first != expected
    random.seed(2)
    assert apart().random() != first


def test_what_another_thread_draws_meanwhile_is_not_drawn_again(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, _), model, made = tiny.data(8), tiny.model(), keras.random.SeedGenerator.__init__

    def make(*args: Any, **kwargs: Any) -> None:
        drawn.append(random.random())  # as by a thread that reads data
        made(*args, **kwargs)

    keras.utils.clear_session()  # so that Keras has no global seed generator
    random.seed(1)
    expected, drawn = [random.random() for _ in range(4)], list[float]()
    random.seed(1)
    monkeypatch.setattr(keras.random.SeedGenerator, "__init__", make)
    kfit.Trainer(model, tiny.strategy(2)).predict(x, verbose=0)
    assert len(drawn) == 1
    assert [*drawn, *(random.random() for _ in range(3))] == expected
