"""Metrics that a program writes by itself: on several replicas as on one, or warned of by name."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.sweeps import only

pytestmark = pytest.mark.usefixtures("ungathered")

Update = Callable[[Any, Any], None]
X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 1)).astype("float32")

EXACT: dict[str, Update] = {
    "sum": lambda v, p: v.assign_add(ops.sum(p)),
    "sum_assigned": lambda v, p: v.assign(ops.sum(p) + v),
    "sum_taken": lambda v, p: v.assign_sub(ops.sum(p)),
    "mean": lambda v, p: v.assign_add(ops.mean(p)),
    "half_of_mean": lambda v, p: v.assign_add(0.5 * ops.mean(p)),
    "batches": lambda v, p: v.assign_add(1.0),
    "examples": lambda v, p: v.assign_add(ops.cast(ops.shape(p)[0], "float32")),
    "inverse": lambda v, p: v.assign_add(ops.sum(p) * (1.0 / ops.cast(ops.shape(p)[0], "float32"))),
    "parts": lambda v, p: v.assign_add(ops.sum(p / ops.cast(ops.shape(p)[0], "float32"))),
    "products_of_parts": lambda v, p: v.assign_add(
        ops.sum(ops.matmul(ops.transpose(p), p / ops.cast(ops.shape(p)[0], "float32")))
    ),
    "constant": lambda v, p: v.assign(3.0),
    "sum_and_one": lambda v, p: v.assign_add(ops.sum(p) + 1.0),
    "sum_and_one_by_number": lambda v, p: v.assign_add(
        (ops.sum(p) + 1.0) / ops.cast(ops.shape(p)[0], "float32")
    ),
    "several": lambda v, p: v.assign(v - ops.mean(p) + 1.0 + ops.sum(p)),
}
WARNED: dict[str, Update] = {
    "largest": lambda v, p: v.assign(ops.maximum(v, ops.max(p))),
    "last": lambda v, p: v.assign(ops.mean(p)),
    "difference": lambda v, p: v.assign(ops.sum(p) - v),
    "squared_number": lambda v, p: v.assign_add(ops.cast(ops.shape(p)[0] ** 2, "float32")),
    "moving": lambda v, p: v.assign(0.9 * v + 0.1 * ops.mean(p)),
    "running": lambda v, p: v.assign_add((ops.sum(p) - v) / 3.0),
    "root": lambda v, p: v.assign_add(ops.sqrt(ops.mean(p**2))),
    "sometimes": lambda v, p: v.assign(ops.where(ops.sum(p) > 0, v + ops.sum(p), v)),
}


class Own(keras.metrics.Metric):
    """Updates one variable; whatever its name is."""

    def __init__(self, update: Update, shape: Any = (), **variable: Any) -> None:
        super().__init__(name="own")
        self._own_update = update
        self.value = self.add_variable(shape, "zeros", name="value", **variable)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self._own_update(self.value, ops.cast(y_pred, "float32"))

    def result(self) -> Any:
        return ops.max(self.value)


class Halved(keras.metrics.Mean):
    """Keras' own sums, of other values."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_pred / 2, sample_weight=sample_weight)


def logged(make: Callable[[], keras.metrics.Metric], strategy: Any) -> list[float]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[make()])
    options: dict[str, Any] = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}
    history = kfit.Trainer(model, strategy).fit(X, Y, **options).history
    return next(values for name, values in history.items() if name != "loss")


