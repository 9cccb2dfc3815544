"""Finds the saved state of each callback when training resumes.

A state in a snapshot has the name of its callback and, of several callbacks of a class, what tells
them apart: the monitored value, and the path to which the callback writes. So a program may add a
callback of the same class, or change the order, before it resumes. A callback whose `mode` was
turned round begins anew, since its best value so far is the worst one now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

FOR_THE_CHIEF = "_is_for_the_chief_only"
"""The attribute of callbacks that `kfit.callbacks.chief_only` sets."""

_MONITOR = "monitor"
_MODE = "mode"
_PATHS = ("filepath", "filename", "log_dir")

State = dict[str, Any]


class Named(NamedTuple):
    """A callback with its name.

    Attributes:
        name: The name for messages and snapshots, such as "keras.callbacks.CSVLogger 2".
        kind: The name without the number.
        callback: The callback.
    """

    name: str
    kind: str
    callback: keras.callbacks.Callback


def named(callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[Named]:
    """Yields each callback with a name that is the same in every run of the program.

    The name is that of the class, such as "keras.callbacks.CSVLogger". For classes that are neither
    Keras' nor kfit's it has no module, since that changes when a program is imported. Further
    callbacks of the class are named "keras.callbacks.CSVLogger 2" and so on. Those that
    `kfit.callbacks.chief_only` has marked are numbered apart, since the other tasks lack them.
    """
    seen: dict[str, int] = {}
    for callback in callbacks:
        kind, package = type(callback).__name__, type(callback).__module__.partition(".")[0]
        if package == "kfit" and kind == "TensorBoard":
            package = "keras"  # each of the two goes on where the other one was
        if package in ("keras", "kfit"):
            kind = f"{package}.callbacks.{kind}"
        if getattr(callback, FOR_THE_CHIEF, False):
            kind = f"{kind} for the chief only"
        seen[kind] = seen.get(kind, 0) + 1
        yield Named(f"{kind} {seen[kind]}" if seen[kind] > 1 else kind, kind, callback)


def marks_of(callback: Any) -> dict[str, str]:
    """Returns what tells a callback from others of its class: its monitor, its mode and its path.

    It contains those of the attributes "monitor", "filepath", "filename" and "log_dir" that the
    callback has, as text; and "mode", "min" or "max", once it is known what "auto" means.
    """
    found = {name: getattr(callback, name, None) for name in (_MONITOR, *_PATHS)}
    found[_MODE] = _mode_of(callback)
    texts = (str, os.PathLike)
    return {name: os.fspath(value) for name, value in found.items() if isinstance(value, texts)}


def _mode_of(callback: Any) -> str | None:
    operation = getattr(callback, "monitor_op", None)
    if operation is keras.ops.less or operation is keras.ops.greater:
        return "min" if operation is keras.ops.less else "max"
    mode = getattr(callback, _MODE, None)
    return mode if mode in ("min", "max") else None


def assigned(
    callbacks: Sequence[keras.callbacks.Callback], states: Sequence[State]
) -> tuple[list[tuple[Named, State | None]], list[State]]:
    """Finds the state in a snapshot that belongs to each callback.

    Of the states of a class, a callback gets the first one with the same monitor and path. If there
    is none, it gets the first one that is left with the same monitor: its files may have moved. It
    never gets one of the opposite mode.

    Args:
        callbacks: The callbacks, in their order.
        states: The entries of the snapshot.

    Returns:
        Each callback with its entry, or None if the snapshot has none; and the entries that belong
        to no callback.
    """
    left = list(states)
    found: dict[str, State] = {}
    every = list(named(callbacks))
    for fits in (_has_same_marks, _has_same_monitor):
        for one in every:
            index = None if one.name in found else _first_that(fits, one, left)
            if index is not None:
                found[one.name] = left.pop(index)
    return [(one, found.get(one.name)) for one in every], left


def _first_that(
    fits: Callable[[State, Named], bool], one: Named, entries: Sequence[State]
) -> int | None:
    for index, entry in enumerate(entries):
        is_of_kind = _kind_in(entry["callback"]) == one.kind
        if is_of_kind and fits(entry, one) and not _is_opposite(entry, one):
            return index
    return None


def _kind_in(name: str) -> str:
    kind, _, number = name.rpartition(" ")
    return kind if number.isdecimal() else name


def _has_same_marks(entry: State, one: Named) -> bool:
    saved, own = entry.get("marks"), marks_of(one.callback)
    return saved is not None and {**saved, _MODE: ""} == {**own, _MODE: ""}


def _has_same_monitor(entry: State, one: Named) -> bool:
    # Snapshots of earlier versions of kfit have no marks.
    marks = entry.get("marks", marks_of(one.callback))
    return bool(marks.get(_MONITOR) == marks_of(one.callback).get(_MONITOR))


def _is_opposite(entry: State, one: Named) -> bool:
    modes = {entry.get("marks", {}).get(_MODE), marks_of(one.callback).get(_MODE)}
    return modes == {"min", "max"}
