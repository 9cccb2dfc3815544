"""Notices that a hook changes a setting of the model, such as the `rate` of a layer.

The settings are the plain attributes of the model, its layers, losses, metrics and optimizers. They
are not saved: in a compiled step they have the values that they had when the step was traced, which
no snapshot could tell. So a warning names those that have changed.

What the code of a step itself sets, such as the shape of the last batch that a layer notes in its
`call`, is no setting. Such names are found in the code of the classes.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from kfit.checkpoint.callback_attributes import is_of_library
from kfit.objects.fields import fields_of
from kfit.objects.keras_parts import code_of_method

LIBRARIES = ("keras", "kfit", "tensorflow")
"""The packages whose classes of layers, losses, metrics and optimizers are not the program's."""
_PLAIN = (type(None), bool, int, float, str)
_ABSENT = object()


class ModelSettings:
    """The settings of the parts of a model, compared with those at the creation of this object.

    Args:
        parts: The model, its layers, losses, metrics and optimizers, each with a name for messages.
        is_kept: Returns whether an attribute of a part, by its name, is saved in another way.
    """

    def __init__(
        self, parts: Sequence[tuple[str, Any]], is_kept: Callable[[Any, str], bool]
    ) -> None:
        self._parts = parts
        self._is_kept = is_kept
        kinds = {kind for _, part in parts for kind in type(part).__mro__}
        self._set_in_steps = _set_in_steps(frozenset(kinds))
        own = [kind for kind in kinds if not _is_of_library(kind)]
        self._own = {
            name for kind in own for _, code in _methods_of(kind) for name in code.co_names
        }
        self._begun = [
            {n: held for n, held in fields_of(part).items() if self._is_setting(part, n, held)}
            for _, part in parts
        ]

    def changed(self) -> list[str]:
        """Returns the names of the settings that have changed, such as `Dropout.rate`."""
        return [
            f"{label}.{name}"
            for (label, part), before in zip(self._parts, self._begun, strict=True)
            for name, value in list(fields_of(part).items())
            if value is not before.get(name, _ABSENT) and self._is_setting(part, name, value)
            if not _is_same(value, before.get(name, _ABSENT))
        ]

    def _is_setting(self, part: Any, name: str, value: Any) -> bool:
        return (
            _is_plain(value)
            and name not in self._set_in_steps
            and (not name.startswith("_") or name in self._own)
            and not name.startswith(("_self_", "_kfit_", "__"))
            and not self._is_kept(part, name)
        )


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _is_same(value: Any, before: Any) -> bool:
    return value is before or (type(value) is type(before) and bool(value == before))


def _is_of_library(kind: type) -> bool:
    return is_of_library(kind, LIBRARIES) or kind.__module__ in ("abc", "builtins", "typing")


@lru_cache(maxsize=64)
def _set_in_steps(kinds: frozenset[type]) -> frozenset[str]:
    """Returns the names of the attributes that code may set while the model trains.

    Of Keras' classes these are all that any method but `__init__` sets. Of the program's classes,
    they are those that methods set which Keras calls, such as `call`, and methods that these call.

    Args:
        kinds: The classes of the parts of a model, with all their bases.
    """
    found: set[str] = set()
    named: set[str] = set()
    own: dict[str, list[CodeType]] = {}
    for kind in kinds:
        for name, code in _methods_of(kind):
            if not _is_of_library(kind):
                own.setdefault(name, []).append(code)
            elif name != "__init__":
                found.update(_set_by(code))
                named.update(code.co_names)
    own.pop("__init__", None)
    reached = [name for name in own if name in named or name.startswith("__")]
    seen: set[str] = set()
    while reached:
        name = reached.pop()
        if name in own and name not in seen:
            seen.add(name)
            for code in own[name]:
                found.update(_set_by(code))
                reached += code.co_names
    return frozenset(found)


def _methods_of(kind: type) -> Iterator[tuple[str, CodeType]]:
    """Yields the code of the methods and properties that a class defines, with their names."""
    for name, value in vars(kind).items():
        for each in (value.fget, value.fset) if isinstance(value, property) else (value,):
            code = code_of_method(each)
            if code is not None:
                yield name, code


@lru_cache(maxsize=4096)
def _set_by(code: CodeType) -> frozenset[str]:
    """Returns the names of the attributes that code sets, that of functions in it included."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _set_by(inner)
    return frozenset(found)