@pytest.mark.parametrize("update", only(["sum"], EXACT))
def test_what_is_added_up_is_that_of_one_device(update: str, tiny: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (logged(lambda: Own(EXACT[update]), tiny.strategy(n)) for n in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-5)


class Thresholded(keras.metrics.Precision):
    """One of Keras' that looks at something else."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_true > 0, ops.sigmoid(y_pred), sample_weight)


@pytest.mark.long
def test_a_metric_that_goes_on_in_keras_own_is_not_warned_of(tiny: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (logged(Thresholded, tiny.strategy(n)) for n in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-5)


def by_sign(value: Any, p: Any) -> None:
    places = tf.cast(p > 0, "int32")
    value.assign(tf.tensor_scatter_nd_add(value.value, places, p[:, 0] ** 2))


def mean_at_one_place(value: Any, p: Any) -> None:
    value.assign(tf.tensor_scatter_nd_add(value.value, [[1]], [tf.reduce_mean(p)]))


def counted(value: Any, p: Any) -> None:
    places = tf.cast(p[:, 0] > 0, "int32")
    value.assign_add(tf.cast(tf.math.bincount(places, minlength=2, maxlength=2), "float32"))


def total_and_batches(value: Any, p: Any) -> None:
    value.assign_add(tf.stack([tf.reduce_sum(p), 1.0]))


def sums_and_one(value: Any, p: Any) -> None:
    value.assign_add(tf.reduce_sum(tf.concat([p, p**2], 1), 0) + 1.0)


@pytest.mark.parametrize(
    "update",
    only(
        [counted],
        [by_sign, mean_at_one_place, counted, total_and_batches, sums_and_one],
    ),
)
def test_what_is_scattered_is_added_up(tiny: Any, update: Update) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (logged(lambda: Own(update, (2,)), tiny.strategy(n)) for n in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-5)


@pytest.mark.long
def test_a_metric_made_of_keras_own_is_that_of_one_device(tiny: Any) -> None:
    one, several = (logged(lambda: Halved(name="halved"), tiny.strategy(n)) for n in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-5)


@pytest.mark.long
def test_a_metric_may_be_a_function_that_returns_a_number(tiny: Any) -> None:
    def two(y_true: Any, y_pred: Any) -> float:
        return 2.0

    def metric() -> keras.metrics.Metric:
        return keras.metrics.MeanMetricWrapper(two, name="two")

    assert logged(metric, tiny.strategy(1)) == logged(metric, tiny.strategy(3)) == [2.0, 2.0]


@pytest.mark.long
def test_a_mean_that_is_cut_to_a_whole_number_is_warned_of(tiny: Any) -> None:
    def update(value: Any, p: Any) -> None:
        value.assign_add(tf.reduce_mean(tf.cast(10 * p, tf.int32)))

    with pytest.warns(UserWarning, match="metric 'own' does more with its variable 'value'"):
        logged(lambda: Own(update, dtype="int32"), tiny.strategy(2))


@pytest.mark.parametrize("update", only(["largest"], WARNED))
def test_anything_else_is_warned_of_by_name(update: str, tiny: Any) -> None:
    with pytest.warns(UserWarning, match="metric 'own' does more with its variable 'value'"):
        logged(lambda: Own(WARNED[update]), tiny.strategy(2))


COMBINE: dict[str, Update] = {
    "distance_from_the_mean": lambda v, p: v.assign_add(ops.sum((p - ops.mean(p)) ** 2)),
    "every_product": lambda v, p: v.assign_add(ops.mean(ops.matmul(p, ops.transpose(p)))),
}


@pytest.mark.parametrize("update", only(["every_product"], COMBINE))
def test_examples_that_are_combined(update: str, tiny: Any) -> None:
    message = "What the metric 'own' adds to its variable 'value' combines the examples"
    with pytest.warns(UserWarning, match=message):
        logged(lambda: Own(COMBINE[update]), tiny.strategy(2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda y, p: (p - ops.mean(p)) ** 2, "combines the examples of the batch"),
        pytest.param(
            lambda y, p: p / ops.cast(ops.shape(p)[0], "float32"),
            "for each example depends on the",
            marks=pytest.mark.long,
        ),
    ],
    ids=["distance_from_the_mean", "parts"],
)
def test_values_of_examples_that_depend_on_others(values: Any, message: str, tiny: Any) -> None:
    with pytest.warns(UserWarning, match=f"What the metric 'values' is given {message}"):
        logged(lambda: keras.metrics.MeanMetricWrapper(values, "values"), tiny.strategy(2))


class Weighs(keras.metrics.MeanSquaredError):
    """Weights the examples by their parts of a sum over the batch."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        weights = y_pred[:, 0] ** 2 / ops.sum(y_pred[:, 0] ** 2)
        return super().update_state(y_true, y_pred, weights)


@pytest.mark.long
def test_weights_of_examples_that_depend_on_others(tiny: Any) -> None:
    message = "The `sample_weight` of the metric 'weighs' combines the examples of the batch"
    with pytest.warns(UserWarning, match=message):
        logged(lambda: Weighs("weighs"), tiny.strategy(2))


class SumOfParts(keras.metrics.Sum):
    """Adds up values that were divided by the number of examples."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_pred / ops.cast(ops.shape(y_pred)[0], "float32"))


def test_a_sum_of_values_that_depend_on_their_number(tiny: Any) -> None:
    message = "What the metric 'parts' is given for each example depends on the number"
    with pytest.warns(UserWarning, match=message):
        logged(lambda: SumOfParts("parts"), tiny.strategy(2))


@pytest.mark.long
def test_what_all_replicas_agree_on_is_left_to_the_metric(tiny: Any) -> None:
    def largest(value: Any, p: Any) -> None:
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            p = tf.distribute.get_replica_context().all_gather(p, axis=0)
        value.assign(ops.maximum(value, ops.max(p)))

    def make() -> keras.metrics.Metric:
        return Own(largest, aggregation="only_first_replica")

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (logged(make, tiny.strategy(n)) for n in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-5)


class Several(keras.Model):
    """Its train step gives metrics of several kinds the squared errors, in a place of its own."""

    def __init__(self, place: Callable[[Any, Any, Callable[[Any], Any]], Any]) -> None:
        super().__init__()
        self.dense = layers.Dense(1, kernel_initializer="ones")
        self.dense.build((None, 4))
        self.place = place
        self.logged = [keras.metrics.Mean("mean"), keras.metrics.Sum("sum")]
        for update in ("sum", "mean", "batches", "examples"):
            self.logged.append(Own(EXACT[update]))
            self.logged[-1].name = update

    def call(self, x: Any) -> Any:
        return self.dense(x)

    @property
    def metrics(self) -> list[Any]:
        return self.logged

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            squares = (self(x, training=True) - y) ** 2
            loss = ops.mean(squares)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)

        def give(values: Any) -> int:
            self.logged[0].update_state(ops.mean(values))
            self.logged[1].update_state(ops.sum(values))
            for metric in self.logged[2:]:
                metric.update_state(None, values)
            return 0

        self.place(squares, self.optimizer.iterations, give)
        return {metric.name: metric.result() for metric in self.logged}


def all_logged(place: Any, strategy: Any) -> dict[str, list[float]]:
    model = Several(place)
    model.compile(keras.optimizers.SGD(0.01))
    options: dict[str, Any] = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}
    return dict(kfit.Trainer(model, strategy).fit(X, Y, **options).history)


def in_function(give: Any, **options: Any) -> Any:
    return tf.function(lambda values: give(values), autograph=False, **options)


PLACES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "branch": lambda v, n, give: tf.cond(n > 1, lambda: give(2.0 * v), lambda: 0),
    "case": lambda v, n, give: tf.switch_case(
        tf.cast(n % 2, tf.int32), [lambda: give(v), lambda: 0]
    ),
    "loop": lambda v, n, give: tf.while_loop(
        lambda i: i < 3.0, lambda i: (give(v * i), i + 1.0)[1:], [0.0]
    ),
    "branch_in_loop": lambda v, n, give: tf.while_loop(
        lambda i: i < 3,
        lambda i: (tf.cond(n > i, lambda: give(v), lambda: 0), i + 1)[1:],
        [tf.constant(0, n.dtype)],
    ),
    "compiled_by_xla": lambda v, n, give: in_function(give, jit_compile=True)(v),
    "input_signature": lambda v, n, give: in_function(
        give, input_signature=[tf.TensorSpec([None, 1])]
    )(v),
}


@pytest.mark.parametrize("place", only(["branch"], PLACES))
def test_updates_within_branches_loops_and_functions(place: str, tiny: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (all_logged(PLACES[place], tiny.strategy(n)) for n in (1, 3))
    for name, values in one.items():
        np.testing.assert_allclose(several[name], values, rtol=1e-5, err_msg=name)


DECIDED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "branch": lambda v, n, give: tf.cond(ops.mean(v) > 0.5, lambda: give(v), lambda: 0),
    "loop": lambda v, n, give: tf.while_loop(
        lambda i: i < tf.shape(v)[0], lambda i: (give(v), i + 1)[1:], [0]
    ),
}


@pytest.mark.parametrize("place", only(["loop"], DECIDED))
def test_updates_that_the_examples_decide_on_are_warned_of(place: str, tiny: Any) -> None:
    message = "updates the variable 'sum/total' of a metric in a branch or a loop"
    with pytest.warns(UserWarning, match=message):
        all_logged(DECIDED[place], tiny.strategy(2))


class EverySecond(keras.metrics.Metric):
    """Counts the batches, and adds up every second one."""

    def __init__(self) -> None:
        super().__init__(name="every_second")
        self.batches = self.add_weight(name="batches", initializer="zeros")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.batches.assign_add(1.0)
        total = self.total
        tf.cond(self.batches % 2 > 0, lambda: total.assign_add(ops.sum(y_pred)), lambda: total + 0)

    def result(self) -> Any:
        return self.total + 0.0


def test_updates_that_a_count_of_each_replica_decides_on_are_warned_of(tiny: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[EverySecond()])
    message = "'every_second/total' of a metric in a branch .* is computed from a variable of a"
    with pytest.warns(UserWarning, match=message):
        kfit.Trainer(model, tiny.strategy(2)).evaluate(X, Y, batch_size=4, verbose=0)


class ChangesFilters(keras.callbacks.Callback):
    """As a library may for a moment; Python then forgets what it has shown."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")


