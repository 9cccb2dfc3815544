"""Calls a model's own `fit`, `evaluate`, ... in place of the trainer's, and lets it reach kfit.

Some models prepare their data in a `fit` of their own, which calls `super().fit`. Some libraries
replace `keras.Model.fit` by a function that calls the original. In both cases kfit calls that
method, and while it runs, Keras' own `fit` of this model is the trainer's.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from types import FrameType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import keras

from kfit.internals.keras_methods import diverted, own_method

_P = ParamSpec("_P")
_R = TypeVar("_R")
_DIRECT = "without_the_models_own"
_NOT_OF_KERAS = ("snapshot", "parts")
"""Arguments of kfit's `evaluate` that a model's own `evaluate` does not have."""


class _HasModel(Protocol):
    @property
    def model(self) -> keras.Model: ...


def through_model(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a trainer's method call the model's own method of the same name, if it has one."""

    @wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        trainer, *rest = cast(Any, args)
        own = own_method(trainer.model, method.__name__)
        if own is None or _is_under_way(own, trainer.model):
            return method(*args, **kwargs)
        kept = {name: kwargs.pop(name) for name in _NOT_OF_KERAS if name in kwargs}
        with taking_over(trainer, kept=kept):
            return cast(_R, own(*rest, **kwargs))

    setattr(called, _DIRECT, method)
    return called


def warn_of_own_functions(model: keras.Model) -> None:
    """Warns of methods of the model that make Keras' functions, which kfit does not call."""
    names = ("make_train_function", "make_test_function", "make_predict_function")
    own = [f"`{name}`" for name in names if own_method(model, name) is not None]
    if own:
        warnings.warn(
            f"`model` {model.name!r} overrides {' and '.join(own)}, which kfit does not call: it "
            "makes its own functions of the model's steps. Override `train_step`, `test_step` or "
            "`predict_step` instead.",
            stacklevel=3,
        )


def _is_under_way(own: Callable[..., Any], model: keras.Model) -> bool:
    """Returns whether kfit was called by the model's own method.

    So it is if a model's `fit` calls `kfit.fit(self, ...)`: it must not be called again.
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


def direct(trainer: _HasModel, name: str) -> Callable[..., Any]:
    """Returns the method of a trainer as it was before `through_model` decorated it.

    It does not call the model's own method of that name.
    """
    methods = (vars(cls).get(name) for cls in type(trainer).__mro__)
    found = next(method for method in methods if hasattr(method, _DIRECT))
    return partial(getattr(found, _DIRECT), trainer)


@contextmanager
def taking_over(
    trainer: _HasModel, cached: Callable[[], Any] | None = None, kept: Mapping[str, Any] = {}
) -> Iterator[None]:
    """A context in which Keras' methods, if the trainer's model calls them, are the trainer's.

    Args:
        trainer: The trainer.
        cached: Evaluates the validation data of the `fit` that is running. As in Keras, it is
            called if the model's own `evaluate` passes on that `fit` has called it, whatever data
            it passes.
        kept: Further arguments of its `evaluate`, which Keras' does not have.
    """

    def divert(model: keras.Model, name: str) -> Callable[..., Any] | None:
        if model is not trainer.model:
            return None
        method = direct(trainer, name)
        return partial(_evaluate, method, cached, **kept) if name == "evaluate" else method

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
