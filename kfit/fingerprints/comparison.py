"""Compares two fingerprints, which describe trainings, and reports every difference in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Section: TypeAlias = Literal[
    "data",
    "validation_data",
    "seed",
    "class_weight",
    "model",
    "loss",
    "optimizer",
    "learning_rate",
    "metrics",
]
SECTIONS: tuple[Section, ...] = get_args(Section)
"""The sections that are compared. The user allows changes by these names."""

_LONGEST = 100
_MOST = 12
"""The most characters of a value, and the most differences of a section, that are shown."""

_IN_TURNS = (
    " (how many inputs are read in turns decides the order of the elements: give a number that is "
    "the same on every machine, not that of its cores)"
)
_WHY = {".cycle_length": _IN_TURNS, ".num_parallel_reads": _IN_TURNS}
"""Explanations of differences that are not obvious, by the end of the value's name."""


class Difference(NamedTuple):
    """A difference between a training and the training of a snapshot.

    Attributes:
        section: The part of the training that differs, such as "data" or "optimizer".
        line: A description of the difference, in one line.
    """

    section: Section
    line: str


def compare(
    own: Mapping[str, Mapping[str, Any]],
    kept: Mapping[str, Mapping[str, Any]],
    *,
    alike: bool = True,
) -> list[Difference]:
    """Lists the differences between this training and the training of a snapshot.

    If a section has more than 12 differences, the others are only counted, in one further line.
    Sections that only one fingerprint has are not compared.

    Args:
        own: The fingerprint of this training: plain values that describe it, by section ("data",
            "model", ...).
        kept: The fingerprint in the snapshot.
        alike: Whether both fingerprints were made by the same versions of Python, Keras and
            TensorFlow. If not, values that only one fingerprint has, and the bytecode of functions,
            are ignored.
    """
    found = []
    for section in SECTIONS:
        here, there = own.get(section), kept.get(section)
        if here is None or not isinstance(there, Mapping):
            continue
        lines = [f"{section}: {line}" for line in _lines(here, there, alike=alike)]
        if len(lines) > _MOST:
            lines = [*lines[:_MOST], f"{section}: and {len(lines) - _MOST} more"]
        found += [Difference(section, line) for line in lines]
    return found


def differing_attributes(
    own: Mapping[str, Mapping[str, Any]], kept: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """Lists numbers that objects of the user's hold, and that are not those of the snapshot.

    They may be settings that the user has changed. But they may also be what a clock gave, or what
    a hook of an earlier `fit` has set, so an unchanged program may have others.

    Args:
        own: The fingerprint of this training.
        kept: The fingerprint in the snapshot.
    """
    lines = _lines(own.get("attributes", {}), kept.get("attributes", {}))
    sections: dict[str, Section] = {section: section for section in SECTIONS}
    found = [(sections.get(line.split(":")[0]), line) for line in lines]
    return [Difference(section, line) for section, line in found if section is not None]


def _lines(
    here: Mapping[str, Any], there: Mapping[str, Any], *, alike: bool = True
) -> Iterator[str]:
    keys = [*here, *(key for key in there if key not in here)]
    if not alike:
        keys = [k for k in keys if k in here and k in there and not k.endswith(".code")]
    for key in keys:
        if key not in here or key not in there or repr(here[key]) != repr(there[key]):
            yield _difference(key, here, there)


def _difference(key: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    if key not in there:
        return f"{key} is {_shown(here[key])}, which the snapshot does not have"
    if key not in here:
        return f"{key} is not there, in the snapshot {_shown(there[key])}"
    why = next((why for end, why in _WHY.items() if key.endswith(end)), "")
    return f"{key} is {_shown(here[key])}, in the snapshot {_shown(there[key])}{why}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
