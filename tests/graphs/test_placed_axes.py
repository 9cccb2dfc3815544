"""An axis is found where an operation has put it."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from kfit.graphs.placed_axes import BROADCASTING, parts_of_slice, placed

CASES: dict[str, tuple[Callable[[Any], Any], list[int | None]]] = {
    "transposed": (lambda x: tf.transpose(x, [2, 0, 1]), [1, 2, 0]),
    "summed": (lambda x: tf.reduce_sum(x, 1), [0, None, 1]),
    "kept": (lambda x: tf.reduce_max(x, [1, 2], keepdims=True), [0, None, None]),
    "best": (lambda x: tf.argmax(x, 1), [0, None, 1]),
    "sliced": (lambda x: x[:, None, 0], [0, None, 2]),
    "unstacked": (lambda x: tf.unstack(x, axis=1)[0], [0, None, 1]),
    "expanded": (lambda x: tf.expand_dims(x, 1), [0, 2, 3]),
    "squeezed": (lambda x: tf.squeeze(tf.ensure_shape(x, (2, 1, 5)), 1), [0, None, 1]),
    "product": (lambda x: tf.matmul(x, x, transpose_b=True), [0, 1, None]),
    "einsum": (lambda x: tf.einsum("abc,dbc->dab", x, x), [1, 2, None]),
    "gathered": (lambda x: tf.gather(x, [[0, 0]], axis=1), [0, 1, 3]),
    "taken": (lambda x: tf.gather(x, 0, axis=1), [0, None, 1]),
    "broadcast": (lambda x: x + tf.zeros((7, 1, 1, 1)), [1, 2, 3]),
    "as_they_are": (tf.nn.relu, [0, 1, 2]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_place_of_each_axis(name: str) -> None:
    make, expected = CASES[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec((2, 1, 5))])
    def step(x: Any) -> None:
        op = make(x).op
        found.extend(placed(op, 0, axis) for axis in range(3))

    step.get_concrete_function()
    assert found == expected


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


def broadcasts(name: str, dtype: tf.DType) -> bool:
    """Whether an operation of two tensors has an element for each pair of theirs."""
    definition = op_def_registry.get(name)
    names = [each.name for each in definition.input_arg] if definition else []
    if len(names) != 2 or definition.is_stateful or definition.input_arg[0].is_ref:
        return False
    column, row = tf.cast([[1]] * 5, dtype), tf.cast([1, 1, 1], dtype)
    try:
        result = getattr(tf.raw_ops, name)(**dict(zip(names, (column, row), strict=True)))
    except (TypeError, ValueError, RuntimeError, tf.errors.OpError):
        return False
    return isinstance(result, tf.Tensor) and result.shape == (5, 3)


def test_every_operation_that_broadcasts_is_known() -> None:
    found = {
        name
        for name in dir(tf.raw_ops)
        for dtype in (tf.float32, tf.int32, tf.bool)
        if name[:1].isupper() and broadcasts(name, dtype)
    }
    assert len(found) > 40
    assert found - BROADCASTING == set()
