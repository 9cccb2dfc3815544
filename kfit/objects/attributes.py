"""Finds, saves and restores the state of an object that has no methods for its state.

Examples are callbacks and data loaders of the user. These places are searched for state: the
attributes of the object; the attributes of plain objects in these attributes, if their classes
belong to the user's program and not to an installed package; and the variables that the object's
code refers to (`names.py`).

State is every value that has changed since the baseline, which is read when `Attributes` is
created; and every random generator. In attributes, every array or list that is a permutation of 0
to n - 1 is state, too: it may be a random order that the program made before the baseline.

Random generators and variables of TensorFlow and Keras are saved. Any other value is saved only if
it can be restored with exactly its type (`values.is_exact`). Values above 64 MiB are not saved. Of
values that have changed but cannot be saved, only the names are reported.
"""

from __future__ import annotations

import operator
import os
import uuid
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import numpy as np

from kfit.heartbeat.tracebacks import warn_user
from kfit.objects.aliases import aliases_in, is_mutable, value_at
from kfit.objects.bindings import GONE, IS, Bindings
from kfit.objects.fields import fields_of, is_derived
from kfit.objects.handles import is_handle, is_open_to_looks
from kfit.objects.holders import bind, items_of, put, unbind
from kfit.objects.iterators import is_iterator
from kfit.objects.keras_variables import OF_METRIC, build_optimizers, variables_of
from kfit.objects.looks import Looks
from kfit.objects.names import Names, names_in
from kfit.objects.orders import is_order, may_be_written
from kfit.objects.own_generators import (
    check_state,
    give,
    holds_state,
    is_generator,
    nbytes_of,
    read,
)
from kfit.objects.plain_objects import (
    DEEPEST,
    OF_KERAS,
    holds_only_state,
    is_frozen,
    is_own,
    refers_to,
)
from kfit.objects.values import DICTS, decode, elements, encode, is_exact, size_of, type_of

LARGEST = 64 << 20
"""Bytes of the largest value that is saved."""
_SMALL = 1 << 14
"""Bytes of the largest value that is read at every batch, or can be reset to its baseline."""
_AT_ONCE = 1 << 16
_FEW = 1000
"""The most bytes, and the most elements, that are read at every batch in total."""
_MOST_OBJECTS = 100
"""The most items of a container of objects that is searched."""
_NAMED = 3
"""The most names that a warning lists."""
_IN_CODE = "names in code"
"""The first part of the paths of variables that the object's code refers to."""
_AS_MADE = "as made"
"""The key in entries of orders that are those which the program had made, before training."""
_SEARCHED = (list, tuple, *DICTS)
"""The types of containers that may be searched for state."""
_PROCESSES: dict[int, str] = {}
"""A random ID by process ID. It differs in every process, forked ones included."""

AttributePath = tuple[Any, ...]
Chooses = Callable[[str], bool]


class _Leaf(NamedTuple):
    """A value that the search for an object's state has found.

    Attributes:
        path: The attribute names, indices and keys that lead from the object to the value.
        value: The value.
        holder: The `__dict__`, list, tuple or dict that contains the value.
    """

    path: AttributePath
    value: Any
    holder: Any


