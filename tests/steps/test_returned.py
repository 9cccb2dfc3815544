"""What a step of one's own returns is logged as one device logs it, on several replicas."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import metrics, ops

import kfit
from tests.sweeps import only

X = np.random.RandomState(0).normal(size=(7, 4)).astype("float32")
Y = X[:, :1] * 2


class Returns(keras.Model):
    """Gives its metrics all that it has, and returns what `values` makes of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = metrics.Mean(name="total_loss")
        self.error = metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.total, self.error]

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.total.update_state(loss)
        self.error.update_state(y, y_pred)
        return self.values(loss, y_pred)

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        raise NotImplementedError


class UnderOtherNames(Returns):
    """Results of metrics under names that are not theirs, as in Keras' example of a VAE."""

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {"loss": self.total.result(), "mae": self.error.result()}


class Copies(Returns):
    """Results of metrics as other tensors of the same number."""

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        copy = ops.reshape(tf.identity(self.error.result()), ())
        return {
            "error": ops.stop_gradient(copy),
            "total_loss": ops.cast(self.total.result(), "float64"),
        }


class UnderMetricsNames(Returns):
    """The values of the batch under names of metrics, which hold other numbers; and counts."""

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        positive = ops.sum(ops.cast(y_pred > 0, "int32"))
        updates = self.optimizer.iterations + 0
        return {
            "total_loss": 2 * loss,
            "error": self.error.result(),
            "positive": positive,
            "examples": ops.shape(y_pred)[0],
            "updates": updates,
        }


class Percentage(Returns):
    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {"error": 100 * self.error.result()}


class NoMeans(Returns):
    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {
            "largest": ops.max(y_pred),
            "sum": ops.sum(y_pred),
            "whole": ops.argmax(y_pred[:, 0]),
            "relative": self.error.result() / (self.total.result() + 1),
            "batch_loss": loss,
        }


def made(cls: type[Returns]) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    model = cls(x, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.1))
    return model


@pytest.mark.parametrize(
    ("cls", "eagerly"),
    [
        pytest.param(UnderOtherNames, False, marks=pytest.mark.long),
        (UnderOtherNames, True),
        (UnderMetricsNames, False),
        pytest.param(Copies, False, marks=pytest.mark.long),
        pytest.param(Copies, True, marks=pytest.mark.long),
    ],
)
def test_logs_are_those_of_one_device(tiny: Any, cls: type[Returns], eagerly: bool) -> None:
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = made(cls).fit(X, Y, **options).history
    many = made(cls)
    many.run_eagerly = eagerly
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "With `run_eagerly=True` kfit cannot read")
        got = kfit.Trainer(many, tiny.strategy(2)).fit(X, Y, **options).history

    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, err_msg=name)


