"""Finds the values of an object that may be its state, each with its path.

Searched are the attributes of the object; the attributes of objects in these attributes, if their
classes belong to the user's program; containers of such objects; and the variables that the code of
all these objects refers to (`names.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Container, Iterator
from typing import Any, NamedTuple

import keras

from kfit.objects.bindings import Bindings
from kfit.objects.fields import fields_of, is_derived
from kfit.objects.handles import is_open_to_looks
from kfit.objects.holders import items_of
from kfit.objects.keras_parts import OWN, is_of_program
from kfit.objects.keras_variables import OF_METRIC, variables_of
from kfit.objects.looks import Looks
from kfit.objects.names import Names, found_in
from kfit.objects.own_generators import holds_state, variable_in
from kfit.objects.plain_objects import (
    DEEPEST,
    OF_KERAS,
    code_inside,
    holds_only_state,
    inside_of,
    is_frozen,
    is_own,
    refers_to,
)
from kfit.objects.values import DICTS, elements, is_exact, type_of

IN_CODE = "names in code"
"""The first part of the paths of variables that the object's code refers to."""
SEARCHED = (list, tuple, *DICTS)
"""The types of containers that may be searched for state."""
FEW = 1000
"""The most elements of a container that is searched at every batch."""
_MOST_OBJECTS = 100
"""The most items of a container of objects that is searched."""

Path = tuple[Any, ...]
Chooses = Callable[[str], bool]


class Leaf(NamedTuple):
    """A value that the search for an object's state has found.

    Attributes:
        path: The attribute names, indices and keys that lead from the object to the value.
        value: The value.
        holder: The `__dict__`, list, tuple or dict that contains the value.
    """

    path: Path
    value: Any
    holder: Any