class Attributes:
    """The state of one object, which can be saved and restored.

    The state is in the attributes of the object, and in variables that the object's code refers to.
    Creating an `Attributes` reads the baseline: values that later differ from the baseline are
    state.

    Args:
        owner: The object, such as a callback or a data loader of the user.
        looks: A function that returns whether the attribute of `owner` with a certain name is
            searched. By default all attributes are.
        foreign: Ids (as of `id`) of objects that are skipped, since they belong to something else,
            such as the model's variables.
        besides: Classes whose objects are skipped as well.
    """

    def __init__(
        self,
        owner: Any,
        looks: Chooses = lambda name: True,
        foreign: Container[int] = (),
        besides: tuple[type, ...] = (),
    ) -> None:
        self._owner = owner
        self._looks = looks
        self._foreign = foreign
        self._besides = besides
        self._names = names_in(owner)
        self._known = Looks(foreign)
        self._kinds: dict[AttributePath, Any] | None = None
        self._bindings = Bindings()
        self._baseline: dict[AttributePath, Any] = {}
        self._members: dict[AttributePath, list[Any]] = {}
        self._iterators: dict[int, Any] = {}
        self._aliases: dict[AttributePath, AttributePath] = {}
        self._is_begun = False
        with self.one_look():
            objects = list(self._objects())
            self._kinds = {path: _kind_of(value) for path, value in objects if self._is_own(value)}
            self._baseline = {leaf.path: self._mark(leaf.value) for leaf in self._leaves()}
            self._bindings = Bindings(objects, self._baseline)
            self._begun = {
                leaf.path: _entry(leaf.value)
                for leaf in self._leaves()
                if self._can_keep(leaf, _SMALL) and not is_generator(leaf.value)
            }
            self._aliases = self._aliases_now()
            self._iterators = {
                id(leaf.value): leaf.value for leaf in self._leaves() if is_iterator(leaf.value)
            }
        self._is_begun = True

    def one_look(self) -> AbstractContextManager[None]:
        """A context in which each large value is examined only once, which saves time.

        No value may change within the context.
        """
        return self._known.one()

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns the object's state, in a form that a snapshot can contain.

        The state is a list of entries. Each entry has a path (the attribute names, indices and keys
        that lead to a value) and the encoded value. That of an order which training has not changed
        also has `_AS_MADE`. Instead of a value, an entry may tell that another object is at the
        path, or that nothing is (`bindings.py`).
        """
        with self.one_look():
            state = []
            for leaf in self._leaves():
                path, value, _ = leaf
                if not self._can_keep(leaf):
                    continue
                if is_generator(value) or self._has_changed(path, value):
                    state.append(_kept(path, _entry(value)))
                elif path[0] != _IN_CODE and is_order(value):  # constants may look like one
                    state.append({**_kept(path, _entry(value)), _AS_MADE: True})
            state += [_kept(path, entry) for path, entry in self._rebound()]
            return state + self._new_aliases({tuple(entry["path"]) for entry in state})

    def _new_aliases(self, saved: Container[AttributePath]) -> list[dict[str, Any]]:
        """Returns entries for places with one mutable value, unless a new process makes it so.

        Args:
            saved: The paths of the values that are saved.
        """
        return [
            _kept(path, {IS: list(first)})
            for path, first in self._aliases_now().items()
            if self._aliases.get(path) != first
            or any(path[:end] in saved for end in range(1, len(path) + 1))
        ]

    def _aliases_now(self) -> dict[AttributePath, AttributePath]:
        return aliases_in(
            ((*leaf.path, *inner), part)
            for leaf in self._leaves()
            if self._can_keep(leaf) and not holds_state(leaf.value)
            for inner, part in self._known.at(leaf.value).parts
        )

    def unsaved(self) -> list[str]:
        """Returns the names and classes of values that have changed but can't be saved.

        A warning lists them. Values that belong to this process only, such as open files, are left
        out: the program creates them again after a restart.
        """
        with self.one_look():
            return [
                f"{name_of(leaf.path)} (a {type(leaf.value).__name__})"
                for leaf in self._leaves()
                if not self._can_keep(leaf)
                and self._has_changed(leaf.path, leaf.value)
                and not is_handle(leaf.value)
                and not self._is_of_keras(leaf.path)
            ]

    def small(self) -> dict[AttributePath, Any]:
        """Returns the encoded values of small attributes by path; fast enough for every batch.

        Large values are left out. The method `with_small` adds them to the result, from a complete
        state that was read when there was time to read it.
        """
        found = {_key_of(path, entry): entry for path, entry in self._rebound(shallow=True)}
        left, room = _FEW, _AT_ONCE
        for leaf in self._leaves(shallow=True):
            path, value, _ = leaf
            if left <= 1:
                break
            count = elements(value, left)
            if count >= left:  # too many elements: read between epochs only
                left -= 1
                continue
            left -= count
            if self._can_keep(leaf, min(room, _SMALL)):
                found[path] = _entry(value)
                room -= nbytes_of(value) if holds_state(value) else size_of(value)
        return found

    def with_small(
        self,
        state: list[dict[str, Any]],
        before: dict[AttributePath, Any],
        small: dict[AttributePath, Any],
    ) -> list[dict[str, Any]]:
        """Computes the state after a batch from its small values and an earlier complete state.

        Only small values are read after every batch, since reading the large ones would take too
        long. So the result has the large values of the earlier state, which was read, for example,
        before the first batch. It has those small values that are in the earlier state or have
        changed since then.

        Args:
            state: The earlier complete state, as `state_dict` returned it.
            before: What `small` returned at the time of the earlier state.
            small: What `small` returned after the batch.

        Returns:
            The state in the form that `state_dict` returns.
        """
        merged = {_key_of(tuple(entry["path"]), entry): entry for entry in state}
        for key in before.keys() - small.keys():
            if _is_rebound(before[key]):
                del merged[key]
        changed = {key for key, value in small.items() if not _same(before.get(key), value)}
        for key in changed:
            value = small[key]
            merged[key] = _kept(key[-1] if _is_rebound(value) else key, value)
        return [entry for entry in merged.values() if not self._is_old_alias(entry, changed)]

    def _is_old_alias(self, entry: dict[str, Any], changed: Container[AttributePath]) -> bool:
        """Returns whether an entry tells that two places have one value, of which one has changed.

        Then they may be two by now.

        Args:
            entry: The entry.
            changed: The paths of the values that have changed since the entry was made.
        """
        paths = [tuple(entry["path"]), tuple(entry.get(IS, ()))]
        if self._bindings.at(paths[1]) is not None:
            return False
        inner = [path[:end] for path in paths for end in range(1, len(path) + 1)]
        return IS in entry and any(path in changed for path in inner)

    def load_state_dict(self, state: list[dict[str, Any]], *, is_shared: bool = False) -> None:
        """Restores the object's state; arrays, lists, dicts and generators in place if possible.

        A value that is not in `state` was equal to the baseline (its value when this `Attributes`
        was created), so it is reset to the baseline. A warning lists values that cannot be
        restored.

        Python variables that the object's code refers to are an exception. They are never reset to
        the baseline, and are restored only if another process has saved the state: in the process
        that has saved it, the program is still running, and has set these variables itself. But
        random generators in these variables are always restored and reset, and so are TensorFlow's
        and Keras' variables.

        Args:
            state: What `state_dict` returned, here or in another process.
            is_shared: Whether it is the present state of another task, so that it is no news that
                the orders are other ones.
        """
        entries = [entry for entry in state if entry.get("process") != _process()]
        rebound = {tuple(entry["path"]): entry for entry in entries if _is_rebound(entry)}
        values = {tuple(entry["path"]): entry for entry in entries if not _is_rebound(entry)}
        plain = {path for path, entry in values.items() if "value" in entry}
        with self.one_look():
            lost = self._reset_places(rebound.keys() | plain)
        with self.one_look():
            lost += self._reset(values)
        bound = {path: tuple(entry[IS]) for path, entry in rebound.items() if IS in entry}
        moved = {
            path: place for path, place in bound.items() if self._bindings.at(place) is not None
        }
        with self.one_look():
            lost += self._bind(moved)
        with self.one_look():
            lost += self._give(values)
        with self.one_look():
            lost += self._bind({path: bound[path] for path in bound if path not in moved})
        with self.one_look():
            lost += self._unbind([path for path, entry in rebound.items() if GONE in entry])
        if lost:
            warn_user(
                f"The snapshot's state of a {type(self._owner).__name__} was not restored "
                f"completely: {listed(lost)} could not be set, and is left as it is."
            )
        replaced = [] if is_shared else self._replaced_orders(values)
        if replaced:
            warn_user(
                f"The program has made a {type(self._owner).__name__} with another order of "
                f"{listed(replaced)} than the snapshot has. Training goes on with that of the "
                "snapshot, as it may have been drawn at random. If it is a setting which you have "
                "changed, keep it in a tuple, and it is not taken from snapshots."
            )

    def _replaced_orders(self, entries: dict[AttributePath, Any]) -> list[str]:
        """Returns the names of orders that were as made, but that the program now makes otherwise.

        Long ones are left out, since they were drawn at random.

        Args:
            entries: The entries of the saved state by their paths.
        """
        return [
            name_of(path)
            for path, entry in entries.items()
            if entry.get(_AS_MADE) and path in self._begun
            if not _same(self._begun[path], {"value": entry["value"]})
            and may_be_written(decode(entry["value"]))
        ]

    def _reset(self, kept: Container[AttributePath]) -> list[str]:
        """Resets changed values to the baseline: their values when this `Attributes` was created.

        Values that did not exist then are deleted.

        Args:
            kept: The paths of values that are left as they are, since a saved state has them.

        Returns:
            The names of the values that can't be reset.
        """
        leaves = [
            leaf
            for leaf in self._leaves()
            if leaf.path not in kept
            and (
                leaf.path[0] != _IN_CODE
                or (holds_state(leaf.value) and not is_iterator(leaf.value))
            )
        ]
        changed = [leaf for leaf in leaves if self._has_changed(leaf.path, leaf.value)]
        there = {path[:end] for path in self._baseline for end in range(1, len(path) + 1)}
        there |= set(self._kinds or ())
        for path, value, holder in changed:
            if path not in there and isinstance(holder, dict) and is_exact(value):
                del holder[path[-1]]  # it did not exist at the baseline
        self._give(
            {leaf.path: self._begun[leaf.path] for leaf in changed if leaf.path in self._begun}
        )
        return [
            name_of(leaf.path)
            for leaf in changed
            if self._can_keep(leaf) and leaf.path in there and leaf.path not in self._begun
        ]

    def _reset_places(self, kept: Container[AttributePath]) -> list[str]:
        """Puts the objects of the baseline back into their places, and values into empty ones.

        Args:
            kept: The paths that are left as they are, since a saved state has them.

        Returns:
            The names of the places that can't be reset.
        """
        paths = [p for p, _ in self._rebound() if p not in kept and p[0] != _IN_CODE]
        held = {path: path for path in paths if self._bindings.at(path) is not None}
        values = {
            path: self._begun[path] for path in paths if path in self._begun and path not in held
        }
        others = [path for path in paths if path not in held and path not in values]
        lost = self._bind(held) + self._unbind(others)
        for path, entry in values.items():
            if not put(self._holder_of(path), path[-1], decode(entry["value"])):
                lost.append(name_of(path))
        return lost

    def _bind(self, homes: dict[AttributePath, AttributePath]) -> list[str]:
        """Puts objects of the baseline, or values that are already in other places, into places.

        Args:
            homes: The homes of the objects (`bindings.py`), or the other places of the values, by
                the paths of the places.

        Returns:
            The names of the places that can't be set.
        """
        lost = []
        for path, home in homes.items():
            holder, value, may = self._holder_of(path), self._bindings.at(home), self._may_bind
            if value is None:
                found = value_at(self._places(), home)
                value, may = found if is_mutable(found) else None, self._may_set
            is_there = holder is not None and value is not None
            if not is_there or not may(path, holder) or not bind(holder, path[-1], value):
                lost.append(name_of(path))
        return lost

    def _unbind(self, paths: list[AttributePath]) -> list[str]:
        """Deletes what is at paths, and returns the names of the places where this can't be done.

        Items of lists are deleted from the last one on.
        """
        lost = []
        for path in reversed(paths):
            holder = self._holder_of(path)
            if holder is None or not self._may_bind(path, holder) or not unbind(holder, path[-1]):
                lost.append(name_of(path))
        return lost

    def _holder_of(self, path: AttributePath) -> Any:
        """Returns the `__dict__`, list, tuple or dict that has, or may get, the value at a path.

        This may be a list or dict that does not yet hold any object. The result is None if there is
        no such holder.
        """
        found = value_at(self._places(), path[:-1])
        return found if isinstance(found, (*_SEARCHED, deque)) else None

    def _places(self) -> dict[AttributePath, Any]:
        return {leaf.path: leaf.value for leaf in self._leaves()} | dict(self._holders())

    def _rebound(self, shallow: bool = False) -> Iterator[tuple[AttributePath, dict[str, Any]]]:
        """Yields the places where objects of the baseline are that were not, and the empty ones.

        Each has an entry for the state.

        Args:
            shallow: Whether to leave out large containers.
        """
        for path, holder in self._holders(shallow):
            for key, value in self._entries(path, holder):
                if self._bindings.has_moved((*path, key), value):
                    yield (*path, key), {IS: list(self._bindings.home_of(value, ()))}
            for place in self._bindings.missing(path, holder):
                if place != (_IN_CODE,):
                    yield place, {GONE: True}

    def _is_displaced(self, path: AttributePath) -> bool:
        """Returns whether the object that was at a path at the baseline is still in another place.

        Then the state of a new object at this path cannot be given to it.
        """
        held = self._bindings.at(path)
        if held is None:
            return False
        roots = (self._owner, *Names(self._names).values())
        is_at_home = self._bindings.home_of(held, path) == path
        return not is_at_home or refers_to(roots, held, self._owner, self._foreign)

    def _give(self, entries: dict[AttributePath, Any]) -> list[str]:
        """Sets values of the object to those of a saved state.

        Args:
            entries: The encoded values, by their paths in the object.

        Returns:
            The names of the values that can't be set.
        """
        for path, model in list(self._models()):
            begin = len(path)
            build_optimizers(model, [each[begin:] for each in entries if each[:begin] == path])
        # What has a home is there, even if it cannot be reached from the object any more.
        homes = dict(self._bindings.homes())
        places = homes | {leaf.path: leaf.value for leaf in self._leaves()}
        owned = {path: fields_of(value) for path, value in homes.items() if self._is_own(value)}
        holders = owned | dict(self._holders())
        apart = self._apart(entries)
        lost = []
        for path, entry in entries.items():
            if _state_in(entry) is not None and holds_state(places.get(path)):
                try:
                    give(places[path], _state_in(entry))
                except (ValueError, TypeError, RuntimeError):  # of another kind of generator
                    lost.append(name_of(path))
            elif not (
                "value" in entry
                and not is_generator(places.get(path))
                and path[:-1] in holders
                and self._may_set(path, holders[path[:-1]])
                and (bind if id(places.get(path)) in apart else put)(
                    holders[path[:-1]], path[-1], decode(entry["value"])
                )
            ):
                lost.append(name_of(path))
        return lost

    def _apart(self, entries: dict[AttributePath, Any]) -> set[int]:
        """Returns the ids of values that are at several places now, which get different values.

        They must not be set in place.

        Args:
            entries: The encoded values that will be set, by their paths.
        """
        first: dict[int, AttributePath] = {}
        apart = set()
        for path, value, _ in self._leaves():
            if path[0] != _IN_CODE and is_mutable(value):
                one = entries.get(first.setdefault(id(value), path), {})
                if not _same(one.get("value"), entries.get(path, {}).get("value")):
                    apart.add(id(value))
        return apart

    def _may_set(self, path: AttributePath, holder: Any) -> bool:
        """Returns whether a value of a saved state may be set at a path.

        A file could name any path. No function or other callable is replaced by a value.

        Args:
            path: The path of the value.
            holder: The `__dict__`, list, tuple or dict that will contain the value.
        """
        is_called = callable(dict(items_of(holder)).get(path[-1]))
        return not is_called and self._may_bind(path, holder)

    def _may_bind(self, path: AttributePath, holder: Any) -> bool:
        """Returns whether another object of the program's may be put at a path, or none.

        A file could name any path. No part of the path may be a special name, such as `__class__`,
        or an attribute that is not searched; and no method is replaced.

        Args:
            path: The path.
            holder: The `__dict__`, list, tuple or dict that contains the value at the path.
        """
        if any(isinstance(part, str) and part.startswith("__") for part in path):
            return False
        if path[0] != _IN_CODE and not self._looks(path[0]):
            return False
        if isinstance(holder, Names) and path[-1] not in holder.known:
            return False
        owner = self._owner if not path[:-1] else self._bindings.at(path[:-1])
        return not isinstance(path[-1], str) or not callable(getattr(type(owner), path[-1], None))

    def _is_of_keras(self, path: AttributePath) -> bool:
        """Returns whether a value is in one of Keras' callbacks, which makes it anew by itself."""
        kind = (self._kinds or {}).get(path[:-1])
        return isinstance(kind, type) and kind.__module__.partition(".")[0] == "keras"

    def _mark(self, value: Any) -> Any:
        return self._known.at(value).mark

    def _has_changed(self, path: AttributePath, value: Any) -> bool:
        return self._baseline.get(path) != self._mark(value)

    def _can_keep(self, leaf: _Leaf, largest: int = LARGEST) -> bool:
        value = leaf.value
        if self._is_begun and is_iterator(value) and id(value) not in self._iterators:
            return False  # a new process has none whose position could be set
        if holds_state(value):
            is_new = not self._bindings.knows(value) and self._is_displaced(leaf.path)
            return nbytes_of(value) <= largest and not is_new
        known = self._known.at(value)
        return known.is_exact and known.size <= largest

    def _leaves(self, shallow: bool = False) -> Iterator[_Leaf]:
        seen: set[int] = set()
        for path, holder in self._holders(shallow):
            for key, value in self._entries(path, holder):
                if self._bindings.knows(value):
                    if id(value) in seen:
                        continue
                    seen.add(id(value))
                place = self._bindings.home_of(value, (*path, key))
                if isinstance(value, OF_KERAS):
                    yield from self._variables(place, value, holder)
                elif not self._is_entered((*path, key), value, shallow):
                    yield _Leaf(place, value, holder)

    def _variables(self, path: AttributePath, value: Any, holder: Any) -> Iterator[_Leaf]:
        """Yields the variables of an object of Keras.

        Metrics of a second model that are created during training are left out: each evaluation
        starts them anew, and a new process could not set them.
        """
        for inner, variable in variables_of(value):
            place = (*path, *inner)
            is_late = self._is_begun and inner[0] == OF_METRIC and place not in self._baseline
            if id(variable) not in self._foreign and not is_late:
                yield _Leaf(place, variable, holder)

    def _objects(self) -> Iterator[tuple[AttributePath, Any]]:
        """Yields each object that no file can hold, with its path, and once more at each other one.

        These are objects of the user's classes, generators and variables, and objects of Keras.
        """
        for path, holder in self._holders():
            for key, value in self._entries(path, holder):
                if self._is_own(value) or holds_state(value) or isinstance(value, OF_KERAS):
                    yield (*path, key), value

    def _is_own(self, value: Any) -> bool:
        return is_own(value, self._owner)

    def _models(self) -> Iterator[tuple[AttributePath, keras.Model]]:
        """Yields each model that is not the trained one, with its path."""
        for path, holder in self._holders():
            for key, value in self._entries(path, holder):
                if isinstance(value, keras.Model):
                    yield self._bindings.home_of(value, (*path, key)), value

    def _holders(self, shallow: bool = False) -> Iterator[tuple[AttributePath, Any]]:
        """Yields each `__dict__`, list, tuple and dict that is searched for state, with its path.

        Args:
            shallow: Whether to leave out large containers.
        """
        stack: list[tuple[AttributePath, Any]] = [
            ((_IN_CODE,), Names(self._names)),
            ((), fields_of(self._owner)),
        ]
        seen = {id(self._owner)}
        while stack:
            path, holder = stack.pop()
            yield path, holder
            for key, item in self._entries(path, holder):
                if id(item) not in seen and self._is_entered((*path, key), item, shallow):
                    seen.add(id(item))
                    inside = item if type_of(item) in _SEARCHED else fields_of(item)
                    stack.append((self._bindings.home_of(item, (*path, key)), inside))

    def _entries(self, path: AttributePath, holder: Any) -> list[tuple[Any, Any]]:
        """Returns the keys and values in a `__dict__` or container, without those to be skipped.

        It skips attributes of the searched object that `looks` excludes, the objects in `foreign`,
        those of the classes `besides`, values whose class or attributes cannot be read, values that
        Keras derives, and items of a dict whose keys are not strings or integers.

        Args:
            path: The path of the `__dict__` or container in the searched object. The path of the
                `__dict__` of the searched object itself is empty.
            holder: The `__dict__`, list, tuple or dict.
        """
        return [
            (key, value)
            for key, value in items_of(holder)
            if (path or self._looks(key)) and id(value) not in self._foreign
            if is_open_to_looks(value) and not isinstance(value, self._besides)
            if not is_derived(holder, key)
        ]

    def _is_entered(self, path: AttributePath, value: Any, shallow: bool) -> bool:
        """Returns whether to search for state inside a value, instead of treating it as a whole.

        If the result is False, the value is compared with its baseline, and saved, as a whole.

        The result is True for objects of the user's classes, and for containers that cannot be
        saved as a whole because they hold random generators, variables or Keras objects, or a few
        objects of the user's that are those of the baseline, or because they are a `defaultdict`
        with a function of the user's. It is False for all other values, for dicts whose keys are
        not all strings and integers, for values that are nested too deep, and for a new object in
        whose place there was none of its class at the baseline, or one that is elsewhere now.

        Args:
            path: The path of the value. Its length tells how deep the value is nested.
            value: The value.
            shallow: Whether the result is also False for large containers.
        """
        if len(path) >= DEEPEST:
            return False
        if type_of(value) in _SEARCHED:
            if shallow and elements(value, _FEW) >= _FEW:
                return False
            if self._known.at(value).is_exact or len(items_of(value)) < len(value):
                return False
            return holds_only_state(value) or self._holds_same_objects(path, value)
        if not self._is_own(value):
            return False
        if self._kinds is None or self._bindings.knows(value):
            return True
        return self._kinds.get(path) is _kind_of(value) and not self._is_displaced(path)

    def _holds_same_objects(self, path: AttributePath, container: Any) -> bool:
        """Returns whether a container holds a few objects of the user's, as at the baseline.

        Then a new process makes the same objects, and each gets its state. If objects were added,
        replaced or put into another order, the container cannot be restored.
        """
        items = [item for _, item in items_of(container)]
        if len(container) > _MOST_OBJECTS or not any(is_own(i, self._owner) for i in items):
            return False
        others = [item for item in items if not is_exact(item)]
        if self._kinds is None:
            self._members[path] = others
        members = self._members.get(path, [])
        return len(others) == len(members) and all(map(operator.is_, others, members))


