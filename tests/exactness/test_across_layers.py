"""A layer that combines the examples of a batch is told, with its line; no other layer is."""

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.sweeps import sweep

ROWS = np.random.RandomState(0).normal(size=(8, 4)).astype("float32")
TARGETS = np.random.RandomState(1).normal(size=(8, 3)).astype("float32")

Function = Callable[[Any], Any]


def sum_of_all(value: Any) -> Any:
    context = tf.distribute.get_replica_context()
    return context.all_reduce("sum", value) if context else value


def each_added_to_all(x: Any) -> Any:
    def add(i: Any, total: Any) -> Any:
        return i + 1, total + x[i : i + 1]

    shapes = [tf.TensorShape(()), tf.TensorShape((None, 4))]
    return tf.while_loop(lambda i, _: i < tf.shape(x)[0], add, [0, x], shape_invariants=shapes)[1]


def one_by_one(x: Any) -> Any:
    gates = tf.nn.relu(x)

    def write(i: Any, rows: Any) -> Any:
        return i + 1, rows.write(i, x[i : i + 1] * gates[i : i + 1])

    rows = tf.TensorArray("float32", tf.shape(x)[0], element_shape=(1, 4))
    return tf.while_loop(lambda i, _: i < tf.shape(x)[0], write, [0, rows])[1].concat()


