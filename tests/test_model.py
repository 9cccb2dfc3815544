"""The `strategy` argument on Keras' own surface."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.model import trainer_of

FIXED = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}


class Subclassed(kfit.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.out = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))


def functional(tiny: Any) -> kfit.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    return kfit.Model(x, keras.layers.Dense(3)(hidden))


def subclassed(tiny: Any) -> kfit.Model:
    keras.utils.set_random_seed(1)
    return Subclassed()


def sequential(tiny: Any) -> kfit.Sequential:
    return tiny.model(cls=kfit.Sequential)


def compiled(model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("make", [subclassed, functional, sequential], ids=lambda f: f.__name__)
def test_the_methods_take_a_strategy(tiny: Any, make: Any) -> None:
    x, y = tiny.data(50)
    one, many = tiny.model(), compiled(make(tiny))
    history = many.fit(x, y, strategy=tiny.strategy(3), validation_data=(x, y), **FIXED)
    expected = one.fit(x, y, validation_data=(x, y), **FIXED)
    assert trainer_of(many).num_replicas == 3
    assert tiny.distance(one, many) < 1e-5
    for name, values in expected.history.items():
        assert history.history[name] == pytest.approx(values, rel=1e-4)
    assert many.history is history
    assert tiny.is_plain(many)
    scores = one.evaluate(x, y, verbose=0)
    assert many.evaluate(x, y, verbose=0) == pytest.approx(scores, rel=1e-4)
    np.testing.assert_allclose(many.predict(x, verbose=0), one.predict(x, verbose=0), atol=1e-5)
    if make is sequential:
        assert many.train_on_batch(x, y) == pytest.approx(one.train_on_batch(x, y), rel=1e-4)
        assert many.test_on_batch(x, y) == pytest.approx(one.test_on_batch(x, y), rel=1e-4)
        np.testing.assert_allclose(many.predict_on_batch(x), one.predict_on_batch(x), atol=1e-5)


def test_functional_models_stay_functional(tiny: Any) -> None:
    model = functional(tiny)
    assert isinstance(model, kfit.Model)
    assert model.input_shape == (None, 4)
    assert model.output_shape == (None, 3)
    assert [type(layer).__name__ for layer in model.layers] == ["InputLayer", "Dense", "Dense"]


def test_functional_models_leave_subclasses_alone(tiny: Any) -> None:
    class Late(Subclassed):
        pass

    functional(tiny)
    assert Late()(tiny.data(5)[0]).shape == (5, 3)


def test_the_strategy_of_a_call_wins_and_stays(tiny: Any) -> None:
    x, y = tiny.data(50)
    one, many = tiny.model(), sequential(tiny)
    two, three = tiny.strategy(2), tiny.strategy(3)
    used = []
    for strategy in (two, None, three, None, "one_device", two):
        many.fit(x, y, strategy=strategy, **FIXED)
        one.fit(x, y, **FIXED)
        used.append(trainer_of(many).num_replicas)
    assert used == [2, 2, 3, 3, 1, 2]
    assert tiny.distance(one, many) < 1e-5
    assert int(many.optimizer.iterations) == 36


def test_auto_is_where_it_begins(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = sequential(tiny)
    model.evaluate(*tiny.data(50), verbose=0)
    assert capsys.readouterr().out.count("strategy 'auto' chose 'one_device'") == 1
    model.evaluate(*tiny.data(50), verbose=0)
    assert capsys.readouterr().out == ""


def test_fit_trains_any_model_of_keras_in_place(tiny: Any) -> None:
    x, y = tiny.data(50)
    one, many = tiny.model(), tiny.model()
    strategy = tiny.strategy(2)
    for _ in range(2):
        history = kfit.fit(many, x, y, strategy=strategy, **FIXED)
        one.fit(x, y, **FIXED)
    assert type(many) is keras.Sequential
    assert history is many.history
    assert trainer_of(many, strategy) is trainer_of(many)
    assert tiny.distance(one, many) < 1e-5


def test_saved_loaded_and_cloned(tiny: Any, tmp_path: Path) -> None:
    x, y = tiny.data(50)
    for make in (functional, sequential):
        model = compiled(make(tiny))
        model.fit(x, y, strategy=tiny.strategy(2), **FIXED)
        model.save(tmp_path / "model.keras")
        custom = {"Model": kfit.Model, "Sequential": kfit.Sequential}
        loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects=custom)
        assert type(loaded) is type(model)
        assert tiny.distance(loaded, model) == 0.0
        assert int(loaded.optimizer.iterations) == 6
        loaded.fit(x, y, strategy="one_device", **FIXED)
        model.fit(x, y, **FIXED)
        assert tiny.distance(loaded, model) < 1e-6
        clone = keras.models.clone_model(model)
        assert isinstance(clone, keras.Model)
        assert not hasattr(clone, "_kfit_trainer")
        clone.set_weights(model.get_weights())
        np.testing.assert_allclose(clone(x), model(x), atol=1e-6)


def test_a_saved_model_loads_without_naming_its_class(tiny: Any, tmp_path: Path) -> None:
    model = sequential(tiny)
    model.fit(*tiny.data(50), strategy="one_device", **FIXED)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert tiny.distance(loaded, model) == 0.0


def test_what_fit_knows_is_no_part_of_the_model(tiny: Any, tmp_path: Path) -> None:
    model = sequential(tiny)
    model.fit(*tiny.data(50), strategy=tiny.strategy(2), **FIXED)
    paths = [variable.path for variable in model.variables]
    assert len(paths) == len(set(paths)) == 4
    assert "kfit" not in str(model.get_config())
    model.save_weights(tmp_path / "w.weights.h5")
    plain = tiny.model(seed=4)
    plain.load_weights(tmp_path / "w.weights.h5")
    assert tiny.distance(plain, model) == 0.0


def test_a_wrong_strategy_is_named(tiny: Any) -> None:
    x, y = tiny.data(8)
    with pytest.raises(ValueError, match=r"`strategy` must be 'auto'.*Received: 'tpu9'"):
        sequential(tiny).fit(x, y, strategy="tpu9")
    with pytest.raises(ValueError, match=r"`strategy` must be 'auto'.*Received: 3"):
        kfit.fit(tiny.model(), x, y, strategy=3)
