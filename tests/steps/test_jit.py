"""What `jit_compile="auto"` means, on a stand-in for a host with two GPUs."""

from typing import Any

import keras
import pytest

import kfit
from kfit.distribute.strategy import Strategy
from tests.sweeps import only

FIXED = {"batch_size": 20, "shuffle": False, "verbose": 0}


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras and kfit see accelerators."""
    monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda self: True)
    monkeypatch.setattr(Strategy, "on_accelerators", property(lambda self: True))
    monkeypatch.setattr(Strategy, "fetches_ahead", property(lambda self: False))


def synchronized(cls: Any = keras.Sequential) -> Any:
    """A model whose replicas meet before the optimizer's step, which XLA cannot hold."""
    keras.utils.set_random_seed(1)
    layers = keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(3)
    return cls([keras.Input((4,)), keras.layers.Masking(), *layers])


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OFF = "kfit: takes this model's jit_compile for 'auto'"


@pytest.mark.parametrize("door", only(["fit"], ["fit", "Sequential", "Trainer"]))
def test_auto_is_off_on_several_replicas(
    tiny: Any, capsys: pytest.CaptureFixture[str], door: str
) -> None:
    x, y = tiny.data(40)
    model = synchronized(kfit.Sequential if door == "Sequential" else keras.Sequential)
    strategy = tiny.strategy(2)
    if door == "Trainer":
        trainer = kfit.Trainer(model, strategy)
        trainer.compile("sgd", LOSS)
    else:
        model.compile("sgd", LOSS)
    assert model.jit_compile is True
    for _ in range(2):
        if door == "Trainer":
            trainer.fit(x, y, **FIXED)
        else:
            kfit.fit(model, x, y, strategy=strategy, **FIXED)
        assert model.jit_compile is True  # for Keras, on one of them
    assert capsys.readouterr().out.count(OFF) == (door != "Trainer")


def test_what_was_asked_for_is_done_or_refused(tiny: Any) -> None:
    x, y = tiny.data(40)
    trainer = kfit.Trainer(synchronized(), tiny.strategy(2))
    trainer.compile("sgd", LOSS, jit_compile=True)
    with pytest.raises(ValueError, match="`jit_compile=True` on several replicas"):
        trainer.fit(x, y, **FIXED)
    trainer.model.compile("sgd", LOSS)  # by Keras: what was asked for before counts no more
    trainer.fit(x, y, **FIXED)
