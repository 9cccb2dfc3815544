"""An operation that moves values along the axis of the examples is told from one that does not."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.moved_rows import moves_rows
from tests.exactness.cases.traced import asked_in_step

MOVE: dict[str, Callable[[Any], Any]] = {
    "roll": lambda x: tf.roll(x, 1, axis=0),
    "running_sum": lambda x: tf.cumsum(x, axis=0),
    "reshape_of_transposed": lambda x: tf.reshape(tf.transpose(x), (-1, 4)),
    "reshape_to_time_first": lambda x: tf.reshape(x, (2, tf.shape(x)[0], 2)),
    "copies_in_one_row": lambda x: tf.reshape(tf.tile(x, [2, 1]), (-1, 2, 4)),
    "solved": lambda x: tf.linalg.solve(tf.eye(tf.shape(x)[0]), x),
    "band": lambda x: tf.linalg.band_part(x, 0, 0),
    "reversed_sequences": lambda x: tf.reverse_sequence(x, [2] * 4, seq_axis=0, batch_axis=1),
    "local_responses": lambda x: tf.nn.local_response_normalization(tf.transpose(x)[None, None]),
}
MOVE["quantized_by_the_range_of_all"] = lambda x: tf.quantization.quantize_and_dequantize_v2(
    x, 0.0, 0.0, range_given=False
)
MOVE["ordered"] = lambda x: tf.raw_ops.IsotonicRegression(input=tf.transpose(x)).output
MOVE["shuffled"] = lambda x: tf.raw_ops.StatelessShuffle(value=x, key=[1], counter=[1, 2], alg=1)
DO_NOT: dict[str, Callable[[Any], Any]] = {
    "roll_of_features": lambda x: tf.roll(x, 1, axis=1),
    "reshape_of_each_row": lambda x: tf.reshape(x, (-1, 2, 2)),
    "reshape_to_parts": lambda x: tf.reshape(x, (-1, 2)),
    "reshape_of_parts": lambda x: tf.reshape(tf.reshape(tf.tile(x, [2, 1]), (-1, 2)), (-1, 4)),
    "reshape_of_time_first": lambda x: tf.reshape(
        tf.transpose(tf.reshape(x, (-1, 2, 2)), (1, 0, 2)), (2, -1, 1, 2)
    ),
    "solved_for_each_feature": lambda x: tf.linalg.solve(tf.eye(4), tf.transpose(x)),
    "reversed_features": lambda x: tf.reverse_sequence(
        x, tf.fill([tf.shape(x)[0]], 2), seq_axis=1, batch_axis=0
    ),
}


DO_NOT["quantized_in_a_range"] = lambda x: tf.quantization.quantize_and_dequantize_v2(
    x, -1.0, 1.0, range_given=True
)
DO_NOT["quantized_by_the_range_of_each"] = lambda x: tf.quantization.quantize_and_dequantize_v2(
    x, x[:, 0], x[:, 1], range_given=False, axis=0
)
DO_NOT["ordered_features"] = lambda x: tf.raw_ops.IsotonicRegression(input=x).output


def moves(function: Callable[[Any], Any]) -> bool:
    return bool(asked_in_step(lambda x, origins: moves_rows(function(x).op, origins), 4))


@pytest.mark.parametrize("name", MOVE)
def test_operations_that_move_rows(name: str) -> None:
    assert moves(MOVE[name])


@pytest.mark.parametrize("name", DO_NOT)
def test_operations_that_do_not(name: str) -> None:
    assert not moves(DO_NOT[name])
