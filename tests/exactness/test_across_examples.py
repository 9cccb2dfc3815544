"""Losses that combine the examples of a replica are warned of by name, and others are not."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kfit

pytestmark = pytest.mark.usefixtures("ungathered")

Loss = Callable[[Any, Any], Any]


def of_all_replicas(values: Any) -> Any:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_gather(values, axis=0)


def of_class(scores: Any) -> Any:
    return ops.argmax(scores, axis=-1)


def gap(one: Any, other: Any) -> Any:
    return ops.sum(ops.square(one - other), axis=-1)


def places(of: Any) -> Any:
    return tf.range(tf.shape(of)[0])


COMBINE: dict[str, Loss] = {
    "every_product": lambda y, z: ops.mean(ops.matmul(z, ops.transpose(z))),
    "every_product_by_einsum": lambda y, z: ops.mean(ops.square(ops.einsum("id,jd->ij", z, z))),
    "softmax_over_the_batch": lambda y, z: (
        -ops.diagonal(ops.log_softmax(ops.matmul(z, ops.transpose(y))))
    ),
    "every_equality": lambda y, z: (
        ops.mean(z) + tf.reduce_mean(tf.cast(of_class(y) == of_class(z)[:, None], tf.float32))
    ),
    "every_difference": lambda y, z: ops.mean(ops.square(z[:, None] - z[None]), axis=(1, 2)),
    "distance_from_the_mean": lambda y, z: gap(z, ops.mean(z, axis=0)),
    "part_of_the_sum": lambda y, z: ops.mean(gap(z / ops.sum(z), y)),
    "with_the_next_one": lambda y, z: gap(z, ops.roll(z, 1, axis=0)),
    "with_the_last_one": lambda y, z: gap(z, ops.roll(z, 1, axis=-2)),
    "of_the_worst_by_one_hot": lambda y, z: tf.reduce_sum(
        gap(z, y) * tf.one_hot(tf.argmax(gap(z, y)), tf.shape(z)[0])
    ),
    "of_the_worst_by_scatter": lambda y, z: tf.reduce_sum(
        gap(z, y)
        * tf.scatter_nd([[tf.argmax(gap(z, y))]], [1.0], tf.shape(z, out_type=tf.int64)[:1])
    ),
    "with_all_before": lambda y, z: ops.mean(tf.cumsum(gap(z, y), axis=-1)),
    "with_any_other_one": lambda y, z: ops.mean(gap(z, tf.random.shuffle(z, seed=1))),
    "with_the_opposite_one": lambda y, z: gap(z, z[::-1]),
    "with_the_next_one_by_slices": lambda y, z: gap(z, tf.concat([z[1:], z[:1]], 0)),
    "share_of_the_batch": lambda y, z: tf.reduce_sum(tf.nn.softmax(z, axis=0) * y),
    "share_of_the_column": lambda y, z: tf.reduce_sum(tf.nn.softmax(z[:, 0]) * y[:, 0]),
    "a_row_with_a_column": lambda y, z: ops.mean((y[:, 0] - z[:, :1]) ** 2),
    "products_between_transpositions": lambda y, z: ops.mean(ops.einsum("id,jd->dij", y, z) ** 2),
    "sums_between_transpositions": lambda y, z: ops.mean(
        tf.transpose(tf.cumsum(tf.transpose(z), axis=-1)) ** 2
    ),
    "sorted_between_transpositions": lambda y, z: gap(y, tf.sort(z, axis=0)),
    "orthogonal": lambda y, z: ops.mean(tf.linalg.qr(z)[0][:, 0] ** 2),
    "one_example_replaced": lambda y, z: gap(y, tf.tensor_scatter_nd_update(z, [[0]], z[1:2])),
    "by_place": lambda y, z: gap(y, z) * tf.cast(places(z) < 2, tf.float32),
    "zero_by_place": lambda y, z: tf.where(places(z) < 2, gap(y, z), 0.0),
    "chosen_by_place": lambda y, z: tf.reduce_sum(tf.boolean_mask(gap(y, z), places(z) < 2)),
    "weighted_from_a_table": lambda y, z: (
        gap(y, z) * tf.gather(tf.linspace(0.0, 1.0, 8), places(z))
    ),
}
DO_NOT: dict[str, Loss] = {
    "mean": lambda y, z: ops.mean(ops.square(y - z)),
    "of_each": gap,
    "equality_of_each": lambda y, z: (
        ops.mean(z) + tf.reduce_mean(tf.cast(of_class(y) == of_class(z), tf.float32))
    ),
    "products_of_each": lambda y, z: -ops.einsum("id,id->i", y, z),
    "products_within_each": lambda y, z: ops.mean(
        ops.square(ops.matmul(y[:, :, None], z[:, None, :]))
    ),
    "within_each": lambda y, z: gap(z - ops.mean(z, axis=-1, keepdims=True), y),
    "within_each_rolled": lambda y, z: gap(z, ops.roll(z, 1, axis=-1)),
    "softmax": lambda y, z: ops.categorical_crossentropy(ops.softmax(y), ops.softmax(z)),
    "by_a_matrix": lambda y, z: gap(ops.matmul(z, ops.eye(3) * 2.0), y),
    "covariance": lambda y, z: ops.sum(ops.matmul(ops.transpose(z), z)),
    "between_transpositions": lambda y, z: gap(y, tf.nn.softmax(tf.transpose(tf.transpose(z)))),
    "softmax_of_another_axis": lambda y, z: gap(y, tf.nn.softmax(z[:, :, None], axis=1)[:, :, 0]),
    "columns_reversed": lambda y, z: gap(y, z[:, ::-1]),
    "put_together": lambda y, z: ops.mean(tf.concat([y - z, y + z], 0) ** 2),
    "put_together_and_split": lambda y, z: ops.mean(
        gap(*tf.split(ops.tanh(tf.concat([y, z], 0)), 2, axis=0))
    ),
    "zero_within_each": lambda y, z: tf.reduce_sum(tf.where(places(z[0]) < 2, z - y, 0.0)),
    "from_a_table_within_each": lambda y, z: gap(y, z * tf.gather(tf.range(3.0), places(z[0]))),
    "from_a_table_by_class": lambda y, z: gap(y, z) * tf.gather(tf.range(3.0), of_class(y)),
    "stacked": lambda y, z: gap(*tf.unstack(tf.stack([y, z]))),
    "diagonal_by_places": lambda y, z: tf.gather_nd(
        z**2, tf.stack([tf.range(tf.shape(z)[0]), tf.argmax(y, -1, tf.int32)], -1)
    ),
    "with_all_replicas": lambda y, z: ops.mean(gap(z, ops.mean(of_all_replicas(z), axis=0))),
}


LONG = {
    *("with_the_last_one", "share_of_the_column", "a_row_with_a_column", "orthogonal"),
    *("sums_between_transpositions", "sorted_between_transpositions", "one_example_replaced"),
    *("softmax_of_another_axis", "columns_reversed", "stacked", "diagonal_by_places"),
    *("mixed_with_the_next", "products", "normalized", "the_first", "mixed_with_noise"),
    *("every_product_by_einsum", "products_within_each", "within_each_rolled", "by_place"),
    *("chosen_by_place", "from_a_table_within_each", "softmax_over_the_batch", "every_equality"),
    *("with_the_next_one", "with_all_before", "with_any_other_one", "with_the_opposite_one"),
    *("share_of_the_batch", "products_between_transpositions", "weighted_from_a_table"),
    *("equality_of_each", "products_of_each", "within_each", "softmax", "by_a_matrix"),
    *("covariance", "between_transpositions", "put_together_and_split", "from_a_table_by_class"),
    *("with_all_replicas", "unique", "one_gradient_of_all", "second_order"),
    *("a_gradient_of_each", "two_views"),
}
"""The cases that are not tried every day, since others are of the same kind."""


def cases(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in names]


def warned_of(loss: Loss, strategy: Any) -> list[str]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", loss)
    rows = np.random.RandomState(0).normal(size=(8, 7)).astype("float32")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kfit.Trainer(model, strategy).evaluate(rows[:, :4], rows[:, 4:], verbose=0)
    return [text for text in map(_text, said) if text.startswith(("What a loss", "The loss"))]


def _text(warning: warnings.WarningMessage) -> str:
    return str(warning.message)


@pytest.mark.parametrize("name", cases(COMBINE))
def test_examples_that_are_combined(tiny: Any, name: str) -> None:
    said = warned_of(COMBINE[name], tiny.strategy(2))
    assert any(text.startswith("What a loss returns combines the examples") for text in said)


@pytest.mark.parametrize("name", cases(DO_NOT))
def test_examples_that_are_not_combined(tiny: Any, name: str) -> None:
    assert warned_of(DO_NOT[name], tiny.strategy(2)) == []


def test_one_replica_has_all_examples(tiny: Any) -> None:
    assert warned_of(COMBINE["every_product"], tiny.strategy(1)) == []


Step = Callable[[Any, Any, Any], Any]


def error(net: Any, x: Any, y: Any) -> Any:
    return ops.mean((net(x) - y) ** 2)


def by_input_gradient(net: Any, x: Any, y: Any, *, axis: int | None) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = error(net, x, y)
    change = tape.gradient(loss, x)
    change /= tf.norm(change, axis=axis, keepdims=True) + 1e-3
    return error(net, x + 0.1 * change, y)


def by_weight_gradient(net: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = error(net, x, y)
    kernel = net.layers[0].kernel
    return ops.mean((ops.matmul(x, kernel - 0.1 * tape.gradient(loss, kernel)) - y) ** 2)


def by_result(net: Any, x: Any, y: Any) -> Any:
    tracker = net.layers[1].tracker
    tracker.update_state(1.0)
    return error(net, x, y) * (1.0 + tracker.result())


def of_two_views(net: Any, x: Any, y: Any) -> Any:
    one, other = tf.split(net(tf.concat([x, -x], 0)), 2, axis=0)
    return ops.mean((one - other) ** 2)


COMBINE_FIRST: dict[str, tuple[Step, str]] = {
    "mixed_with_the_opposite": (
        lambda net, x, y: error(net, 0.7 * x + 0.3 * x[::-1], y),
        "combines the examples",
    ),
    "mixed_with_the_next": (
        lambda net, x, y: error(net, 0.7 * x + 0.3 * tf.concat([x[1:], x[:1]], 0), y),
        "combines the examples",
    ),
    "products": (
        lambda net, x, y: ops.mean(ops.matmul(net(x), ops.transpose(net(x))) ** 2),
        "combines the examples",
    ),
    "normalized": (
        lambda net, x, y: error(net, x / ops.sum(x**2), y),
        "combines the examples",
    ),
    "chosen": (
        lambda net, x, y: ops.mean(net(tf.boolean_mask(x, x[:, 0] > 0)) ** 2),
        "is neither a mean nor a sum",
    ),
    "the_first": (
        lambda net, x, y: ops.sum(net(x[:2]) ** 2),
        "is neither a mean nor a sum",
    ),
    "unique": (
        lambda net, x, y: ops.sum(net(tf.unique(x[:, 0])[0][:, None] * tf.ones((1, 4))) ** 2),
        "is neither a mean nor a sum",
    ),
    "one_gradient_of_all": (
        lambda net, x, y: by_input_gradient(net, x, y, axis=None),
        "combines the examples",
    ),
    "second_order": (by_weight_gradient, "is computed from gradients of weights"),
    "by_the_result_of_a_metric": (by_result, "is computed from the result of a metric"),
}
DO_NOT_FIRST: dict[str, Step] = {
    "a_gradient_of_each": lambda net, x, y: by_input_gradient(net, x, y, axis=1),
    "sum_over_chosen": lambda net, x, y: ops.sum(net(tf.boolean_mask(x, x[:, 0] > 0)) ** 2),
    "two_views": of_two_views,
    "mixed_with_noise": lambda net, x, y: error(net, x[:, ::-1] + tf.random.normal(tf.shape(x)), y),
}


class Tracks(keras.layers.Layer):
    """Normalizes by the batch, which is a matter of the layer, and keeps a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="tracker")

    def call(self, x: Any) -> Any:
        return x - ops.mean(x, axis=0)


