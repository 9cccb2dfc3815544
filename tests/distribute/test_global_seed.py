"""Keras' global seed generator exists during a call, and Keras then draws as without kfit."""

import contextlib
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.distribute.global_seed import GlobalSeed
from kfit.internals.randomness import existing_seed_generator


@pytest.fixture(autouse=True)
def without_generator() -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)


def seed(*, is_alone: bool = True) -> GlobalSeed:
    return GlobalSeed(lambda variable: False, is_alone=is_alone)


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


def program(made: Callable[[], AbstractContextManager[None]], moves: bool) -> list[float]:
    """The first draw of a hook, further draws, and what Python's generator then gives."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    drawn = []
    with made():
        if moves:
            random.random()
        drawn.append(float(keras.random.uniform(())))
    drawn.append(float(keras.random.uniform(())))
    return [*drawn, random.random()]


@pytest.mark.parametrize("moves", [False, True])
def test_the_first_draw_is_that_of_keras_also_after_draws_from_python(moves: bool) -> None:
    used = seed()
    expected = program(contextlib.nullcontext, moves)
    assert [program(used.made, moves) for _ in range(2)] == [expected] * 2


def test_workers_draw_from_the_state_that_all_of_them_have() -> None:
    used = seed(is_alone=False)
    with used.made():
        before = used.generator.state.numpy()[0]
        random.random()  # what one worker does, perhaps
        keras.random.uniform(())
        assert used.generator.state.numpy()[0] != before  # by the draw alone
        used.generator.state.assign([before, 0])
    assert existing_seed_generator() is used.generator


def test_a_step_that_is_the_first_to_draw_takes_the_seed_from_python() -> None:
    random.seed(1)
    keras.random.SeedGenerator()
    expected = random.random()
    random.seed(1)
    outer, inner = seed(), seed()
    with outer.made(), inner.made():  # as if a hook called another trainer
        assert inner.used() is inner.used() is outer.generator
    assert random.random() == expected
    assert existing_seed_generator() is outer.generator


class Draws(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x + 0.0 * keras.random.uniform(keras.ops.shape(x))


@pytest.mark.parametrize("draws_in", ["a hook", "a step"])
def test_a_model_that_is_made_after_a_fit_has_the_weights_of_keras(
    tiny: Any, draws_in: str
) -> None:
    def weights(fit: Callable[..., Any]) -> Any:
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        layers = [Draws()] if draws_in == "a step" else []
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        hook = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: draws_in == "a hook" and keras.random.uniform(())
        )
        fit(model, *tiny.data(8), batch_size=8, shuffle=False, verbose=0, callbacks=[hook])
        later = keras.layers.Dense(3)
        later.build((None, 4))
        return later.get_weights()[0]

    def by_kfit(model: keras.Model, *args: Any, **options: Any) -> None:
        kfit.Trainer(model, tiny.strategy(2)).fit(*args, **options)

    np.testing.assert_array_equal(weights(by_kfit), weights(keras.Model.fit))


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