class ByWeights(Returns):
    """Returns values of other kinds under the same names if there are sample weights."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        self.has_weights = weights is not None
        return super().train_step((x, y))

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        result, rows, updates = self.error.result(), y_pred[:, 0], self.optimizer.iterations
        of_one = {"a": result, "b": loss, "c": rows, "d": result, "e": updates, "f": rows}
        of_other = {"a": loss, "b": result, "c": result, "d": rows, "e": loss, "f": updates}
        return of_one if self.has_weights else of_other


@pytest.mark.long
@pytest.mark.parametrize("eagerly", [False, True])
def test_each_graph_returns_values_of_its_own_kinds(tiny: Any, eagerly: bool) -> None:
    def program(fit: Any, model: keras.Model) -> list[dict[str, Any]]:
        model.run_eagerly = eagerly
        weights = np.ones(7, "float32")
        options = {"batch_size": 7, "shuffle": False, "verbose": 0}
        runs = (weights, None, weights, None)
        return [fit(model, X, Y, sample_weight=given, **options).history for given in runs]

    def on_two(model: keras.Model, *args: Any, **options: Any) -> Any:
        return kfit.fit(model, *args, strategy=strategy, **options)

    strategy = tiny.strategy(2)
    expected = program(keras.Model.fit, made(ByWeights))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "With `run_eagerly=True` kfit cannot read")
        got = program(on_two, made(ByWeights))
    for run, (found, wanted) in enumerate(zip(got, expected, strict=True)):
        for name, values in wanted.items():
            message = f"{name} of fit {run}"
            np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=message)


@pytest.mark.parametrize("eagerly", only([False], [False, True]))
def test_a_percentage_under_the_name_of_its_metric(tiny: Any, eagerly: bool) -> None:
    model = made(Percentage)
    model.run_eagerly = eagerly
    with pytest.warns(UserWarning, match="returns 'error', computed from results of metrics"):
        history = kfit.Trainer(model, tiny.strategy(2)).fit(X, Y, batch_size=7, verbose=0).history
    expected = made(Percentage).fit(X, Y, batch_size=7, verbose=0).history["error"]
    np.testing.assert_allclose(history["error"], expected, rtol=1e-5)


def test_what_is_no_mean_is_warned_of_by_name(tiny: Any) -> None:
    with pytest.warns() as caught:
        kfit.Trainer(made(NoMeans), tiny.strategy(2)).fit(X, Y, batch_size=4, verbose=0)

    said = {str(each.message).partition(" of the batch,")[0].partition(". ")[0] for each in caught}
    assert said == {
        "The value 'whole' that the step returns is computed from the examples of a replica, and "
        "is neither their number nor a sum over them",
        "The value 'largest' that the step returns is neither a mean nor a sum over the examples",
        "The model's step returns 'relative', computed from results of metrics",
    }
    line = inspect.getsourcelines(NoMeans.train_step)[1]
    values = [each for each in caught if str(each.message).startswith("The value")]
    assert {(each.filename, each.lineno) for each in values} == {(__file__, line)}


class Largest(Returns):
    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {"largest": ops.max(y_pred)}


class Gathered(Returns):
    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        gather = tf.distribute.get_replica_context().all_gather
        return {"largest": ops.max(gather(y_pred, axis=0))}


def test_a_maximum_is_exact_as_the_warning_says(tiny: Any) -> None:
    with pytest.warns(UserWarning, match="as a maximum needs, by .*all_gather"):
        kfit.Trainer(made(Largest), tiny.strategy(2)).fit(X, Y, batch_size=7, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = kfit.Trainer(made(Gathered), tiny.strategy(2))
        got = trainer.fit(X, Y, batch_size=7, verbose=0).history["largest"]
    expected = kfit.Trainer(made(Gathered), "one_device").fit(X, Y, batch_size=7, verbose=0)
    np.testing.assert_allclose(got, expected.history["largest"], rtol=1e-5)


class Arrays(keras.Model):
    """Returns all that `values` makes of a batch, of which little is a scalar."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.values = values

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss, **self.values(x, y_pred)}

    def test_step(self, data: Any) -> dict[str, Any]:
        return self.values(data[0], self(data[0]))


def of_any_form(x: Any, y_pred: Any) -> dict[str, Any]:
    """Statistics of all examples and rows of each, most of which a graph alone tells apart."""
    labels = tf.cast(x[:, 0] > 0, "int32")
    return {
        "first": x[:3],
        "last": tf.identity(x[-1]),
        "number": x[0, 0],
        "each_second": tf.strings.as_string(x)[::2],
        "time_major": tf.transpose(tf.reshape(x, [-1, 2, 2]), [1, 0, 2]),
        "counts": tf.math.bincount(labels, minlength=2, maxlength=2),
        "some": tf.boolean_mask(x, x[:, 0] > 0),
        **of_simple_forms(x, y_pred),
    }


def of_simple_forms(x: Any, y_pred: Any) -> dict[str, Any]:
    """Means over the examples, counts of them, and rows of each."""
    labels = tf.cast(x[:, 0] > 0, "int32")
    return {
        "means": tf.concat([tf.reduce_mean(x, 0)] * 2, 0),
        "confusion": tf.math.confusion_matrix(labels, tf.argmax(x[:, :3], 1), 5),
        "rows": y_pred,
        "classes": tf.argmax(x, 1),
        "positive": x > 0,
        "words": tf.strings.as_string(x),
        "word": tf.constant("constant"),
        "nothing": None,
        "inner": {"ragged": tf.RaggedTensor.from_tensor(x), "sparse": tf.sparse.from_dense(x)},
    }