def _kind_of(value: Any) -> Any:
    """Returns the class of an object of the user's; for a fixed value, the object itself.

    An object of a frozen dataclass is a fixed value. If another one has taken its place, nothing of
    the other one may be given to the first.
    """
    return value if is_frozen(value) else type(value)


def name_of(path: AttributePath) -> str:
    """Returns the name of a value for messages, such as `items[0]` for `self.items[0]`.

    Args:
        path: The attribute names, indices and keys that lead from an object to the value.
    """
    first, *rest = path[1:] if path[0] == _IN_CODE else path
    return str(first) + "".join(f".{p}" if _is_name(p) else f"[{p!r}]" for p in rest)


def listed(names: list[str]) -> str:
    """Joins the first few names to a text for a warning."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and part.isidentifier()


def check_entries(state: list[dict[str, Any]]) -> None:
    """Checks that the values of an object's state, which was read from a file, can be decoded.

    Args:
        state: The state: a list of entries, as `Attributes.state_dict` returns it.

    Raises:
        Exception: If a value cannot be decoded. The error is that of the library which decodes it.
    """
    for entry in state:
        if _state_in(entry) is not None:
            check_state(decode(_state_in(entry)))
        elif not _is_rebound(entry):
            decode(entry["value"])


def _kept(path: AttributePath, entry: dict[str, Any]) -> dict[str, Any]:
    """Creates an entry of a saved state, from a path and the encoded value at this path.

    The entry of a variable that the object's code refers to also has the ID of this process, since
    the variable is restored only in other processes. This does not hold for random generators.
    """
    is_named = path[0] == _IN_CODE and "state" not in entry
    return {"path": list(path), **entry, **({"process": _process()} if is_named else {})}


def _process() -> str:
    return _PROCESSES.setdefault(os.getpid(), uuid.uuid4().hex)


def _entry(value: Any) -> dict[str, Any]:
    if is_iterator(value) and holds_state(value):
        return {"position": read(value)}
    return {"state": read(value)} if holds_state(value) else {"value": encode(value)}


def _is_rebound(entry: dict[str, Any]) -> bool:
    """Returns whether an entry tells which object is at its path, or that none is."""
    return IS in entry or GONE in entry


def _key_of(path: AttributePath, entry: dict[str, Any]) -> AttributePath:
    """Returns a key for an entry: the path of its value, or another one for the place itself.

    An object that was moved has its state at the path of its home, where another one may be now.
    """
    return ("place", path) if _is_rebound(entry) else path


def _state_in(entry: dict[str, Any]) -> Any:
    """Returns the encoded state of a generator or variable, or the position of an iterator."""
    return entry.get("state", entry.get("position"))


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)
