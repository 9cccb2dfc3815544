"""Tells which objects are of the user's program, what they refer to, and whether they changed."""

from __future__ import annotations

import argparse
import enum
import io
import queue
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Container, Iterable, Iterator
from itertools import count
from types import FunctionType, GeneratorType, ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.internals.callbacks import ORBAX
from kfit.objects.fields import fields_of, has_fields
from kfit.objects.handles import is_open_to_looks, place_in
from kfit.objects.inner_marks import inner_mark
from kfit.objects.iterators import trace_of
from kfit.objects.keras_parts import OwnFields, is_of_program
from kfit.objects.names import Inside, found_in
from kfit.objects.other_arrays import is_compared, objects_in
from kfit.objects.own_generators import holds_state, is_generator, read
from kfit.objects.values import DICTS, decode, fingerprint, is_exact, size_of, type_of
from kfit.user_files.written_here import is_written_here

OF_KERAS = (
    *(keras.Layer, keras.Metric, keras.optimizers.Optimizer),
    *(tf.train.ExponentialMovingAverage, tf.train.Checkpoint, tf.train.CheckpointManager),
)
"""Classes of Keras' and TensorFlow's objects that are searched for their variables.

Of layers and metrics of the program's own classes, other attributes are searched as well."""
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_VALUES = (*_CONTAINERS, str, bytes, int, float, complex, np.ndarray, np.generic)
_NO_OBJECTS = (*_VALUES, enum.Enum, BaseException, type, ModuleType, *OF_KERAS)
_HOLDERS = frozenset(
    {
        *(SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap),
        *(queue.Queue, queue.LifoQueue, queue.PriorityQueue),
        *(keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau),
        *(keras.callbacks.ModelCheckpoint, keras.callbacks.SwapEMAWeights, *ORBAX),
        *(keras.callbacks.LambdaCallback, keras.callbacks.LearningRateScheduler),
    }
)
"""Classes of Python and Keras whose objects hold state of the program in their attributes."""
_MONITOR = "kfit.callbacks.monitor"
"""The module of kfit's `Monitor`, which callbacks of the user hold. It is not imported here, since
callbacks import this package."""
DEEPEST = 50
"""The deepest nesting of objects and containers that is searched."""
_MOST = 1 << 14
"""The most values, and the most bytes of a value, that are compared in a container of objects."""
_MOST_WITH_CODE = 1000
"""The most items of a container that is searched for functions and objects with code."""


def is_function(value: Any) -> bool:
    """Returns whether a value is a function, a method or another object with code of its own."""
    try:
        return hasattr(value, "__code__")
    except Exception:  # the `__getattr__` of an options object may raise any exception
        return False


def is_own(value: Any, owner: Any) -> bool:
    """Returns whether a value is an object of the user's program whose attributes may hold state.

    The value's class must be in the program, or in the same module as the class of `owner`. The
    result is also True for objects of other classes that hold what the program puts into them: name
    spaces, queues, `UserDict` and `UserList`, a `Monitor`, and those callbacks of Keras that count
    or call what the program gives them.

    It is False for plain values, containers, functions, classes, exceptions, random generators,
    members of an enum, and layers and other objects of Keras.

    Args:
        value: The value.
        owner: The object that is searched for state, such as a callback.
    """
    if isinstance(value, _NO_OBJECTS) or not has_fields(value) or holds_state(value):
        return False
    return not is_function(value) and (
        holds_for_program(value) or type(value).__module__ == type(owner).__module__
    )


def holds_for_program(value: Any) -> bool:
    """Returns whether an object is of a class of the program, or holds the program's state."""
    kind = type(value)
    return kind in _HOLDERS or kind.__module__ == _MONITOR or is_written_here(kind.__module__)


def inside_of(value: Any) -> dict[str, Any]:
    """Returns those attributes of an object that the program may keep state in, by their names."""
    return OwnFields(value) if is_of_program(value) else fields_of(value)


def is_frozen(value: Any) -> bool:
    """Returns whether an object is of a frozen dataclass, so its attributes keep their values.

    Such an object stands for a fixed value. But lists and the like in it may change.
    """
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and bool(params.frozen)


def holds_only_state(container: Any, inside: tuple[int, ...] = ()) -> bool:
    """Returns whether a container holds only plain values, random generators and Keras objects.

    Plain values are numbers, texts, arrays and the like. Other objects cannot be restored.

    Args:
        container: The list, tuple or dict; containers in it are checked, too.
        inside: Ids (as of `id`) of the containers around this container.
    """
    if len(inside) >= DEEPEST or id(container) in inside:
        return False
    items = container.values() if isinstance(container, dict) else container
    return all(
        holds_only_state(item, (*inside, id(container)))
        if type_of(item) in (list, tuple, *DICTS)
        else is_exact(item) or holds_state(item) or isinstance(item, OF_KERAS)
        for item in list(items)
    )


