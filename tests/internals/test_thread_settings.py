"""Another thread computes with the settings of Keras and Python that the program has made."""

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.internals.thread_settings import with_settings_of_this_thread

SCALE: contextvars.ContextVar[float] = contextvars.ContextVar("SCALE", default=0.0)


def in_another_thread(fn: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fn()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def settings() -> Any:
    keras.config.set_dtype_policy("float64")
    token = SCALE.set(3.0)
    yield
    SCALE.reset(token)
    keras.config.set_dtype_policy("float32")


def settings_seen() -> tuple[str, float]:
    return keras.config.dtype_policy().name, SCALE.get()


def test_another_thread_has_none_of_them_by_itself() -> None:
    assert in_another_thread(settings_seen) == ("float32", 0.0)


def test_another_thread_has_them_and_changes_none_here() -> None:
    def changed() -> tuple[str, float]:
        seen = settings_seen()
        keras.config.set_dtype_policy("float16")
        SCALE.set(5.0)
        return seen

    wrapped = with_settings_of_this_thread(changed)
    assert in_another_thread(wrapped) == ("float64", 3.0)
    assert in_another_thread(wrapped) == ("float64", 3.0)
    assert settings_seen() == ("float64", 3.0)


def test_a_thread_that_goes_on_has_its_own_again() -> None:
    wrapped = with_settings_of_this_thread(settings_seen)
    assert in_another_thread(lambda: [wrapped(), settings_seen()][1]) == ("float32", 0.0)


class Scaled(keras.Model):
    """Makes a layer at each call, whose dtype is that of the global policy."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (keras.layers.Dense(2, kernel_initializer="ones") for _ in range(2))

    def call(self, x: Any) -> Any:
        return keras.layers.add([self.one(x), self.other(x)]) * SCALE.get()


def test_replicas_compute_as_the_program_has_set(tiny: Any) -> None:
    x = np.linspace(-1, 1, 64).reshape(16, 4).astype("float32")
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "epochs": 2, "verbose": 0}

    def trained(train: Callable[[keras.Model], Any]) -> tuple[list[float], str]:
        model = Scaled()
        model.compile(keras.optimizers.SGD(0.01), "mse")
        losses = train(model).fit(x, 3 * x[:, :2], **options).history["loss"]
        return losses, str(train(model).predict(x, verbose=0).dtype)

    expected = trained(lambda model: model)
    found = trained(lambda model: kfit.Trainer(model, tiny.strategy(2)))
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1] == expected[1] == "float64"
