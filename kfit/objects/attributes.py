"""What an object of the user's remembers in its attributes, where it doesn't say so itself.

Looked at are the attributes of the object, of the objects in it whose classes belong to the program
and to no installed package, and what lists and dicts hold. What has changed since the baseline is
state; so are random generators, and arrays and lists that hold an order of numbers. All else is how
the object was made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np

from kfit.objects.own_generators import give, holds_state, is_generator, read
from kfit.objects.values import decode, encode, fingerprint, is_plain, size_of

LARGEST = 64 << 20
"""Bytes of the largest value that is kept."""
_SMALL = 1 << 14
_FEW = 1 << 10
"""Bytes and elements of the largest value that is looked at with every batch."""

_OF_KERAS = (keras.Layer, keras.Metric, keras.optimizers.Optimizer)
"""Objects whose variables are looked at."""

Place = tuple[Any, ...]
Looks = Callable[[str], bool]


class _Leaf(NamedTuple):
    """A value, where it is found, and what holds it: attributes of an object, a list, a dict."""

    path: Place
    value: Any
    holder: Any


class Attributes:
    """The state of one object.

    Args:
        owner: The object.
        looks: Says of the name of an attribute of `owner` whether it is looked at; all are.
        foreign: Identities of objects that belong to others, such as the model's variables.
    """

    def __init__(
        self, owner: Any, looks: Looks = lambda name: True, foreign: Container[int] = ()
    ) -> None:
        self._owner = owner
        self._module = type(owner).__module__
        self._looks = looks
        self._foreign = foreign
        self._baseline = {leaf.path: _mark(leaf.value) for leaf in self._leaves()}
        self._small: dict[Place, Any] = {}

    def state_dict(self) -> list[dict[str, Any]]:
        """What is state, as a tree: a path and a value each."""
        kept = []
        for path, value, _ in self._leaves():
            if holds_state(value):
                if is_generator(value) or self._baseline.get(path) != _mark(value):
                    kept.append({"path": list(path), "state": read(value)})
            elif not is_plain(value) or size_of(value) > LARGEST:
                continue
            elif _is_order(value) or self._baseline.get(path) != _mark(value):
                kept.append({"path": list(path), "value": encode(value)})
        return kept

    def unsaved(self) -> list[str]:
        """The names of what has changed since the baseline and can't be kept."""
        names = []
        for path, value, _ in self._leaves():
            can = holds_state(value) or (is_plain(value) and size_of(value) <= LARGEST)
            if not can and self._baseline.get(path) != _mark(value):
                names.append(name_of(path))
        return names

    def small(self) -> dict[Place, Any]:
        """The values of what is small, to be asked for often; see `with_small`."""
        found: dict[Place, Any] = {}
        for path, value, _ in self._leaves(shallow=True):
            if holds_state(value):
                found[path] = {"state": read(value)}
            elif _is_small(value):
                found[path] = {"value": encode(value)}
        return found

    def with_small(
        self, state: list[dict[str, Any]], before: dict[Place, Any], small: dict[Place, Any]
    ) -> list[dict[str, Any]]:
        """What `state_dict` gave when `small` was `before`, as of when it was `small`."""
        merged = {tuple(entry["path"]): entry for entry in state}
        for path, value in small.items():
            if path in merged or not _same(before.get(path), value):
                merged[path] = {"path": list(path), **value}
        return list(merged.values())

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Gives the object its state back, into the objects that are there where possible.

        Raises:
            ValueError: If the object has no such place.
        """
        places = {leaf.path: leaf for leaf in self._leaves()}
        holders = {(): vars(self._owner), **dict(self._holders())}
        for entry in state:
            path = tuple(entry["path"])
            leaf = places.get(path)
            if "state" in entry and leaf is not None and holds_state(leaf.value):
                give(leaf.value, entry["state"])
            elif "value" in entry and path[:-1] in holders and _may_hold(path):
                _put(holders[path[:-1]], path[-1], decode(entry["value"]))
            else:
                raise ValueError(
                    f"a {type(self._owner).__name__} has no `{name_of(path)}` to be given its state"
                )

    def _leaves(self, shallow: bool = False) -> Iterator[_Leaf]:
        for path, holder in self._holders(shallow):
            for key, value in _entries(holder):
                if path or self._looks(key):
                    yield from self._leaf((*path, key), value, holder, shallow)

    def _leaf(self, path: Place, value: Any, holder: Any, shallow: bool) -> Iterator[_Leaf]:
        if id(value) in self._foreign:
            return
        if isinstance(value, _OF_KERAS):
            for index, variable in enumerate(value.variables):
                if id(variable) not in self._foreign:
                    yield _Leaf((*path, index), variable, holder)
        elif not self._is_holder(value, shallow):
            yield _Leaf(path, value, holder)

    def _holders(self, shallow: bool = False) -> Iterator[tuple[Place, Any]]:
        """The attributes of objects, and the lists and dicts, that hold what is looked at."""
        stack: list[tuple[Place, Any]] = [((), self._owner)]
        seen = {id(self._owner)}
        while stack:
            path, value = stack.pop()
            holder = value if isinstance(value, (list, tuple, dict)) else vars(value)
            yield path, holder
            for key, item in _entries(holder):
                if not (path or self._looks(key)) or id(item) in seen:
                    continue
                if self._is_holder(item, shallow) and id(item) not in self._foreign:
                    seen.add(id(item))
                    stack.append(((*path, key), item))

    def _is_holder(self, value: Any, shallow: bool) -> bool:
        """Whether what a value holds is looked at, and not the value as a whole."""
        if isinstance(value, (list, tuple, dict)):
            if shallow and len(value) > _FEW:
                return False
            return bool(value) and not is_plain(value) and len(value) <= _SMALL
        return (
            hasattr(value, "__dict__")
            and not isinstance(value, (type, ModuleType, *_OF_KERAS))
            and not hasattr(value, "__code__")
            and not holds_state(value)
            and (type(value).__module__ == self._module or is_written_here(type(value).__module__))
        )


def name_of(path: Place) -> str:
    """A path as it stands in a program."""
    first, *rest = path
    return str(first) + "".join(f".{p}" if _is_name(p) else f"[{p!r}]" for p in rest)


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and part.isidentifier()


def _entries(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return [(k, v) for k, v in holder.items() if isinstance(k, (str, int))]
    return list(enumerate(holder))


def _may_hold(path: Place) -> bool:
    """Whether nothing but a value can be put there: no method, nothing of Python's own."""
    return not any(isinstance(part, str) and part.startswith("__") for part in path)


