"""What a tf.data pipeline keeps, and what keeps no order, is known before it is read."""

import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.pipeline_state import state_of


def in_a_function(rows: tf.data.Dataset) -> tf.data.Dataset:
    return tf.data.Dataset.range(2).flat_map(lambda _: rows.shuffle(4))


def free(rows: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return rows.with_options(options)


def parallel(rows: tf.data.Dataset, deterministic: bool | None = None) -> tf.data.Dataset:
    return rows.map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=deterministic)


def in_turns(rows: tf.data.Dataset, deterministic: bool | None = None) -> tf.data.Dataset:
    return tf.data.Dataset.range(2).interleave(
        lambda number: rows.shard(2, number), num_parallel_calls=2, deterministic=deterministic
    )


def counting(rows: tf.data.Dataset) -> tf.data.Dataset:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def counted(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key = tf.zeros([], tf.int64)
        with tf.control_dependencies([table.insert(key, table.lookup(key) + 1)]):
            return tf.identity(x), y

    return rows.map(counted)


UNORDERED = {
    "sampled": (lambda rows: tf.data.Dataset.sample_from_datasets([rows] * 2), "`random`"),
    "in_a_function": (in_a_function, "`shuffle` without a seed"),
    "map": (lambda rows: parallel(rows, False), "`deterministic=False`"),
    "interleave": (lambda rows: in_turns(rows, False), "`deterministic=False`"),
    "options": (lambda rows: free(parallel(rows)), "`deterministic=False`"),
    "counting": (counting, "no variable (by LookupTableInsertV2)"),
    "seeded": (lambda rows: parallel(rows.shuffle(4, seed=3)), None),
    "in_order": (lambda rows: in_turns(rows, True), None),
    "nothing_in_parallel": (free, None),
}


@pytest.mark.parametrize("kind", UNORDERED)
def test_what_keeps_no_order_is_known(kind: str) -> None:
    made, told = UNORDERED[kind]
    tf.random.set_seed(None)
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((20, 3), "float32"), np.zeros(20)))
    found = state_of(made(rows).batch(4)).unordered
    assert [cause for cause in found if told is not None and told in cause] == list(found)
    assert bool(found) == (told is not None)


def test_variables_that_a_function_only_reads_are_not_written() -> None:
    level, draw = tf.Variable(1.0), tf.random.Generator.from_seed(3)
    noisy = tf.data.Dataset.range(4).map(lambda x: level * draw.normal([]))
    found = state_of(noisy)
    assert [variable is draw.state for variable in found.written] == [True]
    assert any(variable is level for variable in found.variables)
