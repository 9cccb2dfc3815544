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

from collections import deque
from collections.abc import Container, Iterator
from contextlib import AbstractContextManager
from typing import Any

from kfit.heartbeat.tracebacks import warn_user
from kfit.objects.aliases import aliases_in, is_mutable, value_at
from kfit.objects.bindings import GONE, IS
from kfit.objects.entries import (
    entry_at,
    entry_of,
    is_rebound,
    key_of,
    process,
    same,
    state_in,
)
from kfit.objects.handles import is_handle
from kfit.objects.holders import bind, items_of, put, unbind
from kfit.objects.iterators import is_iterator
from kfit.objects.keras_parts import OWN
from kfit.objects.keras_variables import build_optimizers
from kfit.objects.names import Names
from kfit.objects.orders import is_order, may_be_written
from kfit.objects.own_generators import give, holds_state, is_generator, nbytes_of
from kfit.objects.plain_objects import OF_KERAS, inside_of
from kfit.objects.search import IN_CODE, SEARCHED, Chooses, Leaf, Path, Search
from kfit.objects.values import decode, elements, is_exact, size_of

LARGEST = 64 << 20
"""Bytes of the largest value that is saved."""
_SMALL = 1 << 14
"""Bytes of the largest value that is read at every batch, or can be reset to its baseline."""
_AT_ONCE = 1 << 16
_FEW = 1000
"""The most bytes, and the most elements, that are read at every batch in total."""
_NAMED = 3
"""The most names that a warning lists."""
_MADE = ", made after training began"
_AS_MADE = "as made"
"""The key in entries of orders that are those which the program had made, before training."""


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
        self._search = Search(owner, looks, foreign, besides)
        self._iterators: dict[int, Any] | None = None
        with self.one_look():
            self._baseline = {leaf.path: self._mark(leaf.value) for leaf in self._search.begin()}
            leaves = list(self._search.leaves())
            self._begun = {
                leaf.path: entry_of(leaf.value)
                for leaf in leaves
                if self._can_keep(leaf, _SMALL) and not is_generator(leaf.value)
            }
            self._aliases = self._aliases_now()
            self._iterators = {
                id(leaf.value): leaf.value for leaf in leaves if is_iterator(leaf.value)
            }

    def one_look(self) -> AbstractContextManager[None]:
        """A context in which each large value is examined only once, which saves time.

        No value may change within the context.
        """
        return self._search.known.one()

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns the object's state, in a form that a snapshot can contain.

        The state is a list of entries. Each entry has a path (the attribute names, indices and keys
        that lead to a value) and the encoded value. That of an order which training has not changed
        also has `_AS_MADE`. Instead of a value, an entry may tell that another object is at the
        path, or that nothing is (`bindings.py`).
        """
        with self.one_look():
            state = []
            for leaf in self._search.leaves():
                path, value, _ = leaf
                if not self._can_keep(leaf):
                    continue
                if is_generator(value) or self._has_changed(path, value):
                    state.append(entry_at(path, entry_of(value)))
                elif path[0] != IN_CODE and is_order(value):  # constants may look like one
                    state.append({**entry_at(path, entry_of(value)), _AS_MADE: True})
            state += [entry_at(path, entry) for path, entry in self._rebound()]
            return state + self._new_aliases({tuple(entry["path"]) for entry in state})

    def _new_aliases(self, saved: Container[Path]) -> list[dict[str, Any]]:
        """Returns entries for places with one mutable value, unless a new process makes it so.

        Args:
            saved: The paths of the values that are saved.
        """
        return [
            entry_at(path, {IS: list(first)})
            for path, first in self._aliases_now().items()
            if self._aliases.get(path) != first
            or any(path[:end] in saved for end in range(1, len(path) + 1))
        ]

    def _aliases_now(self) -> dict[Path, Path]:
        return aliases_in(
            ((*leaf.path, *inner), part)
            for leaf in self._search.leaves()
            if self._can_keep(leaf) and not holds_state(leaf.value)
            for inner, part in self._search.known.at(leaf.value).parts
        )

    def unsaved(self, *, made_late: bool = True) -> list[str]:
        """Returns the names and classes of values that have changed but can't be saved.

        A warning lists them, and generators and variables that were made during training, since no
        file can make them. Values that belong to this process only, such as open files, are left
        out: the program creates them again after a restart.

        Args:
            made_late: Whether generators and variables that were made during training are listed. A
                new process may have made its own before it restores a state.
        """
        with self.one_look():
            return [
                f"{name_of(leaf.path)} (a {type(leaf.value).__name__}{made})"
                for leaf in self._search.leaves()
                if (made := _MADE if made_late and self._is_made_late(leaf) else "")
                or not self._can_keep(leaf)
                if self._has_changed(leaf.path, leaf.value)
                and not is_handle(leaf.value)
                and not self._is_of_keras(leaf.path)
            ]

    def small(self) -> dict[Path, Any]:
        """Returns the encoded values of small attributes by path; fast enough for every batch.

        Large values are left out. The method `with_small` adds them to the result, from a complete
        state that was read when there was time to read it.
        """
        found = {key_of(path, entry): entry for path, entry in self._rebound(shallow=True)}
        left, room = _FEW, _AT_ONCE
        for leaf in self._search.leaves(shallow=True):
            path, value, _ = leaf
            if left <= 1:
                break
            count = elements(value, left)
            if count >= left:  # too many elements: read between epochs only
                left -= 1
                continue
            left -= count
            if self._can_keep(leaf, min(room, _SMALL)):
                found[path] = entry_of(value)
                room -= nbytes_of(value) if holds_state(value) else size_of(value)
        return found

    def with_small(
        self,
        state: list[dict[str, Any]],
        before: dict[Path, Any],
        small: dict[Path, Any],
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
        merged = {key_of(tuple(entry["path"]), entry): entry for entry in state}
        for key in before.keys() - small.keys():
            if is_rebound(before[key]):
                del merged[key]
        changed = {key for key, value in small.items() if not same(before.get(key), value)}
        for key in changed:
            value = small[key]
            merged[key] = entry_at(key[-1] if is_rebound(value) else key, value)
        return [entry for entry in merged.values() if not self._is_old_alias(entry, changed)]

    def _is_old_alias(self, entry: dict[str, Any], changed: Container[Path]) -> bool:
        """Returns whether an entry tells that two places have one value, of which one has changed.

        Then they may be two by now.

        Args:
            entry: The entry.
            changed: The paths of the values that have changed since the entry was made.
        """
        paths = [tuple(entry["path"]), tuple(entry.get(IS, ()))]
        if self._search.bindings.at(paths[1]) is not None:
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
        entries = [entry for entry in state if entry.get("process") != process()]
        rebound = {tuple(entry["path"]): entry for entry in entries if is_rebound(entry)}
        values = {tuple(entry["path"]): entry for entry in entries if not is_rebound(entry)}
        plain = {path for path, entry in values.items() if "value" in entry}
        with self.one_look():
            lost = self._reset_places(rebound.keys() | plain)
        with self.one_look():
            lost += self._reset(values)
        bound = {path: tuple(entry[IS]) for path, entry in rebound.items() if IS in entry}
        moved = {
            path: place
            for path, place in bound.items()
            if self._search.bindings.at(place) is not None
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
                f"The snapshot's state of a {type(self._search.owner).__name__} was not restored "
                f"completely: {listed(lost)} could not be set, and is left as it is."
            )
        replaced = [] if is_shared else self._replaced_orders(values)
        if replaced:
            warn_user(
                f"The program has made a {type(self._search.owner).__name__} with another order of "
                f"{listed(replaced)} than the snapshot has. Training goes on with that of the "
                "snapshot, as it may have been drawn at random. If it is a setting which you have "
                "changed, keep it in a tuple, and it is not taken from snapshots."
            )

    def _replaced_orders(self, entries: dict[Path, Any]) -> list[str]:
        """Returns the names of orders that were as made, but that the program now makes otherwise.

        Long ones are left out, since they were drawn at random.

        Args:
            entries: The entries of the saved state by their paths.
        """
        return [
            name_of(path)
            for path, entry in entries.items()
            if entry.get(_AS_MADE) and path in self._begun
            if not same(self._begun[path], {"value": entry["value"]})
            and may_be_written(decode(entry["value"]))
        ]

    def _reset(self, kept: Container[Path]) -> list[str]:
        """Resets changed values to the baseline: their values when this `Attributes` was created.

        Values that did not exist then are deleted.

        Args:
            kept: The paths of values that are left as they are, since a saved state has them.

        Returns:
            The names of the values that can't be reset.
        """
        leaves = [
            leaf
            for leaf in self._search.leaves()
            if leaf.path not in kept
            and (
                leaf.path[0] != IN_CODE or (holds_state(leaf.value) and not is_iterator(leaf.value))
            )
        ]
        changed = [leaf for leaf in leaves if self._has_changed(leaf.path, leaf.value)]
        there = {path[:end] for path in self._baseline for end in range(1, len(path) + 1)}
        there |= set(self._search.kinds or ())
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

    def _reset_places(self, kept: Container[Path]) -> list[str]:
        """Puts the objects of the baseline back into their places, and values into empty ones.

        Args:
            kept: The paths that are left as they are, since a saved state has them.

        Returns:
            The names of the places that can't be reset.
        """
        paths = [p for p, _ in self._rebound() if p not in kept and p[0] != IN_CODE]
        held = {path: path for path in paths if self._search.bindings.at(path) is not None}
        values = {
            path: self._begun[path] for path in paths if path in self._begun and path not in held
        }
        others = [path for path in paths if path not in held and path not in values]
        lost = self._bind(held) + self._unbind(others)
        for path, entry in values.items():
            if not put(self._holder_of(path), path[-1], decode(entry["value"])):
                lost.append(name_of(path))
        return lost

    def _bind(self, homes: dict[Path, Path]) -> list[str]:
        """Puts objects of the baseline, or values that are already in other places, into places.

        Args:
            homes: The homes of the objects (`bindings.py`), or the other places of the values, by
                the paths of the places.

        Returns:
            The names of the places that can't be set.
        """
        lost = []
        for path, home in homes.items():
            holder, value, may = (
                self._holder_of(path),
                self._search.bindings.at(home),
                self._may_bind,
            )
            if value is None:
                found = value_at(self._places(), home)
                value, may = found if is_mutable(found) else None, self._may_set
            is_there = holder is not None and value is not None
            if not is_there or not may(path, holder) or not bind(holder, path[-1], value):
                lost.append(name_of(path))
        return lost

    def _unbind(self, paths: list[Path]) -> list[str]:
        """Deletes what is at paths, and returns the names of the places where this can't be done.

        Items of lists are deleted from the last one on.
        """
        lost = []
        for path in reversed(paths):
            holder = self._holder_of(path)
            if holder is None or not self._may_bind(path, holder) or not unbind(holder, path[-1]):
                lost.append(name_of(path))
        return lost

    def _holder_of(self, path: Path) -> Any:
        """Returns the `__dict__`, list, tuple or dict that has, or may get, the value at a path.

        This may be a list or dict that does not yet hold any object. The result is None if there is
        no such holder.
        """
        found = value_at(self._places(), path[:-1])
        return found if isinstance(found, (*SEARCHED, deque)) else None

    def _places(self) -> dict[Path, Any]:
        return {leaf.path: leaf.value for leaf in self._search.leaves()} | dict(
            self._search.holders()
        )

    def _rebound(self, shallow: bool = False) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yields the places where objects of the baseline are that were not, and the empty ones.

        Each has an entry for the state.

        Args:
            shallow: Whether to leave out large containers.
        """
        for path, holder in self._search.holders(shallow):
            for key, value in self._search.entries(path, holder):
                if self._search.bindings.has_moved((*path, key), value):
                    yield (*path, key), {IS: list(self._search.bindings.home_of(value, ()))}
            for place in self._search.bindings.missing(path, holder):
                if place != (IN_CODE,):
                    yield place, {GONE: True}

    def _give(self, entries: dict[Path, Any]) -> list[str]:
        """Sets values of the object to those of a saved state.

        Args:
            entries: The encoded values, by their paths in the object.

        Returns:
            The names of the values that can't be set.
        """
        for path, model in list(self._search.models()):
            begin = len(path)
            build_optimizers(model, [each[begin:] for each in entries if each[:begin] == path])
        # What has a home is there, even if it cannot be reached from the object any more.
        homes = dict(self._search.bindings.homes())
        places = homes | {leaf.path: leaf.value for leaf in self._search.leaves()}
        owned = {
            path: inside_of(value) for path, value in homes.items() if self._search.is_own(value)
        }
        holders = owned | dict(self._search.holders())
        apart = self._apart(entries)
        lost = []
        for path, entry in entries.items():
            if state_in(entry) is not None and holds_state(places.get(path)):
                try:
                    give(places[path], state_in(entry))
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

    def _apart(self, entries: dict[Path, Any]) -> set[int]:
        """Returns the ids of values that are at several places now, which get different values.

        They must not be set in place.

        Args:
            entries: The encoded values that will be set, by their paths.
        """
        first: dict[int, Path] = {}
        apart = set()
        for path, value, _ in self._search.leaves():
            if path[0] != IN_CODE and is_mutable(value):
                one = entries.get(first.setdefault(id(value), path), {})
                if not same(one.get("value"), entries.get(path, {}).get("value")):
                    apart.add(id(value))
        return apart

    def _may_set(self, path: Path, holder: Any) -> bool:
        """Returns whether a value of a saved state may be set at a path.

        A file could name any path. No function or other callable is replaced by a value.

        Args:
            path: The path of the value.
            holder: The `__dict__`, list, tuple or dict that will contain the value.
        """
        is_called = callable(dict(items_of(holder)).get(path[-1]))
        return not is_called and self._may_bind(path, holder)

    def _may_bind(self, path: Path, holder: Any) -> bool:
        """Returns whether another object of the program's may be put at a path, or none.

        A file could name any path. No part of the path may be a special name, such as `__class__`,
        or an attribute that is not searched; and no method is replaced.

        Args:
            path: The path.
            holder: The `__dict__`, list, tuple or dict that contains the value at the path.
        """
        if any(isinstance(part, str) and part.startswith("__") for part in path):
            return False
        if path[0] != IN_CODE and not self._search.looks(path[0]):
            return False
        if isinstance(holder, Names) and not holder.may_have(path[-1]):
            return False
        place = path[:-2] if path[-2:-1] == (OWN,) else path[:-1]
        owner = self._search.bindings.at(place) if place else self._search.owner
        return not isinstance(path[-1], str) or not callable(getattr(type(owner), path[-1], None))

    def _is_of_keras(self, path: Path) -> bool:
        """Returns whether a value is in one of Keras' callbacks, which makes it anew by itself."""
        kind = (self._search.kinds or {}).get(path[:-1])
        return isinstance(kind, type) and kind.__module__.partition(".")[0] == "keras"

    def _is_made_late(self, leaf: Leaf) -> bool:
        """Returns whether a generator or variable was made after the baseline, in a new place.

        A snapshot has its state, and a `RollBack` restores it. But a new process has none in this
        place that could get the state. Variables that an optimizer makes in its first step, or a
        layer when it is built, are left out: Keras makes them again.
        """
        path, bindings = leaf.path, self._search.bindings
        if not holds_state(leaf.value) or is_iterator(leaf.value) or bindings.knows(leaf.value):
            return False
        is_of_keras = OWN not in path and any(
            isinstance(bindings.at(path[:end]), OF_KERAS) for end in range(1, len(path))
        )
        return not is_of_keras and not holds_state(bindings.at(path))

    def _mark(self, value: Any) -> Any:
        return self._search.known.at(value).mark

    def _has_changed(self, path: Path, value: Any) -> bool:
        return self._baseline.get(path) != self._mark(value)

    def _can_keep(self, leaf: Leaf, largest: int = LARGEST) -> bool:
        value = leaf.value
        there = self._iterators
        if there is not None and is_iterator(value) and id(value) not in there:
            return False  # a new process has none whose position could be set
        if holds_state(value):
            is_new = not self._search.bindings.knows(value) and self._search.is_displaced(leaf.path)
            return nbytes_of(value) <= largest and not is_new
        known = self._search.known.at(value)
        return known.is_exact and known.size <= largest


def name_of(path: Path) -> str:
    """Returns the name of a value for messages, such as `items[0]` for `self.items[0]`.

    Args:
        path: The attribute names, indices and keys that lead from an object to the value.
    """
    first, *rest = [part for part in path if part not in (IN_CODE, OWN)]
    return str(first) + "".join(f".{p}" if _is_name(p) else f"[{p!r}]" for p in rest)


def listed(names: list[str]) -> str:
    """Joins the first few names to a text for a warning."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and part.isidentifier()
