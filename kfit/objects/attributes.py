"""What an object of the user's remembers in its attributes, where it doesn't say so itself.

Looked at are the attributes of the object, and of the plain objects in them whose classes belong to
the program and to no installed package; and the variables that its code names (`names.py`). What
has changed since the baseline is state; so are random generators, and in attributes also arrays and
lists that hold an order of numbers. Only values whose types are exactly Python's and NumPy's own
are kept; of all else that changes the name is told.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from kfit.objects.handles import is_handle, is_open_to_looks
from kfit.objects.looks import Looks
from kfit.objects.names import Names, names_in
from kfit.objects.own_generators import give, holds_state, is_generator, nbytes_of, read
from kfit.objects.plain_objects import DEEPEST, OF_KERAS, holds_only_state, is_own
from kfit.objects.values import decode, elements, encode, is_exact, size_of

LARGEST = 64 << 20
"""Bytes of the largest value that is kept."""
_SMALL = 1 << 14
"""Bytes of the largest value that is looked at with every batch, or put back to its baseline."""
_AT_ONCE = 1 << 16
_FEW = 1000
"""Bytes and elements that are looked at with every batch, in total."""
_NAMED = 3
"""Names in a warning."""
_IN_CODE = "names in code"
"""The path's first part of what the object's code names."""
_PROCESSES: dict[int, str] = {}
"""What tells this process from all others, those that were forked from it included."""

AttributePath = tuple[Any, ...]
Chooses = Callable[[str], bool]


class _Leaf(NamedTuple):
    """A value, where it is found, and what holds it: attributes of an object, a list, a dict."""

    path: AttributePath
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
        self, owner: Any, looks: Chooses = lambda name: True, foreign: Container[int] = ()
    ) -> None:
        self._owner = owner
        self._looks = looks
        self._foreign = foreign
        self._names = names_in(owner)
        self._known = Looks(foreign)
        self._kinds: dict[AttributePath, type] | None = None
        with self.one_look():
            self._kinds = {path: type(value) for path, value in self._objects()}
            self._baseline = {leaf.path: self._mark(leaf.value) for leaf in self._leaves()}
            self._begun = {
                leaf.path: _entry(leaf.value)
                for leaf in self._leaves()
                if self._can_keep(leaf.value, _SMALL) and not is_generator(leaf.value)
            }

    def one_look(self) -> AbstractContextManager[None]:
        """Within it nothing changes: what is large is compared once, and not in each call."""
        return self._known.one()

    def state_dict(self) -> list[dict[str, Any]]:
        """What is state, as a tree: a path and a value each."""
        with self.one_look():
            return [
                _kept(path, _entry(value))
                for path, value, _ in self._leaves()
                if self._can_keep(value)
                and (
                    is_generator(value)
                    or (path[0] != _IN_CODE and _is_order(value))  # a constant may look like one
                    or self._has_changed(path, value)
                )
            ]

    def unsaved(self) -> list[str]:
        """The names of what has changed since the baseline and can't be kept, with its class.

        What is of this process alone, such as an open file, is none: the program makes it anew.
        """
        with self.one_look():
            return [
                f"{name_of(path)} (a {type(value).__name__})"
                for path, value, _ in self._leaves()
                if not self._can_keep(value)
                and self._has_changed(path, value)
                and not is_handle(value)
            ]

    def small(self) -> dict[AttributePath, Any]:
        """The values of what is small, to be asked for often; see `with_small`."""
        found: dict[AttributePath, Any] = {}
        left, room = _FEW, _AT_ONCE
        for path, value, _ in self._leaves(shallow=True):
            if left <= 1:
                break
            count = elements(value, left)
            if count >= left:  # too many: looked at between epochs
                left -= 1
                continue
            left -= count
            if self._can_keep(value, min(room, _SMALL)):
                found[path] = _entry(value)
                room -= nbytes_of(value) if holds_state(value) else size_of(value)
        return found

    def with_small(
        self,
        state: list[dict[str, Any]],
        before: dict[AttributePath, Any],
        small: dict[AttributePath, Any],
    ) -> list[dict[str, Any]]:
        """What `state_dict` gave when `small` was `before`, as of when it was `small`."""
        merged = {tuple(entry["path"]): entry for entry in state}
        for path, value in small.items():
            if path in merged or not _same(before.get(path), value):
                merged[path] = _kept(path, value)
        return list(merged.values())

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Gives the object its state back, into the objects that are there where possible.

        What the state lacks had not changed from the baseline then, and is put back to it. Warns of
        what has no place here. Variables of the program, as its code names them, that hold values
        stay as they are in the process that saved them: there the program itself goes on.
        """
        entries = {
            tuple(entry["path"]): entry for entry in state if entry.get("process") != _process()
        }
        with self.one_look():
            lost = self._reset(entries)
        with self.one_look():
            lost += self._give(entries)
        if lost:
            warnings.warn(
                f"The snapshot's state of a {type(self._owner).__name__} does not fit whole: "
                f"{listed(lost)} of it can't be given its value of then and stays as it is.",
                stacklevel=2,
            )

    def _reset(self, kept: Container[AttributePath]) -> list[str]:
        """Puts back to the baseline what is not among `kept`; returns the names of what can't."""
        leaves = [
            leaf
            for leaf in self._leaves()
            if leaf.path not in kept and (leaf.path[0] != _IN_CODE or holds_state(leaf.value))
        ]
        changed = [leaf for leaf in leaves if self._has_changed(leaf.path, leaf.value)]
        there = {path[:end] for path in self._baseline for end in range(1, len(path) + 1)}
        there |= set(self._kinds or ())
        for path, value, holder in changed:
            if path not in there and isinstance(holder, dict) and is_exact(value):
                del holder[path[-1]]  # it was not there yet
        self._give(
            {leaf.path: self._begun[leaf.path] for leaf in changed if leaf.path in self._begun}
        )
        return [
            name_of(path)
            for path, value, _ in changed
            if self._can_keep(value) and path in there and path not in self._begun
        ]

    def _give(self, entries: dict[AttributePath, Any]) -> list[str]:
        """Puts values in their places; returns the names of those that have none."""
        places = {leaf.path: leaf.value for leaf in self._leaves()}
        holders = dict(self._holders())
        lost = []
        for path, entry in entries.items():
            if "state" in entry and holds_state(places.get(path)):
                give(places[path], entry["state"])
            elif not (
                "value" in entry
                and path[:-1] in holders
                and _may_hold(path)
                and _put(holders[path[:-1]], path[-1], decode(entry["value"]))
            ):
                lost.append(name_of(path))
        return lost

    def _mark(self, value: Any) -> Any:
        return self._known.at(value).mark

    def _has_changed(self, path: AttributePath, value: Any) -> bool:
        return self._baseline.get(path) != self._mark(value)

    def _can_keep(self, value: Any, largest: int = LARGEST) -> bool:
        if holds_state(value):
            return nbytes_of(value) <= largest
        known = self._known.at(value)
        return known.is_exact and known.size <= largest

    def _leaves(self, shallow: bool = False) -> Iterator[_Leaf]:
        for path, holder in self._holders(shallow):
            for key, value in self._entries(path, holder):
                if isinstance(value, OF_KERAS):
                    for index, variable in enumerate(value.variables):
                        if id(variable) not in self._foreign:
                            yield _Leaf((*path, key, index), variable, holder)
                elif not self._is_entered((*path, key), value, shallow):
                    yield _Leaf((*path, key), value, holder)

    def _objects(self) -> Iterator[tuple[AttributePath, Any]]:
        """The objects of the program that there are."""
        for path, holder in self._holders():
            for key, value in self._entries(path, holder):
                if is_own(value, self._owner):
                    yield (*path, key), value

    def _holders(self, shallow: bool = False) -> Iterator[tuple[AttributePath, Any]]:
        """The attributes of objects, and the lists and dicts, that hold what is looked at."""
        stack: list[tuple[AttributePath, Any]] = [
            ((_IN_CODE,), Names(self._names)),
            ((), vars(self._owner)),
        ]
        seen = {id(self._owner)}
        while stack:
            path, holder = stack.pop()
            yield path, holder
            for key, item in self._entries(path, holder):
                if id(item) not in seen and self._is_entered((*path, key), item, shallow):
                    seen.add(id(item))
                    inside = item if type(item) in (list, tuple, dict) else vars(item)
                    stack.append(((*path, key), inside))

    def _entries(self, path: AttributePath, holder: Any) -> list[tuple[Any, Any]]:
        """What is looked at of what a holder holds."""
        return [
            (key, value)
            for key, value in _items(holder)
            if (path or self._looks(key)) and id(value) not in self._foreign
            if is_open_to_looks(value)
        ]

    def _is_entered(self, path: AttributePath, value: Any, shallow: bool) -> bool:
        """Whether what a value holds is looked at, and not the value as a whole."""
        if len(path) >= DEEPEST:
            return False
        if type(value) in (list, tuple, dict):
            if shallow and elements(value, _FEW) >= _FEW:
                return False
            return bool(value) and not self._known.at(value).is_exact and holds_only_state(value)
        known = self._kinds is None or self._kinds.get(path) is type(value)
        return known and is_own(value, self._owner)


