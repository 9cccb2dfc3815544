"""`kfit.install`: Keras' own `fit`, `evaluate`, `predict` and `*_on_batch` train by kfit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kfit.internals.keras_methods import diverted
from kfit.model import trainer_of
from kfit.training.own_methods import direct

_TAKES_STRATEGY = ("fit", "evaluate", "predict")
_LOCK = threading.Lock()
_installed: list[Installation] = []


class Installation:
    """What `kfit.install` has changed; a context manager whose end takes it back.

    Args:
        strategy: As for `kfit.Trainer`.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self._given: WeakKeyDictionary[keras.Model, Any] = WeakKeyDictionary()
        self._stack = ExitStack()
        self._stack.enter_context(diverted(self._divert))

    def uninstall(self) -> None:
        """Makes Keras' methods Keras' own again; it does nothing if they are already."""
        with _LOCK:
            if self in _installed:
                _installed.remove(self)
                self._stack.close()

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        state = "installed" if self in _installed else "uninstalled"
        return f"<kfit.Installation strategy={self.strategy!r}, {state}>"

    def _divert(self, model: keras.Model, name: str) -> Callable[..., Any]:
        return partial(self._call, model, name)

    def _call(self, model: keras.Model, name: str, *args: Any, **kwargs: Any) -> Any:
        if name in _TAKES_STRATEGY and kwargs.get("strategy") is not None:
            self._given[model] = kwargs["strategy"]
        kwargs.pop("strategy", None)
        trainer = trainer_of(model, self._given.get(model, self.strategy))
        return direct(trainer, name)(*args, **kwargs)


def install(strategy: Any = "auto") -> Installation:
    """Makes `model.fit`, `evaluate`, `predict` and `*_on_batch` of all Keras models those of kfit.

    Programs and libraries that know nothing of kfit then train on the strategy. While it lasts
    `fit`, `evaluate` and `predict` also take `strategy`, for this call and the next ones of the
    model. It holds for the process. A second `install` takes the place of the first.

    On workers every task must run the same program; it joins its cluster before (`kfit run`, or
    `kfit.join_cluster()`).

    Args:
        strategy: The strategy of models for which none is given; as for `kfit.Trainer`.

    Returns:
        The installation: call its `uninstall()`, or use it in a `with` statement, to take it back.

    Example:
        >>> kfit.install("mirrored")
        >>> model.fit(x, y, batch_size=128, epochs=3)
    """
    uninstall()
    with _LOCK:
        _installed.append(Installation(strategy))
        return _installed[-1]


def uninstall() -> None:
    """Takes `kfit.install` back; it does nothing if nothing is installed."""
    for installation in list(_installed):
        installation.uninstall()
