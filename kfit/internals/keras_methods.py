"""Diverts Keras' own `fit`, `evaluate`, `predict` and `*_on_batch` to other functions for a while.

A method of a model's class that overrides one of these ends with `super().fit(...)`, and libraries
that replace `keras.Model.fit` keep the function that they found and call it. Both end in the
function that Keras defines, so that is the one to divert. Keras wraps `fit`, `evaluate` and
`predict` in a decorator: replacing the decorated function inside of the wrapper also diverts the
calls of those who kept a reference to the wrapper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kfit.internals.patching import Point, patched
from kfit.internals.private import imported

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
"""The methods of `keras.Model` that can be diverted."""

Divert = Callable[[keras.Model, str], "Callable[..., Any] | None"]

_BECAUSE = "a model's own method ends in Keras' by `super()`, and others keep a reference to it"
_IS_DIVERTED = "is_diverted_by_kfit"

_KERAS_TRAINER: Any = imported(
    "keras.src.backend.tensorflow.trainer.TensorFlowTrainer", because=_BECAUSE
)


def _point(name: str) -> Point:
    original = vars(_KERAS_TRAINER)[name]
    cells = dict(zip(original.__code__.co_freevars, original.__closure__ or (), strict=True))
    decorated = cells.get("fn")
    if decorated is None:
        return Point(_KERAS_TRAINER, name, _BECAUSE)
    return Point(decorated, "cell_contents", _BECAUSE)


POINTS: dict[str, Point] = {name: _point(name) for name in METHODS}


@contextmanager
def diverted(divert: Divert, names: tuple[str, ...] = METHODS) -> Iterator[None]:
    """Context in which Keras' methods call another function instead, in all threads.

    Contexts may be nested and left in any order; the one that was entered last is asked first.

    Args:
        divert: Called with a model and the name of the method. It returns the function to call
            instead, with the arguments of the call, or None for Keras' method.
        names: The methods to divert.
    """
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patched(POINTS[name], functools.partial(_diverting, divert, name)))
        yield


def _diverting(divert: Divert, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        other = divert(model, name)
        if other is None:
            return original(model, *args, **kwargs)
        return other(*args, **kwargs)

    return passing_on(method)


def passing_on(method: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a method that only calls Keras' method, so that `own_method` does not return it."""
    setattr(method, _IS_DIVERTED, True)
    return method


def own_method(model: keras.Model, name: str) -> Callable[..., Any] | None:
    """Returns the method of a model, or None if it is only Keras' method.

    It may be that of the model's class, of a library that has replaced `keras.Model`'s, or an
    attribute of the model itself.
    """
    if name in vars(model):
        return getattr(model, name)
    for cls in type(model).__mro__:
        if cls is _KERAS_TRAINER:
            return None
        if name in vars(cls) and not getattr(vars(cls)[name], _IS_DIVERTED, False):
            return getattr(model, name)
    return None
