"""Indices of rows are read: those of each example itself, of another one, or of all in one axis."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.origins import Origins
from kfit.graphs.row_indices import (
    are_all_places,
    are_beside_places,
    are_offsets,
    are_selected,
    shift_places,
    undo_unique,
)
from tests.exactness.cases.traced import asked_in_step


def places(x: Any) -> Any:
    return tf.range(tf.shape(x)[0])


def best(x: Any) -> Any:
    return tf.argmax(x, axis=1, output_type="int32")


INDICES: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "all_places": (places, {"all"}),
    "with_another_axis": (lambda x: places(x)[:, None], {"all"}),
    "of_each_part": (lambda x: tf.repeat(places(x), 4), {"all"}),
    "of_each_column": (lambda x: tf.broadcast_to(places(x)[:, None], tf.shape(x)), {"all"}),
    "of_copies_in_turn": (lambda x: tf.tile(places(x), [4]), set()),
    "the_next_ones": (lambda x: (places(x) + 1) % tf.shape(x)[0], {"shift"}),
    "from_behind": (lambda x: tf.shape(x)[0] - 1 - places(x), {"shift"}),
    "the_next_ones_at_most": (lambda x: tf.minimum(places(x) + 1, 9), {"shift"}),
    "beside_a_number": (
        lambda x: tf.stack([(places(x) + 1) % tf.shape(x)[0], 0 * places(x)], 1),
        {"shift"},
    ),
    "of_parts": (lambda x: 4 * places(x) + 1, {"offsets"}),
    "of_chosen_parts": (lambda x: best(x) + 4 * places(x), {"offsets"}),
    "chosen": (best, set()),
    "selected": (lambda x: tf.where(x[:, 0] > 0), {"selected"}),
    "parts_of_the_next_one": (
        lambda x: (best(x) + 4 * places(x) + 4) % (4 * tf.shape(x)[0]),
        set(),
    ),
}


def read(indices: Any, origins: Origins) -> set[str]:
    kinds = {
        "all": are_all_places(indices),
        "selected": are_selected(indices),
        "shift": shift_places(indices, origins),
        "offsets": are_offsets(indices, origins),
    }
    return {kind for kind, is_so in kinds.items() if is_so}


@pytest.mark.parametrize("name", INDICES)
def test_what_indices_are(name: str) -> None:
    make, kinds = INDICES[name]
    assert asked_in_step(lambda x, origins: read(make(x), origins), 4) == kinds


@pytest.mark.parametrize(("name", "are"), [("of_chosen_parts", True), ("chosen", False)])
def test_numbers_beside_the_places_of_the_examples(name: str, are: bool) -> None:
    make, _ = INDICES[name]
    assert asked_in_step(lambda x, origins: are_beside_places(make(x), origins), 4) is are


@pytest.mark.parametrize("part", [0, 2])
def test_unique_values_are_put_back_and_their_counts_are_not(part: int) -> None:
    def undone(x: Any, origins: Origins) -> bool:
        unique = tf.unique_with_counts(best(x))
        return undo_unique(unique[part], unique[1], origins)

    assert asked_in_step(undone, 4) is (part == 0)
