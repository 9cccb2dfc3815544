"""The `strategy` argument on Keras' own surface, and `kfit.install`."""

import copy
import inspect
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.distribute.factory import tell_choice
from kfit.model import trainer_of
from tests.sweeps import sweep

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


@pytest.mark.long
@pytest.mark.parametrize(
    "make", sweep([subclassed, functional, sequential], every=3), ids=lambda f: f.__name__
)
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


@pytest.mark.long
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
    tell_choice.cache_clear()
    model = sequential(tiny)
    model.evaluate(*tiny.data(50), verbose=0)
    assert capsys.readouterr().out.count("strategy 'auto' chose 'one_device'") == 1
    model.evaluate(*tiny.data(50), verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.long
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


def nested(tiny: Any) -> kfit.Model:
    inputs = keras.Input((4,))
    return kfit.Model(inputs, keras.layers.Dense(3)(tiny.model(cls=kfit.Sequential)(inputs)))


@keras.saving.register_keras_serializable("tests")
class Registered(kfit.Model):
    """A class of the user's, saved under the name that the user gave it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.out = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.out(x)


def registered(tiny: Any) -> kfit.Model:
    keras.utils.set_random_seed(1)
    return Registered()


def trained(tiny: Any, make: Any) -> Any:
    model = compiled(make(tiny))
    model.fit(*tiny.data(50), strategy="one_device", **FIXED)
    return model


_LOADS = """
import sys, pathlib, keras
sys.modules["kfit"] = None
for path in sorted(pathlib.Path(sys.argv[1]).glob("*")):
    model = keras.saving.load_model(path)
    total = float(sum(abs(value).sum() for value in model.get_weights()))
    print(path.stem, type(model).__name__, total, int(model.optimizer.iterations), model.loss.name)
"""


@pytest.mark.long
def test_what_is_saved_loads_where_kfit_is_not_installed(tiny: Any, tmp_path: Path) -> None:
    expected = []
    for make in (functional, nested, sequential):
        model = trained(tiny, make)
        model.save(tmp_path / f"{make.__name__}.keras")
        total = float(sum(abs(value).sum() for value in model.get_weights()))
        kind = type(model).__name__
        expected.append(f"{make.__name__} {kind} {total} 6 sparse_categorical_crossentropy")
    command = [sys.executable, "-c", _LOADS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize(
    "make", sweep([functional, nested, sequential], every=3), ids=lambda f: f.__name__
)
def test_what_is_saved_is_a_model_of_keras(tiny: Any, tmp_path: Path, make: Any) -> None:
    x, y = tiny.data(50)
    model = trained(tiny, make)
    model.save(tmp_path / "model.keras")
    assert "kfit" not in zipfile.ZipFile(tmp_path / "model.keras").read("config.json").decode()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded).__module__.startswith("keras.src.models")
    assert isinstance(model, type(loaded))
    again = keras.models.model_from_json(model.to_json())
    assert type(again) is type(loaded)
    for other in (loaded, keras.models.clone_model(model)):
        assert isinstance(other, type(loaded))
        assert not hasattr(other, "_kfit_trainer")
    assert tiny.distance(loaded, model) == 0.0
    kfit.fit(loaded, x, y, strategy="one_device", **FIXED)
    model.fit(x, y, **FIXED)
    assert tiny.distance(loaded, model) < 1e-6
    assert int(loaded.optimizer.iterations) == 12


@pytest.mark.parametrize(
    "make", sweep([sequential, functional, nested, registered], every=4), ids=lambda f: f.__name__
)
def test_copies_are_of_the_same_class(tiny: Any, make: Any) -> None:
    x, y = tiny.data(50)
    model = trained(tiny, make)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    model.fit(x, y, **FIXED)
    for other in copies:
        assert type(other) is type(model)
        assert not hasattr(other, "_kfit_trainer")
        other.fit(x, y, strategy="one_device", **FIXED)
        assert tiny.distance(other, model) < 1e-6
        assert int(other.optimizer.iterations) == 12


def test_a_class_of_the_users_is_saved_under_its_own_name(tiny: Any, tmp_path: Path) -> None:
    model = trained(tiny, registered)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is Registered
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
    with pytest.raises(TypeError, match=r"exists already. Use .*\(make_model, .*devices=2\)"):
        kfit.fit(tiny.model(), x, y, devices=2)
    for model in (keras.Sequential, tiny.model):
        with pytest.raises(TypeError, match=r"`model` must be a keras.Model; .*Received: <"):
            kfit.fit(model, x, y)


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    yield
    kfit.uninstall()


def is_of_kfit(model: Any) -> bool:
    return hasattr(model, "_kfit_trainer")


def six_calls(model: Any, x: Any, y: Any) -> list[Any]:
    return [
        model.fit(x, y, validation_split=0.2, **FIXED).history["val_loss"],
        model.evaluate(x, y, verbose=0),
        model.predict(x, 10, 0),
        model.train_on_batch(x, y),
        model.test_on_batch(x, y),
        model.predict_on_batch(x),
    ]


def test_all_methods_are_those_of_kfit(tiny: Any) -> None:
    (x, y), one, many = tiny.data(50), tiny.model(), tiny.model()
    installed = kfit.install(tiny.strategy(3))
    assert repr(installed).endswith(", installed>")
    got = six_calls(many, x, y)
    assert trainer_of(many).num_replicas == 3
    installed.uninstall()
    assert repr(installed).endswith(", uninstalled>")
    expected = six_calls(one, x, y)
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


def test_an_argument_that_a_method_does_not_have_is_named(tiny: Any) -> None:
    (x, y), model = tiny.data(20), tiny.model()
    with kfit.install("one_device"):
        told = r"model\.fit\(\) got an unexpected .* 'stratgy'\. Did you mean 'strategy'\?$"
        with pytest.raises(TypeError, match=told):
            model.fit(x, y, stratgy="mirrored")
        told = r"model\.train_on_batch\(\) got an unexpected keyword argument 'strategy'$"
        with pytest.raises(TypeError, match=told):
            model.train_on_batch(x, y, strategy="mirrored")


def test_the_arguments_are_checked_before_a_strategy_is_chosen(
    tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (x, y), model = tiny.data(20), kfit.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    for fit in (partial(kfit.fit, model), model.fit, partial(kfit.evaluate, tiny.model())):
        with pytest.raises(TypeError, match=r"'batchsize'\. Did you mean 'batch_size'\?$"):
            fit(x, y, batchsize=2)
    assert capsys.readouterr().out == ""


def test_an_install_of_no_strategy_is_refused_and_changes_nothing(tiny: Any) -> None:
    first = kfit.install(tiny.strategy(1))
    with pytest.raises(ValueError, match=r"'miror'\. Did you mean 'mirrored'"):
        kfit.install("miror")
    assert repr(first).endswith(", installed>")


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
def test_functions_and_methods_take_what_the_trainer_takes(name: str) -> None:
    trainer = inspect.signature(getattr(kfit.Trainer, name)).parameters
    for owner in (kfit, kfit.Model):
        first, *others, strategy = inspect.signature(getattr(owner, name)).parameters.values()
        assert (first.name, strategy.name) == ("model" if owner is kfit else "self", "strategy")
        assert others == list(trainer.values())[1:]