def name_of(path: AttributePath) -> str:
    """A path as it stands in a program."""
    first, *rest = path[1:] if path[0] == _IN_CODE else path
    return str(first) + "".join(f".{p}" if _is_name(p) else f"[{p!r}]" for p in rest)


def listed(names: list[str]) -> str:
    """The first few names, for a warning."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and part.isidentifier()


def _items(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return [(k, v) for k, v in list(holder.items()) if type(k) in (str, int)]
    return list(enumerate(holder))


def _kept(path: AttributePath, entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the state; of a value that the code names with the process that saves it."""
    is_named = path[0] == _IN_CODE and "value" in entry
    return {"path": list(path), **entry, **({"process": _process()} if is_named else {})}


def _process() -> str:
    return _PROCESSES.setdefault(os.getpid(), uuid.uuid4().hex)


def _entry(value: Any) -> dict[str, Any]:
    return {"state": read(value)} if holds_state(value) else {"value": encode(value)}


def _may_hold(path: AttributePath) -> bool:
    """Whether nothing but a value can be put there: no method, nothing of Python's own."""
    return not any(isinstance(part, str) and part.startswith("__") for part in path)


def _put(holder: Any, key: Any, value: Any) -> bool:
    """Puts a value in its place, if there is one; what is there and can be changed is changed."""
    inside: Any = dict(_items(holder)).get(key)
    if _fits(inside, value):
        inside[...] = value
    elif type(inside) is type(value) is list:
        inside[:] = value
    elif type(inside) is type(value) and type(value) in (dict, set):
        inside.clear()
        inside.update(value)
    elif isinstance(holder, dict) or (isinstance(holder, list) and key < len(holder)):
        holder[key] = value
    else:
        return False
    return True


def _fits(inside: Any, value: Any) -> bool:
    if not isinstance(inside, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    same = inside.shape == value.shape and inside.dtype == value.dtype
    return same and bool(inside.flags.writeable)


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
