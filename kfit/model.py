"""Keras' API with a `strategy` argument: `kfit.fit`, `kfit.Model`, `kfit.install` and the like.

`kfit.Model` and `kfit.Sequential` only add methods, and nothing that is saved with a model. So a
model of these classes is saved as a model of Keras' own class. The file loads as a plain Keras
model, even where kfit is not installed. A plain Keras model can be trained by `kfit.fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import keras

from kfit.internals.keras_methods import diverted, passing_on
from kfit.internals.models import KerasFunctional, save_under
from kfit.trainer import Trainer
from kfit.training.own_methods import direct, taking_over

_TRAINER = "_kfit_trainer"
_Class = TypeVar("_Class", bound=type)
_TAKES_STRATEGY = ("fit", "evaluate", "predict")
_installed = ExitStack()
"""The installation that `install` has made, if there is one; closing this stack uninstalls kfit."""

if TYPE_CHECKING:
    from keras import Model as _OfKeras  # the mixin calls its methods by `super()`
else:
    _OfKeras = object


def trainer_of(model: keras.Model, strategy: Any = None) -> Trainer:
    """Returns the `kfit.Trainer` that runs a model on a strategy; creates it if necessary.

    The trainer is stored with the model, and is returned again until another strategy is given.
    `kfit.fit`, `kfit.Model.fit` and the like call this function each time they are called.

    Args:
        model: The model.
        strategy: A name, adapter or `tf.distribute.Strategy`, as for `kfit.Trainer`. None means the
            strategy of the stored trainer or, if there is no trainer yet, "auto".
    """
    last: tuple[Any, Trainer] | None = getattr(model, _TRAINER, None)
    if last is not None and (strategy is None or strategy is last[0] or strategy == last[0]):
        return last[1]
    strategy = "auto" if strategy is None else strategy
    trainer = Trainer(model, strategy)
    # `object.__setattr__` bypasses Keras' tracking of attributes: the trainer is no part of the
    # model.
    object.__setattr__(model, _TRAINER, (strategy, trainer))
    return trainer


def fit(
    model: keras.Model, *args: Any, strategy: Any = None, **kwargs: Any
) -> keras.callbacks.History:
    """Trains a compiled Keras model in place on a `tf.distribute` strategy.

    Args:
        model: The compiled model.
        *args: As for `keras.Model.fit`: x, y, batch_size, ...
        strategy: A name such as "mirrored", or another value that `kfit.Trainer` takes. None means
            the strategy that kfit used last to train, evaluate or run this model, or "auto" if
            there is none.
        **kwargs: As for `keras.Model.fit`.

    Returns:
        The History, as `keras.Model.fit` returns it.
    """
    return trainer_of(model, strategy).fit(*args, **kwargs)


def evaluate(model: keras.Model, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
    """Evaluates a compiled Keras model on a `tf.distribute` strategy.

    Args:
        model: The compiled model.
        *args: As for `keras.Model.evaluate`: x, y, batch_size, ...
        strategy: As for `kfit.fit`.
        **kwargs: As for `keras.Model.evaluate`; also `snapshot` and `parts`, by which
            `kfit.Trainer.evaluate` evaluates the weights of a saved training.

    Returns:
        The loss, the list of loss and metrics, or a dict of them, as in Keras.
    """
    return trainer_of(model, strategy).evaluate(*args, **kwargs)


def predict(model: keras.Model, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
    """Predicts the outputs of a Keras model on a `tf.distribute` strategy.

    Args:
        model: The model; it need not be compiled.
        *args: As for `keras.Model.predict`: x, batch_size, ...
        strategy: As for `kfit.fit`.
        **kwargs: As for `keras.Model.predict`.

    Returns:
        Arrays of shape `(examples, ...)` in the structure of the model's outputs, as in Keras.
    """
    return trainer_of(model, strategy).predict(*args, **kwargs)


def _saved_as(name: str) -> Callable[[_Class], _Class]:
    """Returns a class decorator that makes Keras save models of the class as models of `name`.

    So a saved model of `kfit.Sequential`, for example, is a `keras.Sequential`, and can be loaded
    without kfit. Subclasses of the decorated class are still saved under their own names.

    Args:
        name: The full name of Keras' class, such as "keras.Sequential".
    """

    def named(cls: _Class) -> _Class:
        save_under(cls, name)
        return cls

    return named


class _Fitting(_OfKeras):
    """A mixin that gives a model class the methods `fit`, `evaluate` and so on of kfit.

    Each method does what the method of `kfit.Trainer` with the same name does. The arguments are
    described there.
    """

    @passing_on
    def fit(self, *args: Any, strategy: Any = None, **kwargs: Any) -> keras.callbacks.History:
        """Trains the model on a `tf.distribute` strategy.

        If `strategy` is None, the strategy that kfit used last for this model is used again, or
        "auto" if there is none. See `kfit.Trainer.fit` for the other arguments.
        """
        with taking_over(trainer_of(self, strategy)):
            return super().fit(*args, **kwargs)

    @passing_on
    def evaluate(self, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        """Evaluates the model on `strategy`; the default is as for `fit`.

        See `kfit.Trainer.evaluate` for the other arguments.
        """
        with taking_over(trainer_of(self, strategy)):
            return super().evaluate(*args, **kwargs)

    @passing_on
    def predict(self, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        """Predicts outputs on `strategy`; the default is as for `fit`.

        See `kfit.Trainer.predict` for the other arguments.
        """
        with taking_over(trainer_of(self, strategy)):
            return super().predict(*args, **kwargs)

    @passing_on
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Takes one training step on a global batch; see `kfit.Trainer.train_on_batch`."""
        with taking_over(trainer_of(self)):
            return super().train_on_batch(*args, **kwargs)

    @passing_on
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one global batch; see `kfit.Trainer.test_on_batch`."""
        with taking_over(trainer_of(self)):
            return super().test_on_batch(*args, **kwargs)

    @passing_on
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Predicts one global batch; see `kfit.Trainer.predict_on_batch`."""
        with taking_over(trainer_of(self)):
            return super().predict_on_batch(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Returns the function and arguments by which `pickle` and `copy` restore the model.

        The model is restored as in Keras, and then gets back its class, such as `kfit.Sequential`.
        Keras alone would return a `keras.Sequential` in this case.
        """
        return _restored, (type(self), *super().__reduce__())


def _restored(cls: type, load: Callable[..., keras.Model], arguments: tuple[Any, ...]) -> Any:
    """Unpickles a model, and gives it back the class that it had, such as `kfit.Sequential`.

    Keras' function alone returns a model of one of Keras' classes, such as `keras.Sequential`.

    Args:
        cls: The class that the model had when it was pickled. If `cls` is not a subclass of the
            class of the model that `load` returns, that model is returned unchanged.
        load: Keras' function that unpickles the model.
        arguments: The arguments of `load`.
    """
    model = load(*arguments)
    if issubclass(cls, type(model)):
        model.__class__ = cls
    return model


class Model(_Fitting, keras.Model):
    """A `keras.Model` whose `fit`, `evaluate` and `predict` take a `strategy`.

    Example:
        >>> model = kfit.Model(inputs, outputs)
        >>> model.compile(optimizer="adam", loss="mse")
        >>> model.fit(x, y, strategy="mirrored")
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        """Creates a functional model if inputs and outputs are given, as `keras.Model` does.

        Args:
            *args: The arguments of `keras.Model`.
            **kwargs: The keyword arguments of `keras.Model`.
        """
        made = Functional if cls is Model and _are_functional(args, kwargs) else cls
        model: Model = super().__new__(made)
        return model

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _are_functional(args, kwargs):
            # `keras.Model.__init__` would change the bases of `kfit.Model` itself, and so make all
            # its subclasses functional.
            _make_functional(type(self))
            KerasFunctional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)


