"""Diverts Keras' own `fit`, `evaluate`, `predict` and `*_on_batch` to other functions for a while.

A subclass of `keras.Model` may override `fit` and call `super().fit(...)`. A library may replace
`keras.Model.fit` by a function that calls the replaced one. In both cases the function that Keras
defines is called in the end, so kfit diverts this function.

Keras wraps `fit`, `evaluate` and `predict` in a decorator. kfit does not replace the wrapper, but
the function inside of it. So code that has kept a reference to the wrapper is diverted, too.
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
    """Context in which Keras' `fit`, `evaluate`, ... call another function instead, in all threads.

    Contexts may be nested and left in any order. At each call, the `divert` of the context that was
    entered last is called first. If it returns None, the one of the context before is called, and
    so on.

    Args:
        divert: Called with a model and the name of the method, at each call of the method. It
            returns the function to call with the arguments of the call (without the model), or None
            to call Keras' method.
        names: The names of the methods to divert.
    """
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patched(POINTS[name], functools.partial(_diverting, divert, name)))
        yield


def _diverting(divert: Divert, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # in notebooks
        other = divert(model, name)
        if other is None:
            return original(model, *args, **kwargs)
        try:
            return other(*args, **kwargs)
        except BaseException as error:
            # The first frames, such as this one, say nothing to the user.
            shown = error.__traceback__
            while shown is not None and "__tracebackhide__" in shown.tb_frame.f_locals:
                shown = shown.tb_next
            error.__traceback__ = shown
            raise

    return passing_on(method)


def passing_on(method: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a method that only calls Keras' method, so that `own_method` does not return it.

    It is used as a decorator, such as of `kfit.Model.fit`.
    """
    setattr(method, _IS_DIVERTED, True)
    return method


def own_method(model: keras.Model, name: str) -> Callable[..., Any] | None:
    """Returns a method of a model, such as `fit`, if the method is not simply Keras' own.

    kfit must call such a method, since it may do more than Keras' method. The method may come from
    the model's class, from a library that has replaced the method of `keras.Model`, or from an
    attribute of the model itself.

    Args:
        model: The model.
        name: The name of the method.

    Returns:
        The method; None if it is Keras' own, or only passes calls on to Keras' own (`passing_on`).
    """
    if name in vars(model):
        return getattr(model, name)
    for cls in type(model).__mro__:
        if cls is _KERAS_TRAINER:
            return None
        if name in vars(cls) and not getattr(vars(cls)[name], _IS_DIVERTED, False):
            return getattr(model, name)
    return None