def _put(holder: Any, key: Any, value: Any) -> None:
    """Puts a value in its place; what is there and can be changed is changed."""
    inside: Any = dict(_entries(holder)).get(key)
    if _fits(inside, value):
        inside[...] = value
    elif isinstance(inside, list) and isinstance(value, list):
        inside[:] = value
    elif isinstance(inside, (dict, set)) and isinstance(value, (dict, set)):
        inside.clear()
        inside.update(value)
    elif isinstance(holder, tuple):
        raise ValueError(f"a tuple's element {key!r} can't be given its state")
    else:
        holder[key] = value


def _fits(inside: Any, value: Any) -> bool:
    if not isinstance(inside, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    same = inside.shape == value.shape and inside.dtype == value.dtype
    return same and bool(inside.flags.writeable)


def _mark(value: Any) -> Any:
    """What tells whether a value has changed."""
    if holds_state(value):
        return fingerprint(decode(read(value)))
    return fingerprint(value) if is_plain(value) else id(value)


@lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Whether a module is of the user's own program, and of no package that was installed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top in ("kfit", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _is_small(value: Any) -> bool:
    """Whether a value is plain and small; told without a look into large ones."""
    if isinstance(value, np.ndarray) and value.nbytes > _SMALL:
        return False
    if hasattr(value, "__len__") and not hasattr(value, "shape") and len(value) > _FEW:
        return isinstance(value, (str, bytes)) and len(value) <= _SMALL
    return is_plain(value) and size_of(value) <= _SMALL


def _is_order(value: Any) -> bool:
    """Whether a value is a permutation of the numbers from 0 on."""
    if isinstance(value, list) and not (value and set(map(type, value)) == {int}):
        return False
    if not isinstance(value, (np.ndarray, list)):
        return False
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2:
        return False
    inside = array.min() == 0 and array.max() == len(array) - 1
    return bool(inside and np.bincount(array).max() == 1)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)