def of_sums(x: Any, y_pred: Any) -> dict[str, Any]:
    labels = tf.cast(x[:, 0] > 0, "int32")
    return {
        "sums": tf.reduce_sum(x, 0),
        "of_classes": tf.math.unsorted_segment_sum(x, labels, 2),
        "products": tf.matmul(x, x, transpose_a=True),
        "both": tf.reduce_sum(y_pred, 0) + 2 * tf.reduce_mean(x, 0)[:1],
        "and_one": 1 - tf.reduce_sum(x, 0) / 2,
        "fewer": tf.shape(x)[0] - 1,
        "counts": 2 * tf.reduce_sum(tf.cast(x > 0, "int32"), 0) + 1,
        "histogram": tf.math.bincount(labels, weights=x[:, 0], minlength=2, maxlength=2),
        "constants": np.arange(3.0),
        "list": [tf.reduce_sum(x), tf.reduce_mean(x)],
    }


def with_arrays(values: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = Arrays(values)
    model.compile(keras.optimizers.SGD(0.1))
    return model


def logs_of(model: keras.Model, trainer: Any) -> list[dict[str, Any]]:
    """What a call of each kind logs last."""
    pipeline = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    known = {"batch_size": 4, "epochs": 2, "shuffle": False, "validation_data": (X, Y)}
    return [
        {name: values[-1] for name, values in history.history.items()}
        for history in (
            trainer.fit(X, Y, verbose=0, **known),
            trainer.fit(pipeline, epochs=2, shuffle=False, verbose=0),
        )
    ] + [
        trainer.evaluate(pipeline, verbose=0, return_dict=True),
        trainer.train_on_batch(X, Y, return_dict=True),
        trainer.test_on_batch(X[:1], Y[:1], return_dict=True),
    ]


def scores_of(model: keras.Model, trainer: Any) -> list[dict[str, Any]]:
    """What an evaluation logs."""
    pipeline = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    return [trainer.evaluate(pipeline, verbose=0, return_dict=True)]


def dense(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 0:
        value = value.item()  # Keras' methods for one batch put all that they return into arrays
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return np.asarray(value.to_tensor() if isinstance(value, tf.RaggedTensor) else value)


def assert_alike(got: Any, expected: Any) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        one, other = dense(got[name]), dense(value)
        assert one.shape == other.shape, name
        if other.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize(
    ("values", "replicas", "told"),
    only(
        [(of_sums, 3, scores_of)],
        [
            (of_sums, 3, scores_of),
            *((values, n, logs_of) for values in (of_any_form, of_sums) for n in (1, 3)),
        ],
    ),
)
def test_arrays_of_all_replicas_are_logged(
    tiny: Any, values: Any, replicas: int, told: Callable[..., list[dict[str, Any]]]
) -> None:
    one = with_arrays(values)
    expected = told(one, one)
    many = with_arrays(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = told(many, kfit.Trainer(many, tiny.strategy(replicas)))
    for logs, wanted in zip(got, expected, strict=True):
        assert_alike(logs, wanted)


@pytest.mark.long
def test_a_whole_number_may_be_that_of_the_examples_of_a_replica(tiny: Any) -> None:
    model = with_arrays(lambda x, y_pred: {"two": 2, "constant": tf.constant(2)})
    trainer = kfit.Trainer(model, tiny.strategy(2))
    history = trainer.fit(X[:4], Y[:4], batch_size=4, verbose=0).history
    assert [int(history[name][0]) for name in ("two", "constant")] == [2, 2]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:With `run_eagerly=True` kfit cannot read")
def test_arrays_without_a_graph_are_rows_if_they_have_as_many_as_examples(tiny: Any) -> None:
    one, many = with_arrays(of_simple_forms), with_arrays(of_simple_forms)
    one.run_eagerly = many.run_eagerly = True
    trainer = kfit.Trainer(many, tiny.strategy(2))
    for logs, wanted in zip(logs_of(many, trainer), logs_of(one, one), strict=True):
        assert_alike(logs, wanted)


def test_rows_that_are_not_those_of_one_device_are_warned_of(tiny: Any) -> None:
    def values(x: Any, y_pred: Any) -> dict[str, Any]:
        rows = tf.cast(tf.shape(x)[0], x.dtype)
        return {
            "divided": x / rows,
            "padded": tf.concat([x, tf.ones([1, 4])], 0),
            "reversed": tf.reverse(x, [0]),
            "largest": tf.reduce_max(x, 0),
            "shown": tf.strings.as_string(tf.reduce_mean(x)),
        }

    with pytest.warns() as caught:
        kfit.Trainer(with_arrays(values), tiny.strategy(2)).fit(X, Y, batch_size=7, verbose=0)
    said = {str(each.message).split("'")[1]: str(each.message) for each in caught}
    assert {name: " ".join(text.split()[7:10]) for name, text in said.items()} == {
        "divided": "has a row",
        "padded": "has a row",
        "reversed": "combines the examples",
        "largest": "is neither a",
        "shown": "is computed from",
    }


def test_values_of_other_shapes_on_other_replicas_are_named(tiny: Any) -> None:
    def values(x: Any, y_pred: Any) -> dict[str, Any]:
        return {"seen": tf.math.bincount(tf.cast(tf.range(tf.shape(x)[0]), "int32"))}

    trainer = kfit.Trainer(with_arrays(values), tiny.strategy(2))
    with pytest.raises(ValueError, match=r"^\S.*returns .*seen.*, whose"):
        trainer.evaluate(X, Y, batch_size=7, verbose=0)


class PredictsMore(keras.Model):
    """Predicts rows, deep in a structure of its own, beside numbers of the whole batch."""

    def call(self, x: Any) -> Any:
        return {"deep": {"rows": [x, x * 2]}, "mean": ops.mean(x), "sum": ops.sum(x)}

    def predict_step(self, data: Any) -> Any:
        return {**self(data), "constant": tf.constant(3)}


@pytest.mark.parametrize("replicas", [1, 3])
def test_predictions_keep_their_structure(tiny: Any, replicas: int) -> None:
    model = PredictsMore()
    model.compile()
    predicted = kfit.Trainer(model, tiny.strategy(replicas)).predict(X, batch_size=3, verbose=0)
    batches = [X[:3], X[3:6], X[6:]]
    expected = {
        "deep": {"rows": [X, 2 * X]},
        "mean": np.array([batch.mean() for batch in batches]),
        "sum": np.array([batch.sum() for batch in batches]),
        "constant": np.array([3, 3, 3]),
    }
    keras.tree.map_structure(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5), predicted, expected
    )


class ReturnsOf(keras.Model):
    """A model whose `test_step` returns what a function makes of the inputs."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self.made = made

    def call(self, x: Any) -> Any:
        return x

    def test_step(self, x: Any) -> dict[str, Any]:
        return {"value": self.made(x)}


def evaluated(made: Callable[[Any], Any], strategy: Any) -> Any:
    model = ReturnsOf(made)
    model.compile()
    options = {"batch_size": 7, "verbose": 0, "return_dict": True}
    return kfit.evaluate(model, X, strategy=strategy, **options)["value"]


def columns(x: Any) -> Any:
    return tf.while_loop(lambda i: i < tf.shape(x)[1], lambda i: (i + 1,), (0,))[0]


@pytest.mark.parametrize("made", [lambda x: tf.shape(x)[1], columns], ids=["size", "loop"])
def test_sizes_of_other_axes_are_those_of_one_device(tiny: Any, made: Callable[[Any], Any]) -> None:
    assert evaluated(made, tiny.strategy(2)) == 4.0


@pytest.mark.parametrize(
    "made",
    [lambda x: tf.range(tf.shape(x)[0]), lambda x: tf.where(x[:, 0] > 0)[:, 0]],
    ids=["range", "where"],
)
def test_places_of_examples_are_warned_of(tiny: Any, made: Callable[[Any], Any]) -> None:
    with pytest.warns(UserWarning, match="or are others than those of the examples"):
        evaluated(made, tiny.strategy(2))


def test_a_scalar_of_unknown_shape_is_named(tiny: Any) -> None:
    def made(x: Any) -> Any:
        return tf.numpy_function(lambda values: np.float32(values.max()), [x], tf.float32)

    with pytest.raises(ValueError, match=r"'value' that .* by `tf.ensure_shape"):
        evaluated(made, tiny.strategy(2))
