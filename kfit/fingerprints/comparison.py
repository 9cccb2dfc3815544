"""Compares two fingerprints, which describe trainings, and reports every difference in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

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

_OF_LAYER = re.compile(r"(?P<layer>.*? \(\d+\))(?P<setting>\..*)?", re.DOTALL)
"""The name of a value in the section "model": a layer with its number, and one of its settings."""

_CONNECTIONS = ".connections"


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
        listed = _lines_of_layers if section == "model" else _lines
        lines = [f"{section}: {line}" for line in listed(here, there, alike=alike)]
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


def _lines_of_layers(
    here: Mapping[str, Any], there: Mapping[str, Any], *, alike: bool = True
) -> Iterator[str]:
    """Yields the differences of layers; a layer that only one model has takes one line.

    Such a layer moves the numbers of all layers after it. So the layers are matched by the order of
    their names, and are shown with the numbers that they have in this training.
    """
    own, kept = _by_layer(here), _by_layer(there)
    both, new, gone = _matched(list(own), list(kept))
    for ours, theirs in both:
        first, second = own[ours], kept[theirs]
        if new or gone:  # then the connections have to differ
            first, second = (
                {k: v for k, v in s.items() if k != _CONNECTIONS} for s in (first, second)
            )
        yield from _lines(
            {ours + key: value for key, value in first.items()},
            {ours + key: value for key, value in second.items()},
            alike=alike,
        )
    if alike:
        for layer in new:
            yield f"{layer}, a {own[layer].get('')}, is not in the snapshot"
        for layer in gone:
            yield f"{layer}, a {_shown(kept[layer].get(''))}, is only in the snapshot"


def _by_layer(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the settings of each layer by their names, its class by ""; others belong to ""."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        of_layer = _OF_LAYER.fullmatch(key)
        layer, setting = of_layer.group("layer", "setting") if of_layer else ("", key)
        found.setdefault(layer, {})[setting or ""] = value
    return found


def _matched(
    own: Sequence[str], kept: Sequence[str]
) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Returns the pairs of layers of the same name, and the layers that only one side has."""
    first, second = ([layer.rpartition(" ")[0] for layer in side] for side in (own, kept))
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    both = [
        pair
        for a, b, size in blocks
        for pair in zip(own[a : a + size], kept[b : b + size], strict=True)
    ]
    ours, theirs = {pair[0] for pair in both}, {pair[1] for pair in both}
    return both, [one for one in own if one not in ours], [one for one in kept if one not in theirs]


def _lines(
    here: Mapping[str, Any], there: Mapping[str, Any], *, alike: bool = True
) -> Iterator[str]:
    """Yields the differences of values; what only one object of another class has is left out."""
    keys = [*here, *(key for key in there if key not in here)]
    if not alike:
        keys = [k for k in keys if k in here and k in there and not k.endswith(".code")]
    told: list[str] = []
    for key in keys:
        is_in_both = key in here and key in there
        if is_in_both and repr(here[key]) == repr(there[key]):
            continue
        if not is_in_both and key.startswith(tuple(told)):
            continue
        told.append(f"{key}.")
        yield _difference(key, here, there)


def _difference(key: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    if key not in there:
        return f"{key} is {_shown(here[key])}, which the snapshot does not have"
    if key not in here:
        return f"{key} is not there, in the snapshot {_shown(there[key])}"
    if key.endswith(_CONNECTIONS):
        layer = key.removesuffix(_CONNECTIONS)
        return f"{layer} connects its layers in another way than in the snapshot"
    why = next((why for end, why in _WHY.items() if key.endswith(end)), "")
    shown = _shown(here[key]), _shown(there[key])
    if shown[0] == shown[1]:
        shown = repr(here[key]), repr(there[key])  # they differ where they are cut short
    return f"{key} is {shown[0]}, in the snapshot {shown[1]}{why}"


def _shown(value: Any) -> str:
    """Returns a value as text that is not too long; numbers of float32 with their few digits."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            short = np.float32(value)
        value = float(str(short)) if float(short) == value else value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