class OwnStep(keras.Sequential):
    """Takes the gradient of the loss that a function computes from the layers and a batch."""

    def __init__(self, loss: Step) -> None:
        net = [keras.layers.Dense(3), Tracks(), keras.layers.Dense(3)]
        super().__init__([keras.Input((4,)), *net])
        self.own_loss = loss

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(self, x, y)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def warned_of_step(loss: Step, strategy: Any) -> list[str]:
    keras.utils.set_random_seed(1)
    model = OwnStep(loss)
    model.compile("sgd")
    rows = np.random.RandomState(0).normal(size=(8, 7)).astype("float32")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kfit.Trainer(model, strategy).fit(rows[:, :4], rows[:, 4:], verbose=0)
    return [text for text in map(_text, said) if text.startswith("The loss")]


@pytest.mark.parametrize("name", cases(COMBINE_FIRST))
def test_a_step_that_combines_examples(tiny: Any, name: str) -> None:
    loss, message = COMBINE_FIRST[name]
    said = warned_of_step(loss, tiny.strategy(2))
    assert any(f"The loss that this step takes gradients of {message}" in text for text in said)


@pytest.mark.parametrize("name", cases(DO_NOT_FIRST))
def test_a_step_that_does_not(tiny: Any, name: str) -> None:
    assert warned_of_step(DO_NOT_FIRST[name], tiny.strategy(2)) == []


