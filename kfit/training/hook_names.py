"""Tells of hooks of the user's callbacks that nobody calls, or that cannot be called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import keras

from kfit.exactness.own_code import is_of_keras
from kfit.heartbeat.summaries import message_of
from kfit.heartbeat.tracebacks import warn_user
from kfit.lazy import closest_name
from kfit.training.callback import TrainingCallback

_HOOKS = sorted(name for name in dir(TrainingCallback) if name.startswith("on_"))
_LIKENESS = 0.87
"""How much a name must be like that of a hook: "on_epoch_ends" is, and "on_click" is not."""

_CANNOT_BE_CALLED = re.compile(r"(\S+\.(on_\w+))\(\) (?:takes|missing) ")


def warn_of_misspelled_hooks(callback: object) -> None:
    """Warns of methods of a callback that have almost the name of a hook: they are never called.

    Args:
        callback: The callback. Classes of Keras and kfit have no such methods.
    """
    kinds = type(callback).__mro__
    known = {name for kind in kinds if is_of_keras(kind) for name in vars(kind)}
    own = {name: value for kind in reversed(kinds) for name, value in vars(kind).items()}
    for name, value in {**own, **getattr(callback, "__dict__", {})}.items():
        if not name.startswith("on_") or name in known or name in _HOOKS or not callable(value):
            continue
        # Other libraries have such names for the same hooks.
        alike: str | None = name.replace("on_train_epoch", "on_epoch").replace("start", "begin")
        if alike not in _HOOKS:
            alike = closest_name(name, _HOOKS, likeness=_LIKENESS)
        if alike is not None:
            warn_user(
                f"`{type(callback).__name__}.{name}` is never called, since no hook has this "
                f"name. Did you mean `{alike}`?"
            )


def name_wrong_hook(error: TypeError, callbacks: Iterable[object]) -> None:
    """Adds to the error of a hook that takes other arguments where it is defined.

    Args:
        error: The error, which is changed in place if it is of such a hook.
        callbacks: The callbacks, of which one has the hook.
    """
    message = message_of(error)
    found = _CANNOT_BE_CALLED.match(message)
    if found is None or not hasattr(keras.callbacks.Callback, found[2]):
        return
    for callback in callbacks:
        hook = inspect.unwrap(getattr(type(callback), found[2], name_wrong_hook))
        code = getattr(hook, "__code__", None)
        if code is not None and hook.__qualname__ == found[1]:
            expected = inspect.signature(getattr(keras.callbacks.Callback, found[2]))
            error.args = (
                f"{message}. It is defined in {code.co_filename}, line {code.co_firstlineno}; "
                f"expected `def {found[2]}{expected}`",
            )
            return
