"""Values that a callable holds: default arguments, a partial's arguments, a method's object.

A program may keep state in these values, so those that have changed are saved (`names.py`).
"""

from __future__ import annotations

import functools
import gc
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

WITH_CACHE: Any = type(functools.lru_cache(lambda: None))
"""The class of functions with an `lru_cache`."""
_MOST_RESULTS = 100
"""The most results of a function with an `lru_cache` that are searched for state."""
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


def results_of(function: Any) -> dict[str, Any]:
    """Returns the results that an `lru_cache` holds, each by the arguments of its call.

    Such a function may make a generator at its first call, and return the same one ever after.

    Args:
        function: The function. If the cache has many results, it is no such function, and nothing
            is returned. Calls with arguments other than numbers and texts are left out.
    """
    if function.cache_info().currsize > _MOST_RESULTS:
        return {}
    held = gc.get_referents(function)  # no method tells
    own = vars(function)
    cache = next((each for each in held if type(each) is dict and each is not own), {})
    found = {}
    for key, result in list(cache.items()):
        arguments = key if type(key) is tuple else (key,)
        told = [each for each in arguments if type(each) is not object]  # it divides off keywords
        if all(isinstance(each, _NEVER_CHANGE) for each in told):
            is_link = type(result).__name__ == "_lru_list_elem"
            place = next((i for i, each in enumerate(held) if each is key), None)
            if not is_link:
                found[f"({', '.join(map(repr, told))})"] = result
            elif place is not None and place + 1 < len(held):
                found[f"({', '.join(map(repr, told))})"] = held[place + 1]
    return found