def over_a_constant_graph(x: Any) -> Any:
    """Adds a sum over the neighbours in a graph, whose nodes and edges are no examples."""
    nodes, edges = tf.eye(4), tf.constant([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
    sums = tf.math.unsorted_segment_sum(tf.gather(nodes, edges[:, 0]), edges[:, 1], 4)
    counts = tf.cast(tf.math.bincount(edges[:, 1]), "float32")
    return x + tf.gather(sums / counts[:, None], tf.cast(x[:, 0] > 0, "int32"))


def ragged(x: Any) -> Any:
    return tf.RaggedTensor.from_tensor(tf.nn.relu(x), padding=0.0)


def next_places(x: Any) -> Any:
    return (tf.range(tf.shape(x)[0]) + 1) % tf.shape(x)[0]


def counts_of_equal_ones(x: Any) -> Any:
    _, places, counts = tf.unique_with_counts(tf.cast(x[:, 0] > 0, "int32"))
    return x * tf.cast(tf.gather(counts, places), "float32")[:, None]


def over_edges(x: Any) -> Any:
    """Takes the neighbours in a ring of nodes, where those of all examples are in one axis."""
    places = 4 * tf.range(tf.shape(x)[0])[:, None] + tf.constant([1, 2, 3, 0])
    return tf.reshape(tf.gather(tf.reshape(x, (-1,)), tf.reshape(places, (-1,))), (-1, 4))


def softmax_of_parts(x: Any) -> Any:
    """The softmax over each example's own parts, which are in one axis, as in graph attention."""
    number = tf.shape(x)[0]
    scores, owners = tf.reshape(x, (-1, 1)), tf.repeat(tf.range(number), 4)
    largest = tf.math.unsorted_segment_max(scores, owners, number)
    exponents = tf.exp(scores - tf.gather(largest, owners))
    sums = tf.math.unsorted_segment_sum(exponents, owners, number)
    return tf.reshape(exponents / tf.gather(sums, owners), (-1, 4))


COMBINE: dict[str, Function] = {
    "minus_the_first": lambda x: x - x[:1],
    "with_the_first": lambda x: x + x[0][None],
    "with_the_last": lambda x: x * ops.tanh(2.0 * x[-1:]),
    "shifted_by_padding": lambda x: x + tf.pad(x, [[1, 0], [0, 0]])[:-1],
    "each_added_to_all": each_added_to_all,
    "scattered_by_values": lambda x: (
        x * tf.scatter_nd([[tf.argmax(x[:, 0])]], [1.0], tf.shape(x, out_type="int64")[:1])[:, None]
    ),
    "one_hot_of_the_largest": lambda x: x * tf.one_hot(tf.argmax(x[:, 0]), tf.shape(x)[0])[:, None],
    "taken_by_shifted_places": lambda x: tf.gather_nd(x, next_places(x)[:, None]),
    "put_to_shifted_places": lambda x: tf.math.unsorted_segment_sum(
        x, next_places(x), tf.shape(x)[0]
    ),
    "stitched_at_shifted_places": lambda x: tf.dynamic_stitch([next_places(x)], [x]),
    "read_from_a_list_at_shifted_places": lambda x: ops.reshape(
        tf.TensorArray("float32", tf.shape(x)[0]).unstack(x).gather(next_places(x)), (-1, 4)
    ),
    "divided_and_joined": lambda x: tf.concat(
        tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, "int32"), 2), 0
    ),
    "moved_by_padding": lambda x: tf.pad(x, [[1, 0], [0, 0]])[:-1],
    "reshaped_where_transposed": lambda x: ops.reshape(ops.transpose(x), ops.shape(x)),
    "time_before_examples": lambda x: ops.reshape(
        ops.transpose(ops.reshape(ops.reshape(x, (-1, 2, 2)), (2, -1, 2)), (1, 0, 2)), (-1, 4)
    ),
    "two_examples_for_two_copies": lambda x: tf.reduce_sum(
        tf.reshape(tf.tile(x, [2, 1]), (-1, 2, 4)), axis=1
    ),
    "sum_of_all_before": lambda x: (
        tf.linalg.band_part(tf.ones((tf.shape(x)[0], tf.shape(x)[0])), -1, 0) @ x
    ),
    "solved_together": lambda x: tf.linalg.triangular_solve(
        tf.linalg.band_part(tf.ones((tf.shape(x)[0], tf.shape(x)[0])), -1, 0), x
    ),
    "part_of_a_table": lambda x: x + tf.reshape(tf.range(400.0), (100, 4))[: tf.shape(x)[0]],
    "waves_over_the_batch": lambda x: ops.transpose(
        tf.math.real(tf.signal.fft(tf.cast(ops.transpose(x), "complex64")))
    ),
    "reversed_parts": lambda x: tf.reverse_sequence(
        x, tf.fill([4], tf.shape(x)[0]), seq_axis=0, batch_axis=1
    ),
    "counts_of_equal_ones": counts_of_equal_ones,
    "mean_of_all_values_of_ragged_rows": lambda x: x * tf.reduce_mean(ragged(x).flat_values),
    "minus_the_mean": lambda x: x - ops.mean(x, axis=0),
    "divided_by_the_deviation": lambda x: x / ops.std(x, axis=0),
    "divided_by_the_norm_of_all": lambda x: x / ops.norm(x),
    "divided_by_the_largest": lambda x: x / ops.max(ops.abs(x)),
    "softmax_over_the_batch": lambda x: x * ops.softmax(x, axis=0),
    "attention_between_examples": lambda x: ops.matmul(ops.matmul(x, ops.transpose(x)), x),
    "covariance": lambda x: ops.matmul(x, ops.matmul(ops.transpose(x), x)),
    "einsum": lambda x: ops.einsum("bi,bj,cj->ci", x, x, x),
    "product_of_all": lambda x: x + ops.tensordot(x, x, 2),
    "reversed": lambda x: x + ops.flip(x, axis=0),
    "rolled": lambda x: x + ops.roll(x, 1, axis=0),
    "normalized_by_tensorflow": lambda x: tf.compat.v1.nn.fused_batch_norm(
        x[:, None, None], tf.ones(4), tf.zeros(4)
    )[0][:, 0, 0],
    "numbers_of_one_seed": lambda x: x + keras.random.normal(ops.shape(x), seed=7),
    "taken_by_places": lambda x: ops.take(x, ops.roll(ops.arange(ops.shape(x)[0]), 1), axis=0),
    "taken_by_values": lambda x: x - ops.take(x, ops.argmax(x[:, 0]), axis=0),
    "running_sum": lambda x: ops.cumsum(x, axis=0),
    "sorted": lambda x: ops.sort(x, axis=0),
}
COUNT: dict[str, Function] = {
    "divided_by_their_number": lambda x: x / ops.cast(ops.shape(x)[0], "float32"),
    "root_of_their_number": lambda x: x * ops.sqrt(tf.cast(tf.size(x), "float32")),
    "the_positive_ones": lambda x: x * tf.cast(tf.shape(tf.where(x[:, 0] > 0))[0], "float32"),
    "different_ones": lambda x: (
        x * tf.cast(tf.size(tf.unique(tf.cast(x[:, 0], "int32"))[0]), "float32")
    ),
}
DO_NOT: dict[str, Function] = {
    "minus_the_first_feature": lambda x: x - x[:, :1],
    "features_counted": lambda x: x / ops.cast(ops.shape(x)[1], "float32"),
    "zeros_of_their_number": lambda x: x + ops.zeros((ops.shape(x)[0], 1)),
    "over_edges": over_edges,
    "softmax_of_parts": softmax_of_parts,
    "own_value_taken": lambda x: (
        x
        * tf.gather_nd(
            x, tf.stack([tf.range(tf.shape(x)[0]), tf.argmax(x, 1, output_type="int32")], 1)
        )[:, None]
    ),
    "sums_of_parts": lambda x: (
        x
        * tf.math.unsorted_segment_sum(
            tf.reshape(x, (-1,)), tf.repeat(tf.range(tf.shape(x)[0]), 4), tf.shape(x)[0]
        )[:, None]
    ),
    "divided_and_put_back": lambda x: tf.dynamic_stitch(
        tf.dynamic_partition(tf.range(tf.shape(x)[0]), tf.cast(x[:, 0] > 0, "int32"), 2),
        [0.5 * part for part in tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, "int32"), 2)],
    ),
    "time_before_examples_and_back": lambda x: ops.reshape(
        ops.transpose(ops.transpose(ops.reshape(x, (-1, 2, 2)), (1, 0, 2)) * 2.0, (1, 0, 2)),
        (-1, 4),
    ),
    "copies_taken_together": lambda x: tf.reduce_sum(tf.reshape(tf.tile(x, [2, 1]), (2, -1, 4)), 0),
    "waves_of_each_example": lambda x: tf.math.real(tf.signal.fft(tf.cast(x, "complex64"))),
    "padded_at_the_end": lambda x: tf.pad(x, [[0, 2], [1, 0]])[: tf.shape(x)[0], 1:],
    "whole_slice": lambda x: x - 0.1 * ops.relu(x)[: ops.shape(x)[0]],
    "one_by_one": one_by_one,
    "over_a_constant_graph": over_a_constant_graph,
    "mean_of_each_ragged_row": lambda x: x + tf.reduce_sum(ragged(x), axis=1)[:, None],
    "masked_rows": lambda x: x * tf.reduce_sum(tf.ragged.boolean_mask(x, x > 0), 1)[:, None],
    "mask_of_lengths": lambda x: x * tf.sequence_mask(ragged(x).row_lengths(), 4, "float32"),
    "mask_up_to_the_longest": lambda x: (
        x
        * tf.reduce_mean(
            tf.sequence_mask(1 + tf.cast(x[:, 0] > 0, "int32"), dtype="float32"),
            axis=1,
            keepdims=True,
        )
        ** 0
    ),
    "looked_up": lambda x: (
        x
        + tf.nn.embedding_lookup_sparse(
            tf.eye(4), tf.sparse.from_dense(tf.cast(x > 0, "int64")), None, combiner="sum"
        )
    ),
    "looked_up_with_weights": lambda x: (
        x
        + tf.nn.embedding_lookup_sparse(
            tf.eye(4),
            tf.sparse.from_dense(tf.cast(x > 0, "int64")),
            tf.sparse.from_dense(tf.nn.relu(x)),
        )
    ),
    "normalized_by_itself": lambda x: x / ops.norm(x, axis=-1, keepdims=True),
    "softmax_of_features": lambda x: ops.softmax(x) - ops.mean(x, axis=1, keepdims=True),
    "own_products": lambda x: ops.einsum("bi,bj->bij", x, x)[:, 0],
    "attention_within_an_example": lambda x: ops.reshape(
        ops.matmul(
            ops.reshape(x, (-1, 2, 2)), ops.transpose(ops.reshape(x, (-1, 2, 2)), (0, 2, 1))
        ),
        (-1, 4),
    ),
    "numbers_of_a_generator": lambda x: x + keras.random.normal(ops.shape(x)),
    "numbers_for_each_feature": lambda x: x + keras.random.normal((4,), seed=7),
    "features_rolled": lambda x: ops.roll(ops.flip(x, axis=1), 1, axis=-1),
    "parts_in_the_batch": lambda x: ops.reshape(
        ops.reshape(x, (-1, 2)) / ops.max(ops.abs(ops.reshape(x, (-1, 2))), axis=1, keepdims=True),
        (-1, 4),
    ),
    "chosen_by_themselves": lambda x: ops.where(x > 0, x, 0.1 * x),
    "table": lambda x: x + ops.take(ops.ones((5, 4)), ops.cast(ops.abs(x[:, 0]) < 1, "int32"), 0),
    "mean_of_all_replicas": lambda x: (
        x - sum_of_all(ops.sum(x, axis=0)) / sum_of_all(ops.cast(ops.shape(x)[0], "float32"))
    ),
    "mean_as_a_constant": lambda x: x - ops.mean(ops.arange(4, dtype="float32")),
    "own_rows_of_one_axis": lambda x: ops.reshape(
        ops.take(
            ops.reshape(x, (-1,)),
            ops.cast(x > 0, "int32") + 4 * ops.arange(ops.shape(x)[0])[:, None],
            axis=0,
        ),
        (-1, 4),
    ),
    "mapped": lambda x: ops.vectorized_map(lambda row: row / ops.norm(row), x),
}


