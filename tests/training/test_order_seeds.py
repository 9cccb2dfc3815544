"""Each `fit` has an order of its own, whichever trainer it is of."""

import random
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import pytest

import kfit
from kfit.internals.randomness import program_seed
from kfit.training import order_seeds
from kfit.training.order_seeds import OrderSeeds

X = np.random.default_rng(0).uniform(size=(64, 1)).astype("float32")
"""Values of which each few have another sum, so that the loss tells the order."""


@pytest.fixture
def model() -> Iterator[keras.Model]:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    yield model
    keras.utils.set_random_seed(1)


class Firsts(keras.callbacks.Callback):
    """The loss of the first batch of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.losses.append(float(logs["loss"]))


def first_of(fit: Callable[..., Any]) -> float:
    firsts = Firsts()
    fit(X, 0 * X, batch_size=4, verbose=0, callbacks=[firsts])
    (loss,) = firsts.losses
    return loss


@pytest.mark.long
def test_trainers_of_one_model_continue_each_others_orders(model: Any, tiny: Any) -> None:
    one, two = tiny.strategy(1), tiny.strategy(2)

    def by_turns(*args: Any, **kwargs: Any) -> None:
        kfit.fit(model, *args, strategy=two, **kwargs)
        kfit.evaluate(model, X, X, strategy=one, verbose=0)

    def anew(*args: Any, **kwargs: Any) -> None:
        kfit.Trainer(model, one).fit(*args, **kwargs)

    found = [first_of(by_turns) for _ in range(3)] + [first_of(anew) for _ in range(3)]
    assert len(set(found)) == 6


def test_orders_repeat_after_the_program_is_seeded(model: Any, tiny: Any) -> None:
    trainer = kfit.Trainer(model, tiny.strategy(1))
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        found.append([first_of(trainer.fit) for _ in range(3)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


@pytest.mark.long
def test_a_seed_of_a_trainer_is_its_own(model: Any, tiny: Any) -> None:
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(len(found))
        trainer = kfit.Trainer(model, tiny.strategy(1), seed=7)
        found.append([first_of(trainer.fit) for _ in range(3)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


@pytest.mark.long
def test_a_verification_leaves_the_orders_as_they_are(model: Any, tiny: Any) -> None:
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        trainer = kfit.Trainer(model, tiny.strategy(1))
        if found:
            trainer.verify(X, X, replicas=2, steps=2)
        found.append(first_of(trainer.fit))
    assert found[0] == found[1]


def test_seeds_have_64_bits(model: Any, tiny: Any) -> None:
    trainer = kfit.Trainer(model, tiny.strategy(1), seed=2**63 - 1)
    assert first_of(trainer.fit) != first_of(trainer.fit)
    with pytest.raises(ValueError, match="`seed` must be a number of 64 bits"):
        kfit.Trainer(model, tiny.strategy(1), seed=2**63)


@pytest.mark.parametrize("hook_seeds", [True, False])
def test_orders_go_on_in_another_process(
    hook_seeds: bool, model: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_collectives = tiny.strategy(1).host_collectives

    def process(of: keras.Model, state: Any = None) -> tuple[list[Any], Any]:
        """A program of three `fit`s; a hook of the first one seeds, unless a snapshot is there."""
        monkeypatch.setattr(order_seeds, "_counts", WeakKeyDictionary())
        monkeypatch.setattr(order_seeds, "_in_fit", order_seeds._InFit())
        keras.utils.set_random_seed(3)
        seeds, found, kept = OrderSeeds(None, of, host_collectives), [], None
        for number in range(3):
            found.append((seeds.of_next_fit(), seeds.of_program))
            if number == 0:
                if state is not None:
                    seeds.load_state_dict(state[0])
                    random.setstate(state[1])
                elif hook_seeds:
                    keras.utils.set_random_seed(100)
                    random.random()
                kept = seeds.state_dict(), random.getstate()
                found.append((program_seed(), 3))
            seeds.end_fit()
        return found, kept

    expected, state = process(model)
    assert [of_program for _, of_program in expected] == [3] * 4
    assert process(keras.models.clone_model(model), state) == (expected, state)
