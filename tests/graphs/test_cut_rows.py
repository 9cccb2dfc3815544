"""Rows that were cut out of the batch by one slice are told from those of all examples."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.cut_rows import cuts_of
from kfit.graphs.origins import Origins
from tests.exactness.cases.traced import asked_in_step

ALIKE: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "all_examples": lambda x: (x, tf.tanh(x @ tf.ones((3, 3)))),
    "features": lambda x: (x[:, :1], x),
    "all_by_a_slice": lambda x: (x[: tf.shape(x)[0]], 2.0 * x),
    "the_same_slice": lambda x: (x[:1], tf.tanh(2.0 * x[:1])),
    "the_same_slice_by_numbers": lambda x: (x[1:3], (x @ tf.ones((3, 3)))[1:3]),
    "lengths_from_ends": lambda x: (
        tf.cast(tf.cast(x[:, 0], "int32")[1:] - tf.cast(x[:, 0], "int32")[:-1], "float32"),
        x[:, 0],
    ),
    "a_sum": lambda x: (tf.reduce_sum(x[:1], axis=0), x[0]),
}
OTHERS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "the_first_one": lambda x: (x[:1], x),
    "after_layers": lambda x: (tf.tanh(x[:1] @ tf.ones((3, 3))), tf.tanh(x)),
    "neighbours": lambda x: (x[1:], x[:-1]),
    "parts": lambda x: tuple(tf.split(x, 2)),
    "two_ends": lambda x: (x[:1], x[:2]),
    "two_beginnings": lambda x: (x[1:3], x[2:4]),
    "each_second_one": lambda x: (x[::2], x),
}


def cuts(function: Callable[[Any], tuple[Any, Any]]) -> list[Any]:
    def of_both(x: Any, origins: Origins) -> list[Any]:
        return [cuts_of(each, origins) for each in function(x)]

    return list(asked_in_step(of_both, 3))


@pytest.mark.parametrize("name", ALIKE)
def test_rows_of_the_same_examples(name: str) -> None:
    one, other = cuts(ALIKE[name])
    assert one == other


@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_other_examples(name: str) -> None:
    one, other = cuts(OTHERS[name])
    assert one != other
