"""A table of the private names that kfit uses, and a clear error if one of them is missing."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import keras
import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Use:
    """An entry of `TABLE`: the private names that one function or constant of kfit uses.

    Attributes:
        names: Full names, such as "keras.Variable._value" or "keras.src.losses.loss.apply_mask".
        because: Why no public name can be used.
    """

    names: tuple[str, ...]
    because: str


TABLE: dict[str, Use] = {}
"""All uses of private names, by the full name of the function or constant. A test checks them."""


class MissingNameError(ImportError):
    """The error that the installed Keras or TensorFlow lacks a private name that kfit needs."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Keras {keras.__version__} and TensorFlow {tf.__version__} have no `{name}`, which "
            "kfit needs. Install versions that kfit supports: `pip install -U kfit` brings them."
        )


def uses(*names: str, because: str) -> Callable[[_Function], _Function]:
    """Returns a decorator for a function that uses private attributes of Keras or TensorFlow.

    It records the function in `TABLE`. If one of the attributes is missing when the function is
    called, a MissingNameError replaces the AttributeError.

    Args:
        *names: Full names of the private attributes that the function uses.
        because: Why no public name can be used.
    """
    attributes = {name.rpartition(".")[2]: name for name in names}

    def enter(fn: _Function) -> _Function:
        TABLE[f"{fn.__module__}.{fn.__qualname__}"] = Use(names, because)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return fn(*args, **kwargs)
            except AttributeError as error:
                if error.name in attributes:
                    raise MissingNameError(attributes[error.name]) from error
                raise

        return cast(_Function, call)

    return enter


def imported(name: str, *, because: str) -> Any:
    """Imports a private module, class or function, and records its name in `TABLE`.

    Args:
        name: The full name.
        because: Why no public name can be used.

    Raises:
        MissingNameError: If Keras or TensorFlow has no such name.
    """
    TABLE[name] = Use((name,), because)
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise MissingNameError(name) from error