@_saved_as("keras.src.models.functional.Functional")
class Functional(Model, KerasFunctional):
    """A functional `kfit.Model`, such as `kfit.Model(inputs, outputs)` returns."""


@_saved_as("keras.Sequential")
class Sequential(_Fitting, keras.Sequential):
    """A `keras.Sequential` whose `fit`, `evaluate` and `predict` take a `strategy`."""


def _are_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether the arguments of a model are inputs and outputs, so that it is functional."""
    return len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))


def _make_functional(cls: type) -> None:
    """Makes a user's subclass of `kfit.Model` functional, that is, a subclass of `Functional`.

    This is needed if the user creates an object by `cls(inputs, outputs)`. In the bases of the
    class and of its ancestors, `Model` is replaced by `Functional`. Keras does the same with
    subclasses of `keras.Model`. A class that is functional already is not changed.

    Args:
        cls: The user's class.
    """
    if not issubclass(cls, KerasFunctional):
        bases = tuple(Functional if base is Model else base for base in cls.__bases__)
        for base in bases:
            if base is not Functional and issubclass(base, Model):
                _make_functional(base)
        cls.__bases__ = bases


class Installation(AbstractContextManager["Installation"]):
    """The result of `kfit.install`: a context manager that uninstalls kfit when its context ends.

    Until then, `fit`, `evaluate` and so on of all Keras models are those of kfit.

    Args:
        strategy: The strategy of each model that is used without an argument `strategy`: a name
            such as "mirrored", or another value that `kfit.Trainer` takes.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self._given: WeakKeyDictionary[keras.Model, Any] = WeakKeyDictionary()
        self._is_installed = True
        self._stack = ExitStack()
        self._stack.enter_context(diverted(self._divert))

    def uninstall(self) -> None:
        """Restores Keras' own methods. It does nothing if kfit was uninstalled before."""
        self._is_installed = False
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        state = "installed" if self._is_installed else "uninstalled"
        return f"<kfit.Installation strategy={self.strategy!r}, {state}>"

    def _divert(self, model: keras.Model, name: str) -> Callable[..., Any]:
        return partial(self._call, model, name)

    def _call(self, model: keras.Model, name: str, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("strategy", None) if name in _TAKES_STRATEGY else None
        if given is not None:
            self._given[model] = given
        trainer = trainer_of(model, self._given.get(model, self.strategy))
        return direct(trainer, name)(*args, **kwargs)


def install(strategy: Any = "auto") -> Installation:
    """Replaces `fit`, `evaluate`, `predict` and `*_on_batch` of all Keras models by those of kfit.

    So programs and libraries that do not know kfit train on a `tf.distribute` strategy. Until kfit
    is uninstalled, `fit`, `evaluate` and `predict` also take the argument `strategy`. A strategy
    that is given there is used for this call and for later calls of the same model. The replacement
    applies to all threads of the process. A second `install` replaces the first.

    With several workers, every task must run the same program, and must have joined the cluster,
    either by `kfit run` or by `kfit.join_cluster()`.

    Args:
        strategy: The strategy of models for which none is given; as for `kfit.Trainer`.

    Returns:
        An object that restores Keras' own methods: call its `uninstall()`, or use it in a `with`
        statement.

    Example:
        >>> kfit.install("mirrored")
        >>> model.fit(x, y, batch_size=128, epochs=3)
    """
    uninstall()
    return _installed.enter_context(Installation(strategy))


def uninstall() -> None:
    """Restores Keras' own methods after `kfit.install`. Without `install`, nothing changes."""
    _installed.close()
