"""Checks that a snapshot has the form of one of a training, before it is used.

The checksums of a snapshot show damage, but not who has written it. A file that a stranger has made
may have checksums that agree, and any content. So the form of the description and of the state is
checked when a snapshot is read, and a snapshot of another form counts as damaged, like one with a
wrong checksum. What callbacks and the user's own data have put into the state is only checked to be
a tree of plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from kfit.checkpoint.snapshot import Snapshot

Check: TypeAlias = Callable[[Any, str], None]
"""A function that gets a value and its place in the state, and raises ValueError if it is wrong."""

_WORDS = 624
"""The words of the state of a Mersenne Twister, Python's and NumPy's generator."""

_PARTS_OF_A_ROW = (_WORDS, 1, 1, 1, _WORDS, 1, 1, 1)
"""The parts of `Generators.row`: of Python's generator the words, the position in them, whether a
normal number is left over, and this number; the same of NumPy's generator."""

_MOST_STEPS = 1 << 62
"""The greatest number that a count of steps or epochs can be."""


def check_training(snapshot: Snapshot) -> None:
    """Checks a snapshot that `FitState.snapshot` has made, after it was read from files.

    Args:
        snapshot: The snapshot. Its state is a tree of dicts with string keys, lists, JSON values
            and arrays.

    Raises:
        ValueError: If it has another form. The message names the place.
    """
    _ABOUT(snapshot.about, "about")
    _STATE(snapshot.state, "state")


def _is(*kinds: type) -> Check:
    def check(value: Any, place: str) -> None:
        if type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{place} is of type {type(value).__name__}; expected {expected}")

    return check


def _count(value: Any, place: str) -> None:
    if type(value) is not int or not 0 <= value <= _MOST_STEPS:
        raise ValueError(f"{place} is {value!r:.50}; expected a whole number from 0 up")


def _seed(value: Any, place: str) -> None:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{place} is {value!r:.50}; expected a whole number of 64 bits")


def _seconds(value: Any, place: str) -> None:
    if type(value) is not float or not 0 <= value < float("inf"):
        raise ValueError(f"{place} is {value!r:.50}; expected seconds of at least 0")


def _optional(check: Check) -> Check:
    return lambda value, place: None if value is None else check(value, place)


def _each(check: Check, value: Any, place: str) -> None:
    _is(list)(value, place)
    for index, item in enumerate(value):
        check(item, f"{place}[{index}]")


def _each_value(check: Check, value: Any, place: str) -> None:
    _is(dict)(value, place)
    for name, item in value.items():
        check(item, f"{place}[{name!r}]")


def _record(
    fields: dict[str, Check],
    value: Any,
    place: str,
    *,
    exact: bool = False,
    may: dict[str, Check] | None = None,
) -> None:
    _is(dict)(value, place)
    for name, check in fields.items():
        if name not in value:
            raise ValueError(f"{place}[{name!r}] is missing")
        check(value[name], f"{place}[{name!r}]")
    for name, check in ({} if may is None else may).items():
        if name in value:
            check(value[name], f"{place}[{name!r}]")
    if exact and len(value) > len(fields):
        raise ValueError(f"{place} has further keys: {sorted(set(value) - set(fields))!r:.200}")


def _for_both(check: Check, value: Any, place: str) -> None:
    _each(check, value, place)
    if len(value) != 2:
        raise ValueError(f"{place} has {len(value)} items; expected 2: of training and validation")


def _part(value: Any, place: str) -> None:
    if value not in ("model", "optimizer", "metrics"):
        raise ValueError(f"{place} is {value!r:.50}; expected a part of the model's state")


def _path(value: Any, place: str) -> None:
    if not (isinstance(value, list) and value and all(type(part) in (str, int) for part in value)):
        raise ValueError(f"{place} is {value!r:.50}; expected names and indices")


def _value_of_variable(value: Any, place: str) -> None:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{place} is of type {type(value).__name__}; expected an array")


def _generators_of_tasks(value: Any, place: str) -> None:
    _value_of_variable(value, place)
    if value.ndim != 2 or value.shape[1] != sum(_PARTS_OF_A_ROW) or not len(value):
        raise ValueError(f"{place} has the shape {value.shape}; expected a row for each task")
    ends = np.cumsum(_PARTS_OF_A_ROW)[:-1]
    words, position, has_gauss, _, keys, numpy_position, has_normal, _ = np.split(value, ends, 1)
    whole = np.concatenate([words, keys], axis=1)
    if not (
        np.all((whole >= 0) & (whole < 1 << 32) & (whole == np.floor(whole)))
        and np.isin(np.concatenate([position, numpy_position]), range(_WORDS + 1)).all()
        and np.isin(np.concatenate([has_gauss, has_normal]), (0, 1)).all()
    ):
        # Python and NumPy crash on some positions that are none.
        raise ValueError(f"{place} cannot be the states of random generators")
    for own in (words, keys):
        # With no bit set (those that count), NumPy draws a normal number for ever.
        if not np.all((own[:, 0] >= 1 << 31) | own[:, 1:].any(axis=1)):
            raise ValueError(f"{place} has a random generator that can only draw 0")


def _array_of(*dtypes: str) -> Check:
    def check(value: Any, place: str) -> None:
        _value_of_variable(value, place)
        if value.dtype.name not in dtypes or value.ndim != 1:
            raise ValueError(f"{place} is {value.dtype} of shape {value.shape}")

    return check


_VARIABLE = partial(
    _record,
    {
        "part": _part,
        "name": _is(str),
        "per_replica": _is(bool),
        "value": _value_of_variable,
    },
    exact=True,
)
_CALLBACK = partial(
    _record,
    {
        "callback": _is(str),
        "state": _optional(_is(dict)),
        "attributes": partial(_each, partial(_record, {"path": _path})),
    },
    exact=True,
)
_ACCOUNT = partial(
    _record,
    {
        "began": _seconds,
        "step": _count,
        "step_seconds": _seconds,
        "examples": _optional(_count),
        "restarts": _count,
        "restores": _count,
        "again": _optional(_count),
        "account": _is(str),
        "run": _optional(_is(str)),
        "generation": _count,
    },
    exact=True,
)
_ABOUT = partial(
    _record,
    {"step": _count},
    may={
        **dict.fromkeys(("epoch", "step_in_epoch", "fit", "lock_count"), _count),
        **dict.fromkeys(("num_replicas", "num_workers"), _count),
        **dict.fromkeys(("finished", "stopped"), _is(bool)),
        **dict.fromkeys(("model", "strategy", "run"), _is(str)),
        "created": _seconds,
        "data": _is(dict),
        "versions": partial(_each_value, _is(str)),
    },
)
_STATE = partial(
    _record,
    {
        "variables": partial(_each, _VARIABLE),
        "progress": partial(
            _record, {"epoch": _count, "step": _count, "step_in_epoch": _count}, exact=True
        ),
        "logs": _is(dict),
        "stop_training": _is(bool),
        "data": partial(_record, {"described": _is(dict)}, may={"seed": _seed}),
        "validation_data": _optional(_is(dict)),
        "learned": partial(_for_both, _optional(_count)),
        "callbacks": partial(_each, _CALLBACK),
        "random": partial(
            _record,
            {
                "tasks": _generators_of_tasks,
                "torch": _optional(_array_of("uint8")),
                "keras": _optional(_array_of("uint32", "uint64", "int32", "int64")),
            },
            exact=True,
        ),
        "account": _ACCOUNT,
    },
    may={"histories": partial(_each_value, _is(dict)), "fingerprint": _is(dict)},
)
