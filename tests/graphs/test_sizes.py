"""Sizes are told apart: the number of examples, and those of other axes."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.rows_axis import is_inner_size, rows_axis
from kfit.graphs.sizes import are_numbers, is_number

SCALARS: dict[str, tuple[Callable[[Any], Any], bool | None]] = {
    "number": (lambda x: tf.shape(x)[0], True),
    "of_time": (lambda x: tf.shape(x)[1], False),
    "last": (lambda x: tf.shape(x)[-1], False),
    "of_time_transposed": (lambda x: tf.shape(tf.transpose(x, [1, 0, 2]))[0], False),
    "number_transposed": (
        lambda x: tf.cast(tf.shape(tf.transpose(x, [1, 0, 2]))[1], "float32"),
        True,
    ),
    "product": (lambda x: tf.reduce_prod(tf.shape(x)[1:]), False),
    "of_all": (lambda x: tf.size(x) // 2, True),
    "unstacked": (lambda x: tf.unstack(tf.shape(x))[1], False),
    "of_time_gathered": (lambda x: tf.gather(tf.shape(x), (tf.constant(-2) + 3) % 3), False),
    "number_gathered": (lambda x: tf.gather(tf.shape(x), 0), True),
    "a_value": (lambda x: x[0, 0, 0], None),
}
VECTORS: dict[str, tuple[Callable[[Any], Any], list[bool | None] | None]] = {
    "whole": (tf.shape, [True, False, False]),
    "packed": (lambda x: tf.stack([tf.shape(x)[0], -1, 5]), [True, False, False]),
    "put_together": (lambda x: tf.concat([tf.shape(x)[:1], [2, 3]], 0), [True, False, False]),
    "inner": (lambda x: tf.shape(x)[1:], [False, False]),
    "reshaped": (lambda x: tf.reshape(tf.shape(x)[0], [1]), [True]),
    "filled": (
        lambda x: tf.concat([[tf.size(x)], tf.fill([2], tf.shape(x)[1])], 0),
        [True] + 2 * [False],
    ),
    "values": (lambda x: x[0, 0], None),
}


def read(make: Callable[[Any], Any], ask: Callable[[Any], Any]) -> Any:
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, None, 5))])
    def step(x: Any) -> None:
        found.append(ask(make(x)))

    step.get_concrete_function()
    return found[0]


@pytest.mark.parametrize("name", SCALARS)
def test_a_size(name: str) -> None:
    make, expected = SCALARS[name]
    assert read(make, lambda size: is_number(size, rows_axis)) is expected


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_of_sizes(name: str) -> None:
    make, expected = VECTORS[name]
    assert read(make, lambda sizes: are_numbers(sizes, rows_axis)) == expected


def test_sizes_of_other_axes() -> None:
    assert read(lambda x: tf.shape(x)[1:], is_inner_size)
    assert read(lambda x: tf.shape(tf.reduce_sum(x, 0)), is_inner_size)
    assert not read(tf.shape, is_inner_size)
    assert not read(lambda x: tf.shape(x)[0], is_inner_size)
