"""Keras' API with a `strategy` argument: `kfit.Model`, `kfit.Sequential`, `kfit.fit`.

These classes add only methods, nothing that is saved. So their models are saved under the names of
Keras' own classes, and a file loads as a plain Keras model, even if kfit is not installed. A plain
Keras model can be trained by `kfit.fit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras

from kfit.internals.models import KerasFunctional, save_under
from kfit.trainer import Trainer

_TRAINER = "_kfit_trainer"
_Class = TypeVar("_Class", bound=type)


def trainer_of(model: keras.Model, strategy: Any = None) -> Trainer:
    """Returns the trainer of `model` for `strategy`, and keeps it for the model's next call.

    A new trainer is created if there is none yet, or if `strategy` differs from the last one.

    Args:
        model: The model.
        strategy: As for `kfit.Trainer`. None means the strategy of the last call, or "auto" in the
            first call.
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
    model: keras.Model, x: Any = None, y: Any = None, *, strategy: Any = None, **kwargs: Any
) -> keras.callbacks.History:
    """Trains a compiled Keras model in place on `strategy`.

    Args:
        model: The compiled model.
        x: As for `keras.Model.fit`.
        y: As for `keras.Model.fit`.
        strategy: As for `kfit.Trainer`. None means the strategy of the last call, or "auto" in the
            first call.
        **kwargs: Further arguments of `kfit.Trainer.fit`.

    Returns:
        The History, as `keras.Model.fit` returns it.
    """
    return trainer_of(model, strategy).fit(x, y, **kwargs)


def _saved_as(name: str) -> Callable[[_Class], _Class]:
    """Class decorator: Keras saves models of the class as the Keras class with this name.

    It does not apply to subclasses.
    """

    def named(cls: _Class) -> _Class:
        save_under(cls, name)
        return cls

    return named


class _Fitting:
    """A mixin whose methods call those of `kfit.Trainer`, which describes their arguments."""

    def fit(self, *args: Any, strategy: Any = None, **kwargs: Any) -> keras.callbacks.History:
        """Trains on `strategy`, or on the last strategy if None; see `kfit.Trainer.fit`."""
        return self._trainer(strategy).fit(*args, **kwargs)

    def evaluate(self, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        """Evaluates on `strategy`, or on the last one if None; see `kfit.Trainer.evaluate`."""
        return self._trainer(strategy).evaluate(*args, **kwargs)

    def predict(self, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        """Predicts on `strategy`, or on the last one if None; see `kfit.Trainer.predict`."""
        return self._trainer(strategy).predict(*args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Takes one training step on a global batch; see `kfit.Trainer.train_on_batch`."""
        return self._trainer(None).train_on_batch(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one global batch; see `kfit.Trainer.test_on_batch`."""
        return self._trainer(None).test_on_batch(*args, **kwargs)

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Predicts one global batch; see `kfit.Trainer.predict_on_batch`."""
        return self._trainer(None).predict_on_batch(*args, **kwargs)

    def _trainer(self, strategy: Any) -> Trainer:
        return trainer_of(self, strategy)

    def __reduce__(self) -> Any:
        """Returns how to unpickle or copy the model: as in Keras, but with its class of kfit."""
        return _restored, (type(self), *super().__reduce__())


def _restored(cls: type, load: Callable[..., keras.Model], arguments: tuple[Any, ...]) -> Any:
    """Unpickles a model as Keras does, and then sets its class, which Keras does not restore.

    Args:
        cls: The model's class before pickling. It is set only if it is a subclass of the class of
            the model that `load` returns.
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
        """Creates a functional model if inputs and outputs are given, as `keras.Model` does."""
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
    """A `kfit.Model` that is built from inputs and outputs."""


@_saved_as("keras.Sequential")
class Sequential(_Fitting, keras.Sequential):
    """A `keras.Sequential` whose `fit`, `evaluate` and `predict` take a `strategy`."""


def _are_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether these are the arguments of a functional model: inputs and outputs."""
    return len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))


def _make_functional(cls: type) -> None:
    """Replaces `Model` by `Functional` in the bases of a user's class and of its ancestors."""
    if not issubclass(cls, KerasFunctional):
        bases = tuple(Functional if base is Model else base for base in cls.__bases__)
        for base in bases:
            if base is not Functional and issubclass(base, Model):
                _make_functional(base)
        cls.__bases__ = bases