class Applied(layers.Layer):
    def __init__(self, function: Function, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


class Subclassed(keras.Model):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function, self.dense = function, layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(self.function(x))


def functional(layer: Function) -> keras.Model:
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(3)(layer(x)))


MODELS: dict[str, Callable[[Function], keras.Model]] = {
    "a layer": lambda function: functional(Applied(function)),
    "a Lambda": lambda function: functional(layers.Lambda(function)),
    "a model": Subclassed,
}
DAILY = ("minus_the_mean", "attention_between_examples", "reversed")


def said_of(model: keras.Model, strategy: Any, method: str = "fit", **compiled: Any) -> list[str]:
    """The warnings of a call that speak of layers, each once."""
    model.compile("sgd", "mse", metrics=["mae"], **compiled)
    given = (ROWS,) if method == "predict" else (ROWS, TARGETS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(kfit.Trainer(model, strategy), method)(*given, batch_size=4, verbose=0)
    texts = [str(each.message) for each in caught]
    assert not any("a loss" in text or "a metric" in text for text in texts)
    return list(dict.fromkeys(text for text in texts if text.startswith("A layer ")))


def is_of(function: Function, told: str) -> bool:
    """Whether a warning names a line of the function."""
    [line] = map(int, re.findall(r", at test_across_layers\.py, line (\d+)\. Each replica", told))
    lines, first = inspect.getsourcelines(function)
    return first <= line < first + len(lines)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in DAILY)) for name in COMBINE],
)
def test_a_layer_that_combines_examples(tiny: Any, name: str, kind: str) -> None:
    [told] = said_of(MODELS[kind](COMBINE[name]), tiny.strategy(2))
    assert told.startswith("A layer combines the examples of the batch with each other, at")
    assert is_of(COMBINE[name], told)


