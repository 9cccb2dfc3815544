"""Tells where a hook of a user's callback is defined that cannot be called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import keras

from kfit.heartbeat.summaries import message_of

_CANNOT_BE_CALLED = re.compile(r"(\S+\.(on_\w+))\(\) (?:takes|missing|got an unexpected) ")


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
