"""Lets a trainer call the `fit`, `evaluate` or `predict` that a model defines itself.

Some models prepare their data in a `fit` of their own, which calls `super().fit`. Some libraries
replace `keras.Model.fit` by a function that calls the original `fit`. In both cases
`kfit.Trainer.fit` first calls the model's method or the library's function. When Keras' own `fit`
is called there for the same model, kfit trains in place of Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from types import FrameType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import keras

from kfit.heartbeat.tracebacks import for_user, warn_user
from kfit.internals.keras_functions import own_functions
from kfit.internals.keras_methods import diverted, own_method

_P = ParamSpec("_P")
_R = TypeVar("_R")
_DIRECT = "without_the_models_own"
_NOT_OF_KERAS = {"evaluate": ("snapshot", "parts"), "fit": ("profile",)}
"""Arguments of kfit's methods that a model's own methods of these names do not have."""


class HasModel(Protocol):
    """Anything that trains a model, such as a Trainer."""

    @property
    def model(self) -> keras.Model:
        """The model."""


def through_model(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of a trainer's method, which then first calls the model's own method of that name.

    For example, `Trainer.fit` calls the `fit` that a model's class defines. When that `fit` calls
    `super().fit`, the decorated method itself runs. For a model without its own method, the
    decorated method runs at once. Errors leave the method without the frames of kfit, Keras and
    TensorFlow (`for_user`).
    """
    method = for_user(method)

    @for_user
    @wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True  # in notebooks
        trainer, *rest = cast(Any, args)
        own = own_method(trainer.model, method.__name__)
        if own is None or _is_under_way(own, trainer.model):
            return method(*args, **kwargs)
        names = _NOT_OF_KERAS.get(method.__name__, ())
        kept = {name: kwargs.pop(name) for name in names if name in kwargs}
        with taking_over(trainer, kept=kept):
            return cast(_R, own(*rest, **kwargs))

    setattr(called, _DIRECT, method)
    return called


def warn_of_own_functions(model: keras.Model, told: set[str]) -> None:
    """Warns if the model has a `make_train_function` or the like of its own: kfit does not call it.

    It also warns of a function that the program has put in place of the one that Keras makes.

    Args:
        model: The model.
        told: The names that were warned of before, to which the names of this warning are added.
    """
    names = ("make_train_function", "make_test_function", "make_predict_function")
    own = [name for name in names if own_method(model, name) is not None] or own_functions(model)
    new = [name for name in own if name not in told]
    if new:
        told.update(new)
        warn_user(
            f"`model` {model.name!r} overrides {' and '.join(f'`{name}`' for name in new)}, which "
            "kfit does not call: it makes its own functions of the model's steps. Override "
            "`train_step`, `test_step` or `predict_step` instead."
        )


def _is_under_way(own: Callable[..., Any], model: keras.Model) -> bool:
    """Returns whether the model's own method is running already, and has called kfit.

    This is so if a model's `fit` calls `kfit.fit(self, ...)`. Then the model's `fit` must not be
    called again.

    Args:
        own: The model's own method.
        model: The model.
    """
    code = getattr(inspect.unwrap(own), "__code__", None)
    frame = inspect.currentframe()
    while frame is not None and code is not None:
        if frame.f_code is code and any(each is model for each in _arguments(frame)):
            return True
        frame = frame.f_back
    return False


def _arguments(frame: FrameType) -> list[Any]:
    found = inspect.getargvalues(frame)
    return [found.locals[name] for name in found.args]


def direct(trainer: HasModel, name: str) -> Callable[..., Any]:
    """Returns a method of a trainer that does not call the model's own method of the same name.

    Used when the model's own method calls `super().fit` or the like. The result is the method as it
    was before `through_model` decorated it.

    Args:
        trainer: The trainer.
        name: The name of the method, such as "fit".
    """
    methods = (vars(cls).get(name) for cls in type(trainer).__mro__)
    found = next(method for method in methods if hasattr(method, _DIRECT))
    return partial(getattr(found, _DIRECT), trainer)


@contextmanager
def taking_over(
    trainer: HasModel, cached: Callable[[], Any] | None = None, kept: Mapping[str, Any] = {}
) -> Iterator[None]:
    """Context in which Keras' `fit`, `evaluate` and so on run the trainer's methods instead.

    This applies only to the trainer's model. The context is used while a method that the model
    itself defines runs, since this method may call `super().fit` or the like.

    Args:
        trainer: The trainer.
        cached: Only for a validation in `fit`: a function that evaluates the validation data, which
            `fit` has already turned into batches. As in Keras, `fit` passes the argument
            `_use_cached_eval_dataset=True` to the model's `evaluate`. If the model passes it on to
            `super().evaluate`, `cached` is called, and the data in this call is ignored.
        kept: Arguments by name that the trainer's method has, but Keras' method has not. The
            model's own method does not get them. When it calls that of `super()`, they are passed
            to the trainer's method.
    """

    def divert(model: keras.Model, name: str) -> Callable[..., Any] | None:
        if model is not trainer.model:
            return None
        method = direct(trainer, name)
        own = {each: kept[each] for each in _NOT_OF_KERAS.get(name, ()) if each in kept}
        if name == "evaluate":
            return partial(_evaluate, method, cached, **own)
        return partial(method, **own)

    with diverted(divert):
        yield


def _evaluate(
    method: Callable[..., Any],
    cached: Callable[[], Any] | None,
    *args: Any,
    _use_cached_eval_dataset: bool = False,
    **kwargs: Any,
) -> Any:
    is_validation = _use_cached_eval_dataset and cached is not None
    return cached() if is_validation else method(*args, **kwargs)  # type: ignore[misc]