def test_a_fit_that_is_traced_again_warns_once(tiny: Any) -> None:
    own = Own(lambda v, p: v.assign(ops.maximum(v, ops.max(p))))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[own])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        # The last batch is smaller.
        kfit.Trainer(model, tiny.strategy(2)).fit(
            X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[ChangesFilters()]
        )
    assert len([each for each in caught if "The metric 'own' does more" in str(each.message)]) == 1


def test_values_that_no_graph_shows_are_warned_of(tiny: Any) -> None:
    def give(v: Any, n: Any, give: Any) -> None:
        total = tf.py_function(tf.reduce_sum, [v], "float32")
        give(tf.reshape(total, [1, 1]))

    with pytest.warns(UserWarning, match="'mean' is given is neither a mean nor a sum"):
        all_logged(give, tiny.strategy(2))


class Above(keras.metrics.Metric):
    """Counts what is above a limit, which a variable holds."""

    def __init__(self, **variable: Any) -> None:
        super().__init__(name="above")
        half = keras.initializers.Constant(0.5)
        self.limit = self.add_variable((), half, name="limit", **variable)
        self.number = self.add_variable((), "zeros", name="number")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.number.assign_add(ops.sum(ops.cast(y_pred > self.limit, "float32")))

    def result(self) -> Any:
        return self.number + 0

    def reset_state(self) -> None:
        self.number.assign(0)


def test_an_update_that_reads_another_variable_of_the_metric(tiny: Any) -> None:
    with pytest.warns(UserWarning, match="'above' reads its variable 'limit' to compute what"):
        logged(Above, tiny.strategy(2))


@pytest.mark.long
def test_a_variable_that_is_equal_on_all_replicas_may_be_read(tiny: Any) -> None:
    def make() -> keras.metrics.Metric:
        return Above(aggregation="only_first_replica")

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (logged(make, tiny.strategy(n)) for n in (1, 3))
    assert one == several
