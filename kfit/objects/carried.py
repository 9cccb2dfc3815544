"""Values that a callable holds: default arguments, a partial's arguments, a method's object.

A program may keep state in these values, so those that have changed are saved (`names.py`).
"""

from __future__ import annotations

import functools
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

_NEVER_CHANGE = (str, bytes, int, float, complex, type(None))


class _Defaults(dict[str, Any]):
    """The defaults of a function's arguments, by name; setting an item changes the function."""

    def __init__(self, function: FunctionType) -> None:
        defaults, code = function.__defaults__ or (), function.__code__
        last = code.co_argcount
        if len(defaults) > last:
            # A wrapper `def wrapper(*args)` may have been given the defaults of what it wraps.
            # Those belong to no argument of its own.
            defaults = ()
        self._positional = code.co_varnames[last - len(defaults) : last]
        self._function = function
        both = dict(zip(self._positional, defaults, strict=True)) | (function.__kwdefaults__ or {})
        super().__init__(both)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if key in self._positional:
            self._function.__defaults__ = tuple(self[name] for name in self._positional)
        else:
            keywords = self._function.__kwdefaults__ or {}
            self._function.__kwdefaults__ = {**keywords, key: value}


class _Arguments(dict[str, Any]):
    """The arguments that a partial holds, by name; setting an item changes the partial."""

    def __init__(self, partial: functools.partial[Any]) -> None:
        self._partial: Any = partial
        self._positional = [f"args[{index}]" for index in range(len(partial.args))]
        super().__init__(dict(zip(self._positional, partial.args, strict=True)) | partial.keywords)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if key in self._positional:
            args = tuple(self[name] for name in self._positional)
            self._partial.__setstate__((self._partial.func, args, self._partial.keywords, None))
        else:
            self._partial.keywords[key] = value


def carried_by(value: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the values that a callable holds besides its code, such as default arguments.

    Args:
        value: A function, a partial or a method. For anything else the result is empty.

    Returns:
        The values by their names, and a list of the names of those values that may hold state.
        These are all values but constants: numbers, texts, bytes and None.
    """
    held: dict[str, Any] = {}
    if isinstance(value, FunctionType):
        held = _Defaults(value)
    elif isinstance(value, functools.partial):
        held = _Arguments(value)
    elif isinstance(value, (MethodType, BuiltinMethodType)):
        held = {"self": value.__self__}
    return held, [key for key, item in held.items() if not isinstance(item, _NEVER_CHANGE)]