class Search:
    """The search of one object for the values that may be its state.

    Args:
        owner: As for `Attributes`.
        looks: As for `Attributes`.
        foreign: As for `Attributes`.
        besides: As for `Attributes`.

    Attributes:
        owner: The object.
        looks: Returns whether an attribute of the object is searched.
        known: What is known of the values that were examined.
        kinds: The classes of the user's objects at the baseline, by path; None before it was read.
        bindings: Which objects were where at the baseline.
    """

    def __init__(
        self, owner: Any, looks: Chooses, foreign: Container[int], besides: tuple[type, ...]
    ) -> None:
        self.owner = owner
        self.looks = looks
        self._foreign = foreign
        self._besides = besides
        self._names = found_in(owner, code_inside(owner, foreign, besides))
        self.known = Looks(foreign)
        self.kinds: dict[Path, Any] | None = None
        self.bindings = Bindings()
        self._members: dict[Path, list[Any]] = {}
        self._baseline: Collection[Path] | None = None

    def begin(self) -> list[Leaf]:
        """Takes what is there now for the baseline, and returns its values."""
        objects = list(self.objects())
        self.kinds = {path: _kind_of(value) for path, value in objects if self.is_own(value)}
        leaves = list(self.leaves())
        self._baseline = {leaf.path for leaf in leaves}
        self.bindings = Bindings(objects, self._baseline)
        return leaves

    def leaves(self, shallow: bool = False) -> Iterator[Leaf]:
        """Yields the values that are compared and saved as a whole; each object once.

        Args:
            shallow: Whether to leave out large containers.
        """
        seen: set[int] = set()
        listed: set[int] = set()  # variables of layers whose attributes are searched as well
        for path, holder in self.holders(shallow):
            for key, value in self.entries(path, holder):
                if id(value) in listed:
                    continue
                if self.bindings.knows(value):
                    if id(value) in seen:
                        continue
                    seen.add(id(value))
                place = self.bindings.home_of(value, (*path, key))
                if isinstance(value, OF_KERAS):
                    found = list(self._variables(place, value, holder))
                    yield from (leaf for leaf in found if id(leaf.value) not in listed)
                    if is_of_program(value):
                        listed.update(id(leaf.value) for leaf in found)
                elif not self._is_entered((*path, key), value, shallow):
                    yield Leaf(place, value, holder)

    def _variables(self, path: Path, value: Any, holder: Any) -> Iterator[Leaf]:
        """Yields the variables of an object of Keras.

        Metrics of a second model that are created during training are left out: each evaluation
        starts them anew, and a new process could not set them.
        """
        for inner, variable in variables_of(value):
            place = (*path, *inner)
            is_late = self._baseline is not None and place not in self._baseline
            if not self._is_foreign(variable) and not (is_late and inner[0] == OF_METRIC):
                yield Leaf(place, variable, holder)

    def objects(self) -> Iterator[tuple[Path, Any]]:
        """Yields each object that no file can hold, with its path, and once more at each other one.

        These are objects of the user's classes, generators and variables, and objects of Keras.
        """
        for path, holder in self.holders():
            for key, value in self.entries(path, holder):
                if self._has_state(value):
                    yield (*path, key), value

    def _has_state(self, value: Any) -> bool:
        return self.is_own(value) or holds_state(value) or isinstance(value, OF_KERAS)

    def is_own(self, value: Any) -> bool:
        """Returns whether a value is an object of the user's program (`plain_objects.is_own`)."""
        return is_own(value, self.owner)

    def models(self) -> Iterator[tuple[Path, keras.Model]]:
        """Yields each model that is not the trained one, with its path."""
        for path, holder in self.holders():
            for key, value in self.entries(path, holder):
                if isinstance(value, keras.Model):
                    yield self.bindings.home_of(value, (*path, key)), value

    def holders(self, shallow: bool = False) -> Iterator[tuple[Path, Any]]:
        """Yields each `__dict__`, list, tuple and dict that is searched for state, with its path.

        Args:
            shallow: Whether to leave out large containers.
        """
        stack: list[tuple[Path, Any]] = [
            ((IN_CODE,), Names(self._names)),
            ((), fields_of(self.owner)),
        ]
        seen = {id(self.owner)}
        while stack:
            path, holder = stack.pop()
            yield path, holder
            for key, item in self.entries(path, holder):
                if id(item) not in seen and self._is_entered((*path, key), item, shallow):
                    seen.add(id(item))
                    inside = item if type_of(item) in SEARCHED else inside_of(item)
                    place = self.bindings.home_of(item, (*path, key))
                    stack.append(((*place, OWN) if is_of_program(item) else place, inside))

    def entries(self, path: Path, holder: Any) -> list[tuple[Any, Any]]:
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
            if (path or self.looks(key)) and is_open_to_looks(value)
            if not isinstance(value, self._besides) and not self._is_foreign(value)
            if not is_derived(holder, key)
        ]

    def _is_foreign(self, value: Any) -> bool:
        return id(value) in self._foreign or id(variable_in(value)) in self._foreign

    def _is_entered(self, path: Path, value: Any, shallow: bool) -> bool:
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
        if type_of(value) in SEARCHED:
            if shallow and elements(value, FEW) >= FEW:
                return False
            if self.known.at(value).is_exact or len(items_of(value)) < len(value):
                return False
            return holds_only_state(value) or self._holds_same_objects(path, value)
        if not self.is_own(value) and not is_of_program(value):
            return False
        if self.kinds is None or self.bindings.knows(value):
            return True
        return self.kinds.get(path) is _kind_of(value) and not self.is_displaced(path)

    def _holds_same_objects(self, path: Path, container: Any) -> bool:
        """Returns whether a container holds a few objects with state, as at the baseline.

        Then a new process makes the same objects, and each gets its state. If objects were added,
        replaced or put into another order, the container cannot be restored.
        """
        items = [item for _, item in items_of(container)]
        if len(container) > _MOST_OBJECTS or not any(map(self._has_state, items)):
            return False
        others = [item for item in items if not is_exact(item)]
        if self.kinds is None:
            self._members[path] = others
        members = self._members.get(path, [])
        return len(others) == len(members) and all(map(operator.is_, others, members))

    def is_displaced(self, path: Path) -> bool:
        """Returns whether the object that was at a path at the baseline is still in another place.

        Then the state of a new object at this path cannot be given to it.
        """
        held = self.bindings.at(path)
        if held is None:
            return False
        roots = (self.owner, *Names(self._names).values())
        is_at_home = self.bindings.home_of(held, path) == path
        return not is_at_home or refers_to(roots, held, self.owner, self._foreign)


def _kind_of(value: Any) -> Any:
    """Returns the class of an object of the user's; for a fixed value, the object itself.

    An object of a frozen dataclass is a fixed value. If another one has taken its place, nothing of
    the other one may be given to the first.
    """
    return value if is_frozen(value) else type(value)
