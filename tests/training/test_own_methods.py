"""A model's own `fit`, `evaluate` and `predict` are called by kfit, and reach kfit."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.model import trainer_of
from tests.sweeps import only, sweep

FIXED: dict[str, Any] = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}


class DoublesInFit(keras.Model):
    """A model with a `fit` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(3)
        self.calls: list[str] = []

    def call(self, x: Any) -> Any:
        return self.out(x)

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        self.calls.append("fit")
        return super().fit(2 * x, y, **kwargs)


class Doubles(DoublesInFit):
    """Prepares its data itself, as the tasks of KerasHub do."""

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        self.calls.append("evaluate")
        return super().evaluate(2 * x, y, **kwargs)

    def predict(self, x: Any, **kwargs: Any) -> Any:
        self.calls.append("predict")
        return super().predict(2 * x, **kwargs)

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        self.calls.append("train_on_batch")
        return super().train_on_batch(2 * x, y, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        self.calls.append("test_on_batch")
        return super().test_on_batch(2 * x, y, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        self.calls.append("predict_on_batch")
        return super().predict_on_batch(2 * x)


class CallsKfit(Doubles):
    """Calls kfit by itself."""

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        self.calls.append("fit")
        return kfit.fit(self, 2 * x, y, **kwargs)


class OfKfit(DoublesInFit, kfit.Model):
    """A model of kfit's with a `fit` of its own."""


def made(cls: type[Any]) -> Any:
    keras.utils.set_random_seed(1)
    model = cls()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def expected(tiny: Any) -> Any:
    """What Keras comes to."""
    model, (x, y) = made(Doubles), tiny.data(50)
    history = model.fit(x, y, validation_data=(2 * x, y), **FIXED).history
    return history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0), model.calls


def by_trainer(model: Any, strategy: Any) -> Any:
    trainer = kfit.Trainer(model, strategy)
    return trainer.fit, trainer.evaluate, trainer.predict


def by_functions(model: Any, strategy: Any) -> Any:
    functions = kfit.fit, kfit.evaluate, kfit.predict
    return tuple(functools.partial(each, model, strategy=strategy) for each in functions)


def by_install(model: Any, strategy: Any) -> Any:
    kfit.install(strategy)
    return model.fit, model.evaluate, model.predict


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    keras.Model.__annotations__  # noqa: B018  Python makes it when it is first asked for
    before = {name: getattr(keras.Model, name) for name in dir(keras.Model)}
    contents = keras.Model.fit.__closure__[0].cell_contents
    yield
    kfit.uninstall()
    assert {name: getattr(keras.Model, name) for name in dir(keras.Model)} == before
    assert keras.Model.fit.__closure__[0].cell_contents is contents


@pytest.mark.parametrize(
    "way",
    only([by_install], [by_trainer, by_functions, by_install]),
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("replicas", sweep([2, 1]))
def test_a_models_own_methods_prepare_its_data(
    tiny: Any, expected: Any, way: Callable[..., Any], replicas: int
) -> None:
    model, (x, y) = made(Doubles), tiny.data(50)
    fit, evaluate, predict = way(model, tiny.strategy(replicas))
    history = fit(x, y, validation_data=(2 * x, y), **FIXED).history
    for name, values in expected[0].items():
        assert history[name] == pytest.approx(values, rel=1e-5), name
    assert evaluate(x, y, verbose=0) == pytest.approx(expected[1], rel=1e-5)
    np.testing.assert_allclose(predict(x, verbose=0), expected[2], rtol=1e-5, atol=1e-6)
    assert model.calls == expected[3]


@pytest.mark.parametrize("way", only(["install"], ["trainer", "install"]))
def test_a_models_own_methods_for_one_batch(tiny: Any, way: str) -> None:
    one, many, (x, y) = made(Doubles), made(Doubles), tiny.data(20)
    strategy = tiny.strategy(2)
    trainer = many if way == "install" else kfit.Trainer(many, strategy)
    if way == "install":
        kfit.install(strategy)
    got = trainer.train_on_batch(x, y), trainer.test_on_batch(x, y), trainer.predict_on_batch(x)
    kfit.uninstall()
    wanted = one.train_on_batch(x, y), one.test_on_batch(x, y), one.predict_on_batch(x)
    for first, second in zip(got, wanted, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5)
    assert many.calls == one.calls


@pytest.mark.long
@pytest.mark.parametrize("cls", [CallsKfit, OfKfit])
@pytest.mark.parametrize("way", ["model", "function", "trainer"])
def test_an_own_fit_runs_once(tiny: Any, expected: Any, cls: type[Any], way: str) -> None:
    model, (x, y) = made(cls), tiny.data(50)
    strategy = tiny.strategy(2)
    trainer_of(model, strategy)
    fit = {
        "model": model.fit,
        "function": functools.partial(kfit.fit, model),
        "trainer": trainer_of(model).fit,
    }[way]
    history = fit(x, y, validation_data=(2 * x, y), **FIXED).history
    assert model.calls.count("fit") == 1
    assert history["loss"] == pytest.approx(expected[0]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("cls", "first"),
    only(
        [(Doubles, "patch"), (OfKfit, "install")],
        itertools.product([Doubles, OfKfit], ["patch", "install"]),
    ),
)
def test_who_replaces_keras_fit_is_called_once(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, first: str, cls: type[Any]
) -> None:
    """As MLflow's autolog does, which keeps the function that it has found."""
    calls = []

    def patch() -> None:
        original = keras.Model.fit

        def logged(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(trainer_of(self).num_replicas)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(keras.Model, "fit", logged)

    x, y = tiny.data(20)
    if first == "patch":
        patch()
    kfit.install(tiny.strategy(2))
    if first == "install":
        patch()
    model = made(cls)
    trainer_of(model, tiny.strategy(2))
    model.fit(x, y, verbose=0)
    assert calls == [2]
    kfit.uninstall()
    for fit in (functools.partial(kfit.fit, model), trainer_of(model).fit):
        fit(x, y, verbose=0)
    assert calls == [2, 2, 2]
    assert model.calls == ["fit"] * 3
    monkeypatch.undo()


@pytest.mark.long
def test_other_models_meanwhile_are_keras_own(tiny: Any) -> None:
    """While a model's own `fit` runs Keras trains another one."""
    x, y = tiny.data(20)
    other = tiny.model()

    class Asks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            other.fit(x, y, verbose=0)

    kfit.fit(made(Doubles), x, y, strategy=tiny.strategy(2), verbose=0, callbacks=[Asks()])
    assert not hasattr(other, "_kfit_trainer")
    assert int(other.optimizer.iterations) == 1


@pytest.mark.long
def test_an_own_evaluate_may_be_given_a_snapshot(tiny: Any, tmp_path: Any) -> None:
    """`kfit.Trainer.evaluate` takes arguments that the model's own does not know."""
    (x, y), model = tiny.data(50), made(Doubles)
    trainer = kfit.Trainer(model, tiny.strategy(1))
    trainer.fit(x, y, verbose=0, callbacks=[kfit.callbacks.BackupAndRestore(tmp_path)])
    expected = trainer.evaluate(x, y, verbose=0)
    snapshot, _ = kfit.checkpoint.Store(tmp_path).newest()
    model.out.kernel.assign(0 * model.out.kernel)
    assert trainer.evaluate(x, y, verbose=0, snapshot=snapshot) == expected


class Announces(kfit.Trainer):
    """A trainer that overrides a method."""

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        self.model.calls.append("trainer")
        return super().fit(*args, **kwargs)


def test_a_trainer_may_have_methods_of_its_own(tiny: Any, expected: Any) -> None:
    model, (x, y) = made(Doubles), tiny.data(50)
    history = Announces(model, tiny.strategy(1)).fit(x, y, **FIXED).history
    assert model.calls == ["trainer", "fit"]
    assert history["loss"] == pytest.approx(expected[0]["loss"], rel=1e-5)


def test_an_error_leaves_keras_as_it_was(tiny: Any) -> None:
    x, y = tiny.data(20)

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        kfit.fit(made(Doubles), x, y, verbose=0, strategy=tiny.strategy(1), callbacks=[Fails()])


class MakesItsFunction(keras.Sequential):
    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force)


def test_functions_that_are_not_called_are_warned_of() -> None:
    model = MakesItsFunction([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.warns(UserWarning, match="overrides `make_train_function`, which kfit does not"):
        kfit.Trainer(model, "one_device")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kfit.Trainer(keras.Sequential([keras.layers.Dense(1)]), "one_device")


@pytest.mark.long
def test_functions_that_are_put_in_place_of_keras_own_are_warned_of(tiny: Any) -> None:
    x, y = tiny.data()
    options: dict[str, Any] = {"verbose": 0, "strategy": "one_device"}
    model = tiny.model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        model.train_on_batch(x, y)
        kfit.fit(model, x, y, **options)  # all three are there, and are of Keras
    model.make_train_function(force=True)
    made = model.train_function
    model.train_function = functools.wraps(made)(lambda iterator: made(iterator))
    with pytest.warns(UserWarning, match="overrides `train_function`, which kfit does not"):
        kfit.fit(model, x, y, **options)
    model = tiny.model()
    kfit.fit(model, x, y, **options)
    model.make_test_function = lambda force=False: None
    with pytest.warns(UserWarning, match="overrides `make_test_function`, which kfit does not"):
        kfit.evaluate(model, x, y, **options)


class Prepares(Doubles):
    """Prepares what it validates as well, as the tasks of KerasHub do."""

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        kwargs.pop("_use_cached_eval_dataset", None)
        return super().evaluate(x, y, **kwargs)


@pytest.mark.long
@pytest.mark.parametrize("way", [by_trainer, by_functions, by_install], ids=lambda f: f.__name__)
def test_validation_data_are_prepared_too(tiny: Any, way: Callable[..., Any]) -> None:
    (x, y), one, many = tiny.data(50), made(Prepares), made(Prepares)
    expected = one.fit(x, y, validation_data=(x, y), **FIXED).history
    fit, *_ = way(many, tiny.strategy(2))
    history = fit(x, y, validation_data=(x, y), **FIXED).history
    assert one.calls == many.calls
    for name, values in expected.items():
        assert history[name] == pytest.approx(values, rel=1e-5), name
