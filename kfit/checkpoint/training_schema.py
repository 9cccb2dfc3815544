"""Checks that a snapshot has the form of one of a training, before it is used.

The checksums of a snapshot show damage, but not who has written it. A file that a stranger has made
may have checksums that agree, and any content. So the form of the description and of the state is
checked when a snapshot is read, and a snapshot of another form counts as damaged, like one with a
wrong checksum. What callbacks and the user's own data have put into the state is only checked to be
a tree of plain values; `FitState.check`, which has the callbacks, looks further.
"""

from __future__ import annotations

from typing import Any

from kfit.checkpoint.schema import (
    Check,
    array,
    at_most,
    count,
    each,
    each_value,
    is_a,
    line,
    optional,
    record,
    seconds,
    seed,
    text,
    vector_of,
)
from kfit.checkpoint.snapshot import Snapshot
from kfit.objects.eager_generators import check_eager_rows
from kfit.objects.generators import check_rows

_MOST_PASSES, _MOST_BATCHES = 10**7, 10**9
"""The most passes over the data, and batches of one, that are taken again to reach a position. More
would take hours, or for ever, where a stranger has written the position."""


def check_training(snapshot: Snapshot) -> None:
    """Checks a snapshot that `FitState.snapshot` has made, after it was read from files.

    Args:
        snapshot: The snapshot. Its state is a tree of dicts with string keys, lists, JSON values
            and arrays.

    Raises:
        ValueError: If it has another form. The message names the place.
    """
    about, state = snapshot.about, snapshot.state
    _ABOUT(about, "about")
    _STATE(state, "state")
    progress, steps = state["progress"], state["data"]["described"].get("steps an epoch")
    if progress["step"] != about["step"]:
        raise ValueError(f"state['progress']['step'] is {progress['step']}, not {about['step']}")
    if type(steps) is int and progress["step_in_epoch"] > steps:
        raise ValueError(
            f"state['progress']['step_in_epoch'] is {progress['step_in_epoch']}, in an epoch of "
            f"{steps} steps"
        )


def _learned(value: Any, place: str) -> None:
    each(optional(count))(value, place)
    if len(value) != 2:
        raise ValueError(f"{place} has {len(value)} items; expected 2: of training and validation")


def _part(value: Any, place: str) -> None:
    if value not in ("model", "optimizer", "metrics"):
        raise ValueError(f"{place} is {value!r:.50}; expected a part of the model's state")


def _flag(value: Any, place: str) -> None:
    if not (isinstance(value, list) and [type(part) for part in value] == [int, bool]):
        raise ValueError(f"{place} is {value!r:.50}; expected a number and a bool")


def _path(value: Any, place: str) -> None:
    if not (isinstance(value, list) and value and {type(part) for part in value} <= {str, int}):
        raise ValueError(f"{place} is {value!r:.50}; expected names and indices")


def _entry(value: Any, place: str) -> None:
    kinds: dict[str, Check] = dict.fromkeys(("value", "state", "position"), _anything)
    kinds |= {"is": _path, "gone": is_a(bool)}
    may: dict[str, Check] = {**kinds, "process": _anything, "as made": is_a(bool)}
    record({"path": _path}, may=may)(value, place)
    if len(value.keys() & kinds.keys()) != 1 or ("as made" in value and "value" not in value):
        raise ValueError(f"{place} has no value")


def _anything(value: Any, place: str) -> None:
    """Checks nothing: the values of callbacks and of the user's data are theirs."""


def _generators(value: Any, place: str) -> None:
    record({"row": array, "torch": optional(vector_of("uint8"))}, may={"eager": array})(
        value, place
    )
    check_rows(value["row"][None], f"{place}['row']")
    if "eager" in value:
        check_eager_rows(value["eager"][None], f"{place}['eager']")


def _own(value: Any, place: str) -> None:
    if isinstance(value, list):
        each(_entry)(value, place)
    else:
        optional(at_most(_MOST_PASSES))(value, place)


def _begun(value: Any, place: str) -> None:
    if isinstance(value, dict):
        record({"generators": _generators}, may={"own": each(_entry)})(value, place)
    else:
        optional(at_most(_MOST_PASSES))(value, place)


_HELD = optional(record({"variables": each(array), "generators": _generators}))
_POSITION = {
    "seed": seed,  # of arrays and of a PyDataset
    "begun": _begun,  # of pipelines the number of passes; of loaders the state before this one
    "own": _own,  # of pipelines the number of the open pass; of others their attributes
    "first_epoch": count,
    "pass_length": optional(at_most(_MOST_BATCHES)),  # of a PyDataset
    "taken": optional(at_most(_MOST_BATCHES)),
    "first": at_most(_MOST_PASSES),
    "passes": each(at_most(_MOST_BATCHES)),
    "held": _HELD,
    "pass": _HELD,
    "last": optional(seed),
    "last_pass": optional(at_most(_MOST_PASSES)),  # of pipelines, as the next one
    "made": at_most(_MOST_BATCHES),
    "ended_passes": each(at_most(_MOST_PASSES)),
    "ended": is_a(bool),
    "looked": is_a(bool),
    "said": _anything,
}
"""What the classes of `kfit.inputs` save: each some of these."""
_VARIABLE = record({"part": _part, "name": text, "per_replica": is_a(bool), "value": array})
_CALLBACK = record(
    {"callback": line, "state": optional(is_a(dict)), "attributes": each(_entry)},
    may={"marks": each_value(text)},
)
_ACCOUNT = record(
    {
        "began": seconds,
        "step": count,
        "step_seconds": seconds,
        "examples": optional(count),
        "restarts": count,
        "restores": count,
        "again": optional(count),
        "account": text,
        "run": optional(text),
        "generation": count,
    },
    may={"fit": count},
)
_ABOUT = record(
    {"step": count},
    may={
        **dict.fromkeys(("epoch", "step_in_epoch", "fit", "lock_count"), count),
        **dict.fromkeys(("num_replicas", "num_workers"), count),
        **dict.fromkeys(("finished", "stopped", "compiled_anew", "compiled_at_begin"), is_a(bool)),
        **dict.fromkeys(("model", "strategy", "run"), text),
        "created": seconds,
        **dict.fromkeys(("data", "data_position"), is_a(dict)),
        "versions": each_value(text),
    },
)
_SEEDING = record(
    {
        **dict.fromkeys(("program", "tensorflow", "base"), optional(seed)),
        "is_anew": is_a(bool),
        "fits": count,
    }
)
_STATE = record(
    {
        "variables": each(_VARIABLE),
        "progress": record({"epoch": count, "step": count, "step_in_epoch": count}),
        "logs": is_a(dict),
        "stop_training": is_a(bool),
        "data": record({"described": is_a(dict)}, may=_POSITION),
        "validation_data": optional(record({}, may=_POSITION)),
        "learned": _learned,
        "callbacks": each(_CALLBACK),
        "random": record(
            {
                "tasks": check_rows,
                "torch": optional(vector_of("uint8")),
                "keras": optional(vector_of("uint32", "uint64", "int32", "int64", length=2)),
            },
            may={"eager": check_eager_rows, "seeding": _SEEDING},
        ),
        "account": _ACCOUNT,
    },
    may={
        "histories": each_value(record({"epoch": is_a(list), "history": is_a(dict)})),
        "fingerprint": is_a(dict),
        "own_attributes": each(record({"part": text, "attributes": each(_entry)})),
        "trainable": record({"parts": count, "changed": each(_flag), "trained": each(_flag)}),
    },
)
