"""Keras' global seed generator exists during a call, and Keras then draws as without kfit."""

import threading
from typing import Any

import keras
import pytest

import kfit
from kfit.distribute.global_seed import GlobalSeed
from kfit.internals.randomness import existing_seed_generator


@pytest.fixture(autouse=True)
def without_generator() -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)


def seed() -> GlobalSeed:
    return GlobalSeed(lambda variable: False)


def test_a_generator_that_nothing_draws_from_is_taken_away_again() -> None:
    used = seed()
    for _ in range(2):
        with used.made():
            assert existing_seed_generator() is used.generator
        assert existing_seed_generator() is None
    # The second call has used the generator of the first one, so that graphs draw from it.
    assert len(used.states) == 1


def test_a_generator_that_was_not_drawn_from_gets_the_seed_of_the_program_anew() -> None:
    used, seeds = seed(), []
    for number in (1, 1, 2):
        keras.utils.set_random_seed(number)
        keras.utils.clear_session()
        with used.made():
            seeds.append(used.generator.state.numpy()[0])
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_generator_that_was_drawn_from_stays() -> None:
    used = seed()
    with used.made():
        keras.random.uniform((1,))
    assert existing_seed_generator() is used.generator


def test_a_thread_has_the_generator_of_the_call() -> None:
    used, found = seed(), []

    def call() -> None:
        with used.shared():
            found.append(existing_seed_generator())
        found.append(existing_seed_generator())

    with used.made():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert found == [used.generator, None]


def test_layers_without_a_seed_draw_after_a_call_what_they_draw_without_kfit(tiny: Any) -> None:
    x, model = tiny.data(8)[0], tiny.model()
    draws = []
    for predicts in (False, True):
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        if predicts:
            kfit.Trainer(model, tiny.strategy(2)).predict(x, verbose=0)
        draws.append(float(keras.random.uniform(())))
    assert draws[0] == draws[1]