@pytest.mark.parametrize(
    ("mixes", "is_told"), [(False, False), pytest.param(True, True, marks=pytest.mark.long)]
)
def test_predictions_that_keras_has_normalized(tiny: Any, mixes: bool, is_told: bool) -> None:
    """The last product is that before the normalization, so all of the layer is examined."""

    class Normalizes(keras.Sequential):
        def predict_step(self, data: Any) -> Any:
            rows = self(data, training=True)
            return rows - ops.roll(rows, 1, axis=0) if mixes else rows

    net = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    model = Normalizes([keras.Input((4,)), *net])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kfit.Trainer(model, tiny.strategy(2)).predict(np.ones((8, 4), "float32"), verbose=0)
    assert any("combines the examples" in text for text in map(_text, said)) == is_told


class OfPairs(keras.regularizers.Regularizer):
    """Multiplies the examples with each other."""

    def __call__(self, x: Any) -> Any:
        return 0.1 * ops.mean(ops.matmul(x, ops.transpose(x)) ** 2)


def test_a_regularizer_of_ones_own(tiny: Any) -> None:
    layer = keras.layers.Dense(3, activity_regularizer=OfPairs(), name="pairs")
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"A layer combines .*, at test_across_exampl.*, line"):
        kfit.Trainer(model, tiny.strategy(2)).fit(
            np.ones((8, 4), "float32"), np.ones((8, 3), "float32"), verbose=0
        )


@pytest.mark.long
def test_values_of_ragged_examples_are_not_examples(tiny: Any) -> None:
    rows = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0]] * 2)
    said = {}
    for name, loss in (
        (
            "mean_of_values",
            lambda net, x: ops.mean((x.flat_values * net.layers[0].bias[0] - 1) ** 2),
        ),
        ("sum_of_values", lambda net, x: ops.sum((x.flat_values * net.layers[0].bias[0] - 1) ** 2)),
        ("mean_of_each", lambda net, x: ops.mean(tf.reduce_mean(x, 1) * net.layers[0].bias[0])),
    ):
        model = OwnStep(lambda net, x, y, loss=loss: loss(net, x))
        model.compile("sgd")
        data = tf.data.Dataset.from_tensor_slices((rows, np.ones((8, 1)))).batch(8)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kfit.Trainer(model, tiny.strategy(2)).fit(data, verbose=0)
        said[name] = any("takes gradients of is neither" in text for text in map(_text, caught))
    assert said == {"mean_of_values": True, "sum_of_values": False, "mean_of_each": False}
