"""Losses and logs that a program sums or averages by itself: as on one device, or warned of."""

import itertools
import warnings
from collections.abc import Callable
from functools import reduce
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.sweeps import only

pytestmark = pytest.mark.usefixtures("ungathered")

Loss = Callable[[Any, Any], Any]
X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 1)).astype("float32")


def squares(y: Any, p: Any) -> Any:
    return ops.sum((y - p) ** 2, axis=-1)


def number(y: Any) -> Any:
    return ops.cast(ops.shape(y)[0], "float32")


def series(y: Any, p: Any) -> Any:
    """Values of an inner axis whose size the graph does not show."""
    return tf.ensure_shape(tf.tile((y - p) ** 2, [1, tf.size(tf.zeros(3))]), [None, None])


def positive(y: Any) -> Any:
    return ops.cast(y[:, 0] > 0, "float32")


EXACT: dict[str, Loss] = {
    "mean": lambda y, p: ops.mean(squares(y, p)),
    "sum": lambda y, p: ops.sum(squares(y, p)),
    "sum_by_number": lambda y, p: ops.sum(squares(y, p)) / ops.cast(ops.shape(y)[0], "float32"),
    "sum_by_number_or_one": lambda y, p: ops.sum(squares(y, p)) / ops.maximum(number(y), 1.0),
    "sum_by_shape": lambda y, p: (
        ops.sum((y - p) ** 2) / tf.cast(tf.reduce_prod(tf.shape(p)), "float32")
    ),
    "sum_and_one_by_number": lambda y, p: (ops.sum(squares(y, p)) + 3.0) / number(y),
    "sum_by_global_batch": lambda y, p: tf.reduce_sum(squares(y, p)) * (1.0 / 5),
    "average_loss": lambda y, p: tf.nn.compute_average_loss(squares(y, p)),
    "average_loss_of_size": lambda y, p: tf.nn.compute_average_loss(
        squares(y, p), global_batch_size=5
    ),
    "sum_by_inverse": lambda y, p: (
        tf.reduce_sum(squares(y, p)) * (1.0 / tf.cast(tf.shape(y)[0], "float32"))
    ),
    "sum_by_unstacked_number": lambda y, p: (
        ops.sum(squares(y, p)) / tf.cast(tf.unstack(tf.shape(p))[0], "float32")
    ),
    "sum_of_parts": lambda y, p: ops.sum(squares(y, p) / number(y)),
    "sum_of_parts_by_inverse": lambda y, p: ops.sum(0.5 * squares(y, p) * (1.0 / number(y))),
    "mean_of_multiples": lambda y, p: 0.1 * ops.mean(squares(y, p) * number(y)),
    "mean_times_number": lambda y, p: 0.1 * ops.mean(squares(y, p)) * number(y),
    "mean_of_series": lambda y, p: ops.mean(
        ops.sum(series(y, p), axis=1) / ops.cast(tf.shape(series(y, p))[1], "float32")
    ),
    "sum_of_series": lambda y, p: (
        0.1 * ops.sum(series(y, p)) / ops.cast(tf.shape(series(y, p))[1], "float32")
    ),
    "sum_and_mean": lambda y, p: ops.mean(squares(y, p)) + 0.1 * ops.sum(squares(y, p)) - 3.0,
    "many_terms": lambda y, p: sum([0.001 * ops.sum(squares(y, p))] * 150, 0.0),
    "many_operations": lambda y, p: (
        0.1 * ops.sum(reduce(lambda r, _: r * 1.0 + 0.0, range(400), squares(y, p)))
    ),
    "two_means": lambda y, p: 0.5 * ops.mean(squares(y, p)) - ops.mean(p) + 3.0,
}
WARNED: dict[str, Loss] = {
    "root": lambda y, p: ops.sqrt(ops.mean(squares(y, p))),
    "ratio": lambda y, p: ops.sum(squares(y, p) * positive(y)) / (ops.sum(positive(y)) + 1e-3),
    "chosen": lambda y, p: tf.reduce_mean(tf.boolean_mask(squares(y, p), y[:, 0] > -9)),
    "chosen_by_number": lambda y, p: (
        ops.sum(tf.boolean_mask(squares(y, p), y[:, 0] > -9))
        / number(tf.boolean_mask(y, y[:, 0] > -9))
    ),
    "root_of_number": lambda y, p: ops.sum(squares(y, p) / ops.sqrt(number(y))),
    "by_number_or_eight": lambda y, p: ops.sum(squares(y, p)) / ops.maximum(number(y), 8.0),
    "by_number_or_two": lambda y, p: ops.sum(squares(y, p)) / ops.minimum(number(y), 2.0),
    "by_product": lambda y, p: ops.sum(squares(y, p)) / ops.prod(ops.stack([number(y)] * 2)),
    "largest": lambda y, p: ops.max(squares(y, p)),
    "hardest": lambda y, p: tf.reduce_mean(tf.math.top_k(squares(y, p), 1).values),
    "first_half": lambda y, p: tf.reduce_mean(squares(y, p)[: tf.shape(y)[0] // 2 + 1]),
}


class Steps(keras.Model):
    """A step that computes its loss by itself, as in Keras' guide, without `scale_loss`."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self._dense, self._own_loss = layers.Dense(1), loss

    def call(self, x: Any) -> Any:
        return self._dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self._own_loss(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


class WithoutTape(Steps):
    """Takes the gradients by `tf.gradients`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        loss = self._own_loss(y, self(x, training=True))
        variables = self.trainable_variables
        grads = tf.gradients(loss, [variable.value for variable in variables])
        self.optimizer.apply(grads, variables)
        return {"own": loss}


class Regularizes(Steps):
    """Adds to its own loss what is equal on all replicas."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self._own_loss(y, self(x, training=True))
            loss = loss + 0.5 * tf.nn.l2_loss(self._dense.kernel.value)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


class RegularizesBeforeDividing(Steps):
    """Divides the sum of the loss and a penalty by the number of examples."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            total = ops.sum(squares(y, self(x, training=True)))
            penalty = 5.0 * tf.nn.l2_loss(self._dense.kernel.value)
            loss = (total + penalty) * (1.0 / number(y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


class TakesSeveral(Steps):
    """Takes the gradients of values of the examples, which TensorFlow adds up, and of a list."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            values = squares(y, self(x, training=True))
            parts = [
                self._own_loss(y, self(x, training=True)),
                tf.reduce_sum(values, keepdims=True),
            ]
        variables = self.trainable_variables
        for target in (values, parts):
            grads = [0.01 * grad for grad in tape.gradient(target, variables)]
            self.optimizer.apply(grads, variables)
        return {"own": tf.reduce_mean(values)}


class Rematerializes(Steps):
    """Computes the outputs again for the gradients, by a tape of TensorFlow's."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        with keras.RematScope(mode="full"):
            self._dense = layers.Dense(1)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self._own_loss(y, self(x))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


class Attacks(Steps):
    """Trains on examples that are moved along the gradient of the mean."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self._own_loss(y, self(x, training=True))
        return super().train_step((x + 3.0 * tape.gradient(loss, x), y))


class ComputesLoss(Steps):
    train_step = keras.Model.train_step

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return self._own_loss(y, y_pred)


class Adds(layers.Layer):
    """Adds a number to the loss that is no mean of the examples'."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(name="adds")
        self._own_loss = loss

    def call(self, x: Any) -> Any:
        self.add_loss(self._own_loss(x, ops.zeros_like(x)))
        return x


def compiled_with(loss: Loss) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def with_a_value_for_each_example(loss: Loss) -> keras.Model:
    class OfRows(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return ops.square(y_pred - y_true)

    class Scaled(layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    model = keras.Sequential([keras.Input((4,)), Scaled(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.002), OfRows(reduction=None))
    return model


def with_own_step(cls: type[Steps], loss: Loss) -> keras.Model:
    model = cls(loss)
    model.compile("sgd")
    return model


def with_added_loss(loss: Loss) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), Adds(loss), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


PLACES: dict[str, Callable[[Loss], keras.Model]] = {
    "loss": compiled_with,
    "train_step": lambda loss: with_own_step(Steps, loss),
    "without_tape": lambda loss: with_own_step(WithoutTape, loss),
    "regularized": lambda loss: with_own_step(Regularizes, loss),
    "regularized_before": lambda loss: with_own_step(RegularizesBeforeDividing, loss),
    "several": lambda loss: with_own_step(TakesSeveral, loss),
    "adversarial": lambda loss: with_own_step(Attacks, loss),
    "rematerialized": lambda loss: with_own_step(Rematerializes, loss),
    "compute_loss": lambda loss: with_own_step(ComputesLoss, loss),
    "add_loss": with_added_loss,
    "no_reduction": with_a_value_for_each_example,
}


def trained(make: Callable[[], keras.Model], strategy: Any) -> tuple[list[Any], dict[str, Any]]:
    keras.utils.set_random_seed(1)
    model = make()
    options: dict[str, Any] = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0}
    history = kfit.Trainer(model, strategy).fit(X, Y, **options).history
    return model.get_weights(), history


@pytest.mark.parametrize(
    ("place", "loss"),
    only(
        [
            *(("train_step", loss) for loss in ("mean", "sum_by_number", "sum_of_parts")),
            ("train_step", "sum_and_mean"),
            ("compute_loss", "sum"),
            ("add_loss", "sum"),
            ("loss", "average_loss"),
        ],
        [
            *(("train_step", loss) for loss in EXACT),
            *((place, "sum") for place in ("loss", "compute_loss", "add_loss")),
            ("loss", "average_loss"),
            ("add_loss", "sum_by_number"),
            ("adversarial", "mean"),
            ("regularized", "sum"),
            ("rematerialized", "mean"),
            ("rematerialized", "sum"),
            ("regularized_before", "sum"),
            ("without_tape", "sum"),
            ("without_tape", "sum_and_mean"),
            ("no_reduction", "mean"),
            ("several", "mean"),
        ],
    ),
)
def test_a_mean_or_a_sum_is_that_of_one_device(place: str, loss: str, tiny: Any) -> None:
    def make() -> keras.Model:
        return PLACES[place](EXACT[loss])

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        one, several = (trained(make, tiny.strategy(n)) for n in (1, 3))
    assert tiny.distance(one[0], several[0]) < 1e-5
    for name, values in one[1].items():
        np.testing.assert_allclose(several[1][name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("place", "loss"),
    only(
        [("loss", "root"), ("loss", "chosen"), ("train_step", "root"), ("add_loss", "root")],
        [
            *(("loss", loss) for loss in WARNED),
            *(
                (place, "root")
                for place in ("train_step", "without_tape", "compute_loss", "add_loss")
            ),
        ],
    ),
)
def test_anything_else_is_warned_of(place: str, loss: str, tiny: Any) -> None:
    with pytest.warns(UserWarning, match="neither a mean nor a sum over the examples"):
        trained(lambda: PLACES[place](WARNED[loss]), tiny.strategy(2))


def test_a_log_that_no_replica_knows_is_warned_of_by_its_name(tiny: Any) -> None:
    class Norm(Steps):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self._own_loss(y, y_pred)
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(grads, self.trainable_variables)
            return {"own": loss, "norm": tf.norm(y_pred)}

    with pytest.warns(UserWarning, match="'norm' that the step returns is neither"):
        trained(lambda: with_own_step(Norm, EXACT["mean"]), tiny.strategy(2))


def test_a_scaled_regularizer_counts_once(tiny: Any) -> None:
    def make() -> keras.Model:
        def loss(y: Any, p: Any) -> Any:
            kernel = model._dense.kernel.value
            decay = tf.nn.scale_regularization_loss(tf.nn.l2_loss(kernel))
            return ops.mean(squares(y, p)) + decay

        model = with_own_step(Steps, loss)
        return model

    one, several = (trained(make, tiny.strategy(n)) for n in (1, 3))
    assert tiny.distance(one[0], several[0]) < 1e-5


@pytest.mark.long
def test_a_scaled_regularizer_in_a_compiled_loss(tiny: Any) -> None:
    """The model is built outside of any replica, where TensorFlow's function raises an error."""

    def make() -> keras.Model:
        def loss(y: Any, p: Any) -> Any:
            decay = tf.nn.scale_regularization_loss(tf.nn.l2_loss(dense.kernel.value))
            return ops.mean(squares(y, p)) + decay

        dense = layers.Dense(1)
        model = keras.Sequential([dense])
        model.compile("sgd", loss)
        return model

    one, several = (trained(make, tiny.strategy(n)) for n in (1, 3))
    assert tiny.distance(one[0], several[0]) < 1e-5


@pytest.mark.parametrize(
    ("how", "loss", "replicas", "warned"),
    [
        ("run_eagerly", EXACT["sum"], 2, True),
        pytest.param("jit_compile", EXACT["sum"], 2, True, marks=pytest.mark.long),
        ("run_eagerly", EXACT["sum"], 1, False),
        ("run_eagerly", "mse", 2, False),
    ],
)
def test_what_no_graph_shows_is_warned_of(
    tiny: Any, how: str, loss: Any, replicas: int, warned: bool, recwarn: Any
) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", loss, **{how: True})
    kfit.Trainer(model, tiny.strategy(replicas)).fit(X, Y, batch_size=8, verbose=0)
    said = [str(each.message) for each in recwarn if "kfit cannot read" in str(each.message)]
    assert len(said) == warned
    assert all(each.startswith(f"With `{how}=True`") for each in said)


def scaled_and_decay(self: Any, x: Any, y: Any) -> None:
    """A decay by hand, added to the gradients of a scaled loss."""
    with tf.GradientTape() as tape:
        loss = self.optimizer.scale_loss(self._own_loss(y, self(x, training=True)))
    variables = self.trainable_variables
    grads = tape.gradient(loss, variables)
    self.optimizer.apply([g + 0.5 * v for g, v in zip(grads, variables, strict=True)], variables)


def scaled_and_added(self: Any, x: Any, y: Any) -> None:
    """A regularizer, added to a scaled loss."""
    with tf.GradientTape() as tape:
        loss = self.optimizer.scale_loss(self._own_loss(y, self(x, training=True)))
        loss += 0.1 * ops.sum(self._dense.kernel**2)
    variables = self.trainable_variables
    self.optimizer.apply(tape.gradient(loss, variables), variables)


def scaled_once(self: Any, x: Any, y: Any) -> None:
    """A second update, of a loss that was not scaled."""
    for scale in (self.optimizer.scale_loss, lambda loss: loss):
        with tf.GradientTape() as tape:
            loss = scale(self._own_loss(y, self(x, training=True)))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)


def scaled_values(self: Any, x: Any, y: Any) -> None:
    """A value for each example: the gradient is that of their sum."""
    with tf.GradientTape() as tape:
        loss = self.optimizer.scale_loss(0.1 * squares(y, self(x, training=True)))
    variables = self.trainable_variables
    self.optimizer.apply(tape.gradient(loss, variables), variables)


def by_output_gradients(self: Any, x: Any, y: Any) -> None:
    """The gradient of a loss with respect to the outputs, passed on to the weights."""
    with tf.GradientTape() as inner:
        outputs = self(x, training=True)
        inner.watch(outputs)
        loss = self._own_loss(y, outputs)
    of_outputs = inner.gradient(loss, outputs)
    with tf.GradientTape() as tape:
        outputs = self(x, training=True)
    variables = self.trainable_variables
    grads = tape.gradient(outputs, variables, output_gradients=of_outputs)
    self.optimizer.apply(grads, variables)


def by_scaled_loss(self: Any, x: Any, y: Any) -> None:
    """A loss with an output gradient that is one number."""
    with tf.GradientTape() as tape:
        loss = self._own_loss(y, self(x, training=True))
    variables = self.trainable_variables
    grads = tape.gradient(loss, variables, output_gradients=tf.constant(0.5))
    self.optimizer.apply(grads, variables)


@pytest.mark.parametrize(
    ("loss", "take"),
    only(
        [("mean", scaled_and_added), ("mean", by_output_gradients), ("sum", scaled_once)],
        itertools.product(
            ["mean", "sum"],
            [
                *(scaled_and_decay, scaled_and_added, scaled_once, scaled_values),
                *(by_output_gradients, by_scaled_loss),
            ],
        ),
    ),
)
def test_each_gradient_counts_once(tiny: Any, take: Any, loss: str) -> None:
    class Takes(Steps):
        def train_step(self, data: Any) -> Any:
            take(self, *data)
            return {"loss": 0.0}

    def make() -> keras.Model:
        return with_own_step(Takes, lambda y, p: 0.2 * EXACT[loss](y, p))

    one, several = (trained(make, tiny.strategy(n)) for n in (1, 3))
    assert tiny.distance(one[0], several[0]) < 1e-5


POINTS = np.random.default_rng(2).normal(size=(7, 4)).astype("float32")


def at_fixed_points(self: Any, x: Any, y: Any) -> Any:
    """A term of derivatives at points that are no examples, as of a differential equation."""
    points = tf.constant(POINTS)
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(points)
            values = tf.tanh(self(points, training=True))
        slopes = inner.gradient(values, points)
        loss = self._own_loss(y, self(x, training=True)) + ops.mean((slopes - 0.5) ** 2)
    return tape.gradient(loss, self.trainable_variables)


def clipped(self: Any, x: Any, y: Any) -> Any:
    return tf.clip_by_global_norm(at_fixed_points(self, x, y), 0.1)[0]


def of_weights_alone(self: Any, x: Any, y: Any) -> Any:
    """A term of derivatives of what only weights are in."""
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            penalty = ops.sum(self._dense.kernel**3)
        loss = self._own_loss(y, self(x, training=True))
        loss += 0.1 * ops.sum(inner.gradient(penalty, self._dense.kernel) ** 2)
    return tape.gradient(loss, self.trainable_variables)


def sum_of_slopes(self: Any, x: Any, y: Any) -> Any:
    """A term that adds up the gradients of a mean with respect to the examples."""
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            mean = tf.reduce_mean(tf.tanh(x * self._dense.kernel.value[:, 0]))
        loss = self._own_loss(y, self(x, training=True)) + tf.reduce_sum(inner.gradient(mean, x))
    return tape.gradient(loss, self.trainable_variables)


def with_learned_weights(self: Any, x: Any, y: Any) -> Any:
    """Terms that are multiplied and divided by what depends on a variable."""
    with tf.GradientTape() as tape:
        weight = self._dense.bias.value[0]
        loss = tf.exp(-weight) * self._own_loss(y, self(x, training=True)) / (2.0 + weight) + weight
    return tape.gradient(loss, self.trainable_variables)


def with_a_learned_weight_alone(self: Any, x: Any, y: Any) -> Any:
    weight = self._dense.bias.value[0]
    loss = self._own_loss(y, self(x, training=True)) * weight + weight
    return tf.gradients(loss, [each.value for each in self.trainable_variables])


def of_terms_with_output_gradient(self: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = self._own_loss(y, self(x, training=True))
    factor = tf.constant(2.0)
    return tape.gradient(loss, self.trainable_variables, output_gradients=factor)


@pytest.mark.parametrize(
    "take",
    only(
        [at_fixed_points, with_learned_weights],
        [
            *(at_fixed_points, clipped, of_weights_alone, of_terms_with_output_gradient),
            *(sum_of_slopes, with_learned_weights, with_a_learned_weight_alone),
        ],
    ),
)
def test_what_is_exact_is_not_warned_of(tiny: Any, take: Any, recwarn: Any) -> None:
    class Takes(Steps):
        def train_step(self, data: Any) -> Any:
            self.optimizer.apply(take(self, *data), self.trainable_variables)
            return {"loss": 0.0}

    def make() -> keras.Model:
        model = with_own_step(Takes, lambda y, p: 0.2 * EXACT["sum_and_mean"](y, p))
        model(np.zeros((1, 4), "float32"))  # some steps read weights before they call the model
        return model

    one, several = (trained(make, tiny.strategy(n)) for n in (1, 3))
    assert tiny.distance(one[0], several[0]) < 1e-5
    assert [str(each.message) for each in recwarn if "replica" in str(each.message)] == []
