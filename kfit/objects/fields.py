"""Reads and sets the attributes of objects, whether `__dict__` or `__slots__` hold them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_OF_PYTHON = frozenset({"__dict__", "__weakref__"})


class _Slots(dict[str, Any]):
    """The attributes of an object with `__slots__`; setting an item sets the attribute."""

    def __init__(self, value: Any) -> None:
        self._value = value
        found = {name: getattr(value, name, self) for name in _slots_of(value)}
        super().__init__(getattr(value, "__dict__", {}))
        self.update((name, held) for name, held in found.items() if held is not self)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        object.__setattr__(self._value, name, value)  # a frozen dataclass refuses `setattr`

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        object.__delattr__(self._value, name)


def has_fields(value: Any) -> bool:
    """Returns whether an object has a `__dict__` or `__slots__`, which may hold state."""
    return hasattr(value, "__dict__") or bool(_slots_of(value))


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object that has some (`has_fields`), by their names.

    Setting or deleting an item of the result sets or deletes the attribute.
    """
    fields: dict[str, Any] = _Slots(value) if _slots_of(value) else vars(value)
    return fields


def is_derived(fields: Any, name: Any) -> bool:
    """Returns whether an attribute is one that Keras sets anew, so that it is no state.

    It is `min_delta` of callbacks with a `monitor`: they turn its sign when they first compare
    values, and know by `monitor_op`, a function, that they have.
    """
    return bool(name == "min_delta" and isinstance(fields, dict) and "monitor_op" in fields)


def _slots_of(value: Any) -> tuple[str, ...]:
    kind: Any = type(value)
    return _slots_of_class(kind)


@lru_cache(maxsize=4096)
def _slots_of_class(kind: Any) -> tuple[str, ...]:
    """Returns the names of the attributes that the classes of an object reserve slots for."""
    names: dict[str, None] = {}
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            is_private = name.startswith("__") and not name.endswith("__")
            names[f"_{each.__name__.lstrip('_')}{name}" if is_private else name] = None
    return tuple(name for name in names if name not in _OF_PYTHON)
