"""Restores a snapshot before the `evaluate` that a model defines itself is called."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from kfit.heartbeat.tracebacks import for_user
from kfit.inputs.python import LOOKED_AT
from kfit.internals.keras_methods import own_method

_P = ParamSpec("_P")
_R = TypeVar("_R")
_DATA = ("x", "y", "sample_weight", "batch_size", "steps")
"""The arguments of `evaluate` from which its batches are made."""


def restoring_first(evaluate: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of `Trainer.evaluate`: restores the snapshot if the model has its own `evaluate`.

    That may use the weights in any way, also without `super().evaluate`, and change them before it
    calls that. So they are restored before it is called. For a model without its own method, the
    decorated method restores them.
    """
    names = tuple(inspect.signature(evaluate).parameters)

    @for_user
    @wraps(evaluate)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # in notebooks
        self = args[0]
        if kwargs.get("snapshot") is None or own_method(self.model, "evaluate") is None:
            return cast(Any, evaluate)(*args, **kwargs)
        snapshot, parts = kwargs.pop("snapshot"), kwargs.pop("parts", ("model",))
        every = {**kwargs, **dict(zip(names, args, strict=False))}
        data = {name: every[name] for name in _DATA if name in every}
        if isinstance(data.get("x"), Iterator):
            data["x"], x = _looked_at(data["x"])
            args, kwargs = (self, x, *args[2:]), {k: v for k, v in kwargs.items() if k != "x"}
        self._restore_apart(snapshot, parts, **data)
        return cast(Any, evaluate)(*args, **kwargs)

    return cast(Callable[_P, _R], called)


def _looked_at(batches: Iterator[Any]) -> tuple[Iterator[Any], Iterator[Any]]:
    """Returns the first batches of a generator, and a generator of all its batches."""
    first = list(itertools.islice(batches, LOOKED_AT))

    def every(listed: Sequence[Any], rest: Iterable[Any] = ()) -> Iterator[Any]:
        yield from listed
        yield from rest

    return every(first), every(first, batches)