def mark_of(value: Any, foreign: Container[int]) -> Any:
    """Returns a mark of a value, such as a checksum, that differs once the value has changed.

    Args:
        value: The value. The mark of a file is the position up to which the file was read.
        foreign: Ids (as of `id`) of objects in the value whose changes are ignored.
    """
    if isinstance(value, io.IOBase):
        return place_in(value)
    if holds_state(value):
        return fingerprint(decode(read(value)))
    if is_exact(value) or is_compared(value):
        return fingerprint(value)
    parts: list[Any] = []
    counted = count()
    for item in _walk(value, None, foreign):
        if next(counted) > _MOST:
            break
        if is_generator(item):
            parts.append(fingerprint(decode(read(item))))
            continue
        small = (is_exact(item) or is_compared(item)) and size_of(item) <= _MOST
        if small:
            parts.append(fingerprint(item))
            continue
        length = len(item) if isinstance(item, _CONTAINERS) else 0
        place = (type(item), id(item), length)
        parts.append((*place, trace_of(item), inner_mark(item, foreign)))
    return hash(tuple(parts))


def reached(owner: Any, foreign: Container[int]) -> set[int]:
    """Returns the ids (as of `id`) of an object and of all mutable objects that it refers to.

    The object refers to the values of its attributes, to the items of its containers, and to the
    values of the variables that its code uses. For a data source, the state of all these objects is
    saved with the source. So callbacks that refer to the same objects need not save them again.

    Args:
        owner: The object. If it is a Python generator, only random generators are taken from the
            variables in its code.
        foreign: Ids of objects to leave out.
    """
    named = [name.get() for name in found_in(owner, code_inside(owner, foreign)).names]
    if isinstance(owner, GeneratorType):
        named = [value for value in named if is_generator(value)]
    items = (item for root in (owner, *named) for item in _walk(root, owner, foreign))
    return {id(item) for item in items if not _is_fixed(item)}


def refers_to(roots: Iterable[Any], value: Any, owner: Any, foreign: Container[int]) -> bool:
    """Returns whether a value is among some objects, or inside of them at any depth.

    Args:
        roots: The objects.
        value: The value.
        owner: The object that is searched for state; classes in its module count as the program's.
        foreign: Ids (as of `id`) of objects to leave out, together with what is inside of them.
    """
    return any(item is value for root in roots for item in _walk(root, owner, foreign))


def code_inside(owner: Any, foreign: Container[int], besides: tuple[type, ...] = ()) -> Inside:
    """Returns a function that yields what may run code inside a value, for `names.found_in`.

    These are items of containers, and attributes of objects of the program. Of a set, only items
    that differ in their code are yielded, since only these have the same order in every process.

    Args:
        owner: The object that is searched for state; classes in its module count as the program's.
        foreign: Ids (as of `id`) of objects to leave out, together with what is inside of them.
        besides: Classes whose objects are left out as well. So are callbacks, unless the object is
            a callback itself: the state of a callback is not that of the data.
    """
    if not isinstance(owner, keras.callbacks.Callback):
        besides = (*besides, keras.callbacks.Callback)

    def inside(value: Any) -> Iterator[Any]:
        is_large = isinstance(value, _CONTAINERS) and len(value) > _MOST_WITH_CODE
        items = () if is_large or is_exact(value) else _inside(value, owner)
        for item in _told_apart(items) if isinstance(items, (set, frozenset)) else items:
            is_left_out = id(item) in foreign or not is_open_to_looks(item)
            if not is_left_out and not isinstance(item, besides):
                yield item

    return inside


def _told_apart(items: Iterable[Any]) -> list[Any]:
    """Returns those items of a set whose function or class no other item has, sorted by it."""
    found: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        kind = item if isinstance(item, (FunctionType, type)) else type(item)
        found.setdefault((kind.__module__ or "", kind.__qualname__), []).append(item)
    return [alike[0] for _, alike in sorted(found.items()) if len(alike) == 1]


def _is_fixed(value: Any) -> bool:
    """Returns whether a value is immutable.

    Objects that refer to the same immutable value share no state through it.
    """
    fixed = (str, bytes, int, float, complex, np.generic, type(None), enum.Enum, type, ModuleType)
    return isinstance(value, fixed) or (type(value) is tuple and not value) or is_function(value)


def _walk(value: Any, owner: Any, foreign: Container[int]) -> Iterator[Any]:
    """Yields a value, and all values inside of it, at any depth.

    These are the items of containers and of arrays of objects, and the attributes of objects of the
    user's program.

    Args:
        value: The value.
        owner: The object that is searched for state; classes in its module count as the program's.
        foreign: Ids (as of `id`) of objects to leave out, together with what is inside of them.
    """
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if id(item) in foreign or not is_open_to_looks(item):
            continue
        yield item
        if id(item) in seen or is_exact(item):
            continue
        seen.add(id(item))
        stack += _inside(item, owner)


def _inside(value: Any, owner: Any) -> Iterable[Any]:
    """Returns the items of a container or array, or the attributes of an object of the program."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, np.ndarray):
        return objects_in(value, _MOST) if value.dtype.hasobject else ()
    return inside_of(value).values() if is_own(value, owner) or is_of_program(value) else ()
