"""Tells whether Keras would trace a model's step anew, without having Keras trace it.

Keras keeps the function that it traces for `fit`, `evaluate` or `predict` as an attribute of the
model, such as `train_function`. A program has a step traced anew by
`model.make_train_function(force=True)`, or by `model.train_function = None`. kfit does not call
these functions. It puts a stand-in where Keras would have made one, so that the attribute changes
when it would change with Keras, and at no other time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kfit.internals.keras_methods import own_method

_FUNCTIONS = {
    "train_step": "train_function",
    "test_step": "test_function",
    "predict_step": "predict_function",
}
"""Where a `keras.Model` keeps the function that it traces of a step; None if there is none yet."""


class _StandIn:
    """Stands for a function of Keras' that is not made yet: Keras makes it at the first call.

    Args:
        model: The model.
        step: The name of the step that the function takes.
        mark: What `mark_of_function` returns while the stand-in is there. None makes a new mark.
        method: The method of the model that the function calls as its step. None takes the present
            one, as Keras does when it makes the function.
    """

    def __init__(self, model: keras.Model, step: str, mark: Any = None, method: Any = None) -> None:
        self._model = model
        self._name = _FUNCTIONS[step]
        self.mark = object() if mark is None else mark
        self.method = getattr(model, step) if method is None else method
        self.made: Any = None

    def __call__(self, data: Any) -> Any:
        """Calls the function that Keras makes, when Keras' own `fit` or the like runs."""
        if self.made is None:
            getattr(self._model, f"make_{self._name}")(force=True)
            self.made = getattr(self._model, self._name)
            setattr(self._model, self._name, self)
        return self.made(data)


def mark_of_function(model: keras.Model, step: str) -> Any:
    """Returns a value that changes when Keras would trace a step of a model anew.

    If Keras has no function for the step yet, a stand-in is put in its place. A mark keeps no
    function alive.

    Args:
        model: The model.
        step: "train_step", "test_step" or "predict_step".
    """
    name = _FUNCTIONS[step]
    if getattr(model, name, None) is None and _can_stand_in(model, name):
        setattr(model, name, _StandIn(model, step))
    return _mark_of(getattr(model, name, None))


def method_of_function(model: keras.Model, step: str) -> Any:
    """Returns the method that Keras' function of a step calls: that of when the function was made.

    Args:
        model: The model.
        step: "train_step" or "test_step".
    """
    return getattr(getattr(model, _FUNCTIONS[step], None), "method", None) or getattr(model, step)


def own_functions(model: keras.Model) -> list[str]:
    """Returns the attributes of a model with a function of the program's in place of Keras' own.

    Such an attribute is `train_function`, to which a program has assigned a wrapper.

    Args:
        model: The model.
    """
    functions = {name: getattr(model, name, None) for name in _FUNCTIONS.values()}
    return [name for name, function in functions.items() if not _is_keras_own(function)]


def _is_keras_own(function: Any) -> bool:
    """Returns whether Keras made a function, or kfit in its place, or there is none.

    The name of the module that a function states may be copied from the function that it wraps.
    """
    if function is None or isinstance(function, _StandIn):
        return True
    made_in = getattr(getattr(function, "python_function", function), "__globals__", {})
    return str(made_in.get("__name__")).partition(".")[0] in ("keras", "tensorflow")


def _mark_of(function: Any) -> Any:
    if function is None or isinstance(function, _StandIn):
        return getattr(function, "mark", None)
    return weakref.ref(function)


def _can_stand_in(model: keras.Model, name: str) -> bool:
    """Returns whether Keras' own method makes the function; any other may take no `force`."""
    return own_method(model, f"make_{name}") is None


@contextmanager
def functions_forgotten(model: keras.Model) -> Iterator[None]:
    """Context after which Keras traces its own functions anew, if it made them in the context.

    A hook may call Keras' own `evaluate`. Keras keeps the function that it traces then, with the
    copies that each replica has of the metrics' variables during a call of kfit. The marks of the
    functions (`mark_of_function`) stay what they are.

    Args:
        model: The model.
    """
    before = {step: _made(getattr(model, name, None)) for step, name in _FUNCTIONS.items()}
    try:
        yield
    finally:
        for step, made in before.items():
            name = _FUNCTIONS[step]
            function = getattr(model, name, None)
            if _made(function) is not made and function is not None:
                stands_in = _can_stand_in(model, name)
                mark = _mark_of(function)
                method = getattr(function, "method", None)
                stand_in = _StandIn(model, step, mark, method) if stands_in else None
                setattr(model, name, stand_in)


def _made(function: Any) -> Any:
    return function.made if isinstance(function, _StandIn) else function
