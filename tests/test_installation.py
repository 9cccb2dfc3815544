"""`kfit.install`: programs that know nothing of kfit train by it."""

import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.model import trainer_of

FIXED: dict[str, Any] = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    yield
    kfit.uninstall()


def is_of_kfit(model: Any) -> bool:
    return hasattr(model, "_kfit_trainer")


def test_all_methods_are_those_of_kfit(tiny: Any) -> None:
    (x, y), one, many = tiny.data(50), tiny.model(), tiny.model()
    installed = kfit.install(tiny.strategy(3))
    assert repr(installed).endswith(", installed>")
    got = [
        many.fit(x, y, validation_split=0.2, **FIXED).history["val_loss"],
        many.evaluate(x, y, verbose=0),
        many.predict(x, 10, 0),
        many.train_on_batch(x, y),
        many.test_on_batch(x, y),
        many.predict_on_batch(x),
    ]
    assert trainer_of(many).num_replicas == 3
    installed.uninstall()
    assert repr(installed).endswith(", uninstalled>")
    expected = [
        one.fit(x, y, validation_split=0.2, **FIXED).history["val_loss"],
        one.evaluate(x, y, verbose=0),
        one.predict(x, 10, 0),
        one.train_on_batch(x, y),
        one.test_on_batch(x, y),
        one.predict_on_batch(x),
    ]
    assert not is_of_kfit(one)
    for first, second in zip(got, expected, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


def test_a_strategy_that_is_given_holds_for_the_model(tiny: Any) -> None:
    x, y = tiny.data(20)
    one, other = tiny.model(), tiny.model()
    with kfit.install(tiny.strategy(1)):
        one.fit(x, y, strategy=tiny.strategy(2), verbose=0)
        one.evaluate(x, y, verbose=0)
        other.fit(x, y, verbose=0)
        assert [trainer_of(model).num_replicas for model in (one, other)] == [2, 1]
    with pytest.raises(TypeError, match="strategy"):
        one.fit(x, y, strategy="one_device")


def test_a_second_install_takes_the_place_of_the_first(tiny: Any) -> None:
    (x, y), model = tiny.data(20), tiny.model()
    first = kfit.install(tiny.strategy(1))
    model.fit(x, y, verbose=0)
    kfit.install(tiny.strategy(2))
    assert repr(first).endswith(", uninstalled>")
    model.fit(x, y, verbose=0)
    assert trainer_of(model).num_replicas == 2
    first.uninstall()  # does nothing to the second
    fresh = tiny.model()
    fresh.fit(x, y, verbose=0)
    assert is_of_kfit(fresh)
    kfit.uninstall()
    kfit.uninstall()
    fresh = tiny.model()
    fresh.fit(x, y, verbose=0)
    assert not is_of_kfit(fresh)


def test_a_reference_from_before_reaches_kfit_as_well(tiny: Any) -> None:
    fit, (x, y), model = keras.Model.fit, tiny.data(20), tiny.model()
    with kfit.install(tiny.strategy(1)):
        fit(model, x, y, verbose=0)
    assert is_of_kfit(model)


def test_it_holds_in_threads(tiny: Any) -> None:
    (x, y), model = tiny.data(20), tiny.model()
    with kfit.install(tiny.strategy(1)):
        thread = threading.Thread(target=model.fit, args=(x, y), kwargs={"verbose": 0})
        thread.start()
        thread.join()
    assert is_of_kfit(model)


def test_the_functions_take_what_keras_takes(tiny: Any) -> None:
    """`kfit.fit`, `evaluate` and `predict` with positional arguments, in Keras' order."""
    (x, y), one, many = tiny.data(50), tiny.model(), tiny.model()
    strategy = tiny.strategy(2)
    one.fit(x, y, 10, 2, 0, shuffle=False)
    kfit.fit(many, x, y, 10, 2, 0, shuffle=False, strategy=strategy)
    assert tiny.distance(one, many) < 1e-5
    assert kfit.evaluate(many, x, y, 10, 0) == pytest.approx(one.evaluate(x, y, 10, 0), rel=1e-4)
    np.testing.assert_allclose(kfit.predict(many, x, 10, 0), one.predict(x, 10, 0), rtol=1e-4)
    assert trainer_of(many).num_replicas == 2
