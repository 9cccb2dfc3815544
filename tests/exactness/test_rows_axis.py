"""The axis of the examples is found wherever an operation has put it."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.exactness.rows_axis import parts_of_slice, rows_axis

CASES: dict[str, tuple[Callable[[Any], Any], int | None]] = {
    "as_it_was": (lambda x: x + 1.0, 0),
    "transposed": (tf.transpose, 2),
    "transposed_in_part": (lambda x: tf.transpose(x, [1, 0, 2]) * 2.0, 1),
    "transposed_back": (lambda x: tf.transpose(tf.exp(tf.transpose(x))), 0),
    "softmax_of_the_batch": (lambda x: tf.nn.softmax(x, axis=0).op.inputs[0], 2),
    "behind_a_new_axis": (lambda x: x[None], 1),
    "expanded": (lambda x: tf.expand_dims(x, 0), 1),
    "before_a_new_axis": (lambda x: x[:, None], 0),
    "stacked": (lambda x: tf.stack([x, x]), 1),
    "unstacked": (lambda x: tf.stack([x, x])[0], 0),
    "without_an_axis": (lambda x: tf.transpose(x)[..., 0, :], 1),
    "summed": (lambda x: tf.reduce_sum(x, 0), None),
    "broadcast": (lambda x: tf.transpose(x)[0] + tf.zeros((4, 3, 1)), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_axis_of_the_examples(name: str) -> None:
    made, axis = CASES[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, 3, 5))])
    def step(x: Any) -> None:
        found.append(rows_axis(made(x)))

    step.get_concrete_function()
    assert found == [axis]


def test_the_parts_of_a_slice() -> None:
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, 3, 5, 7))])
    def step(x: Any) -> None:
        found.append(parts_of_slice(x[:, None, ..., 1].op, 4))
        found.append(parts_of_slice(x[::-1].op, 4))

    step.get_concrete_function()
    assert found == [
        [(0, 0), (1, None), (None, 1), (None, 2), (3, 3)],
        [(0, 0), (None, 1), (None, 2), (None, 3)],
    ]