@pytest.mark.parametrize("name", sweep(COUNT))
def test_a_layer_that_counts_the_examples(tiny: Any, name: str) -> None:
    [told] = said_of(functional(Applied(COUNT[name])), tiny.strategy(2))
    assert told.startswith("A layer computes with the number of examples in the batch, at")
    assert is_of(COUNT[name], told)


def test_an_added_loss_that_is_divided_by_the_number_is_a_mean(tiny: Any) -> None:
    class WithLoss(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(ops.sum(ops.square(x) / ops.cast(ops.shape(x)[0], "float32")))
            return x

    assert said_of(functional(WithLoss()), tiny.strategy(2)) == []


OPERATIONS: dict[str, Function] = {
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "flip": lambda x: x + ops.flip(x, axis=0),
    "norm": lambda x: x / ops.norm(x),
    "products": lambda x: ops.matmul(ops.matmul(x, ops.transpose(x)), x),
    "einsum": lambda x: ops.einsum("bi,bj,cj->ci", x, x, x),
    "of_one_feature": lambda x: x * ops.expand_dims(ops.softmax(x[:, 0], axis=-1), 1),
}
HARMLESS: dict[str, Function] = {
    "sum": lambda x: x + 2.0 * x,
    "mean": lambda x: x - ops.mean(x, axis=1, keepdims=True),
    "products": lambda x: ops.einsum("bi,bj->bi", x, x),
    "transposed": lambda x: ops.transpose(ops.transpose(x)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_a_functional_model(tiny: Any, name: str) -> None:
    [told] = said_of(functional(OPERATIONS[name]), tiny.strategy(2))
    assert "in an operation of `keras.ops`" in told


@pytest.mark.parametrize("name", HARMLESS)
def test_operations_that_do_not(tiny: Any, name: str) -> None:
    assert said_of(functional(HARMLESS[name]), tiny.strategy(2)) == []


@pytest.mark.parametrize("name", DO_NOT)
def test_a_layer_that_does_not(tiny: Any, name: str) -> None:
    assert said_of(functional(Applied(DO_NOT[name])), tiny.strategy(2)) == []


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_the_other_methods_tell_of_it(tiny: Any, method: str) -> None:
    model = functional(Applied(COMBINE["minus_the_mean"]))
    [told] = said_of(model, tiny.strategy(2), method)
    assert "at test_across_layers.py, line" in told


def test_one_device_tells_nothing(tiny: Any) -> None:
    assert said_of(functional(Applied(COMBINE["minus_the_mean"])), tiny.strategy(1)) == []


def test_each_line_is_told_once(tiny: Any) -> None:
    x = keras.Input((4,))
    one, other = (Applied(COMBINE[name]) for name in ("minus_the_mean", "reversed"))
    model = keras.Model(x, [layers.Dense(3)(one(other(one(x)))), layers.Dense(3)(one(x))])
    model.compile("sgd", ["mse", "mae"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        kfit.Trainer(model, tiny.strategy(2)).fit(ROWS, [TARGETS, TARGETS], verbose=0)
    told = [str(each.message) for each in caught if "A layer combines" in str(each.message)]
    assert len(told) == len(set(told)) == 2


@pytest.mark.parametrize("synchronized", [False, True])
def test_batch_normalization_is_told_elsewhere(tiny: Any, synchronized: bool) -> None:
    normalization = layers.BatchNormalization(synchronized=synchronized)
    own = Applied(DO_NOT["chosen_by_themselves"])
    assert said_of(functional(lambda x: own(normalization(x))), tiny.strategy(2)) == []


class Centred(layers.Layer):
    """Remembers the mean of the batches, and computes with what it remembered."""

    def build(self, input_shape: Any) -> None:
        self.mean = self.add_weight((4,), trainable=False, aggregation="mean")

    def call(self, x: Any) -> Any:
        known = self.mean + 0.0
        self.mean.assign(0.9 * known + 0.1 * ops.mean(x, axis=0))
        return x - known


def test_a_state_from_earlier_batches_is_not_of_this_batch(tiny: Any) -> None:
    assert said_of(functional(Centred()), tiny.strategy(2)) == []


def test_a_loss_in_a_layer_that_is_computed_again_is_not_told(tiny: Any) -> None:
    """The loss compares the examples, and gets those of all replicas."""

    class WithLoss(layers.Layer):
        def call(self, x: Any) -> Any:
            pairs = keras.losses.CosineSimilarity()
            self.add_loss(pairs(x, ops.ones_like(x)))
            return x

    assert said_of(functional(WithLoss()), tiny.strategy(2)) == []
