"""A model is built by shapes alone: of any number of examples, or of the number that it needs."""

import itertools
import re
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only

EXAMPLES, BATCH_SIZE = 16, 4


class TakesStaticSize(keras.layers.Layer):
    """A layer that cannot be called with an unknown number of examples."""

    def call(self, x: Any) -> Any:
        return keras.ops.reshape(x, (x.shape[0], -1))


def static_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((2, 3), batch_size=BATCH_SIZE)
    model = keras.Model(x, keras.layers.Dense(1)(TakesStaticSize()(x)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def rows() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 2, 3)).astype("float32")
    return x, x.sum((1, 2), keepdims=True)[:, 0]


def as_arrays() -> tuple[Any, dict[str, Any]]:
    return rows(), {"batch_size": BATCH_SIZE}


def as_pipeline() -> tuple[Any, dict[str, Any]]:
    data = tf.data.Dataset.from_tensor_slices(rows())
    return (data.batch(BATCH_SIZE, drop_remainder=True),), {}


def as_weighted_arrays() -> tuple[Any, dict[str, Any]]:
    weights = np.linspace(0, 1, EXAMPLES, dtype="float32")
    return rows(), {"batch_size": BATCH_SIZE, "sample_weight": weights}


@pytest.mark.parametrize("data", only([as_pipeline], [as_arrays, as_pipeline, as_weighted_arrays]))
def test_a_layer_may_take_the_size_of_equal_batches(data: Any) -> None:
    parts, options = data()
    plain, model = static_model(), static_model()
    trainer = kfit.Trainer(model, "one_device")
    fit = {**options, "epochs": 2, "shuffle": False, "verbose": 0}
    expected, actual = plain.fit(*parts, **fit).history, trainer.fit(*parts, **fit).history
    assert actual == {name: pytest.approx(values) for name, values in expected.items()}
    alone = static_model()
    options.update(verbose=0, return_dict=True)
    expected = static_model().evaluate(*parts, **options)
    assert kfit.evaluate(alone, *parts, strategy="one_device", **options) == pytest.approx(expected)


def test_on_replicas_the_size_is_named() -> None:
    trainer = kfit.Trainer(static_model(), kfit.distribute.Mirrored(["CPU:0", "CPU:1"]))
    with pytest.raises(ValueError, match=r"fails on 2 replicas.*keras\.ops\.shape\(x\)\[0\]"):
        trainer.fit(*rows(), batch_size=BATCH_SIZE, verbose=0)


class WithoutCall(keras.Model):
    """Only its training step calls its layer, which the first call builds."""

    compiled_with: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((y - self.dense(keras.ops.mean(x, axis=1))) ** 2)
        weights = self.dense.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class WithAnotherCall(WithoutCall):
    """Its `call` takes something else than the data."""

    def call(self, inputs: dict[str, Any]) -> Any:
        return self.dense(inputs["rows"])


class OfBuiltLayers(WithoutCall):
    """Its layer is built, but only its training step updates the metrics of `compile`."""

    compiled_with = ("mae",)

    def __init__(self) -> None:
        super().__init__()
        self.dense.build((None, 3))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        super().train_step(data)
        return self.compute_metrics(x, y, self.dense(keras.ops.mean(x, axis=1)))


class OfBuiltLayersWithAnotherCall(OfBuiltLayers):
    """The same, with a `call` that takes something else than the data."""

    def call(self, inputs: dict[str, Any]) -> Any:
        return self.dense(inputs["rows"])


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    only(
        [
            ("adam", WithoutCall),
            ("sgd", WithAnotherCall),
            ("sgd", OfBuiltLayersWithAnotherCall),
        ],
        itertools.product(
            ["sgd", "adam"],
            [WithoutCall, WithAnotherCall, OfBuiltLayers, OfBuiltLayersWithAnotherCall],
        ),
    ),
)
def test_what_the_first_step_builds(kind: Any, optimizer: str) -> None:
    trained = []
    for strategy in (None, kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        keras.utils.set_random_seed(1)
        model = kind()
        model.compile(optimizer, metrics=kind.compiled_with and list(kind.compiled_with))
        fixed = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}
        if strategy is None:
            model.fit(*rows(), **fixed)
        else:
            kfit.fit(model, *rows(), **fixed, strategy=strategy)
        trained.append(model.get_weights())
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(*trained, strict=True))


class OfPairs(keras.Sequential):
    """Takes pairs of batches, as consistency training does, and no targets of its outputs."""

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, _), (noisy, y) = data
        with tf.GradientTape() as tape:
            y_pred = self(noisy, training=True)
            loss = keras.ops.mean((y_pred - self(x)) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self.compute_metrics(x, y, y_pred)


class OfImages(keras.Sequential):
    """Takes no targets, but computes the metrics of `compile`."""

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            y_pred = self(data, training=True)
            loss = keras.ops.mean((y_pred[:, :1] - data) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self.compute_metrics(data, keras.ops.cast(data[:, 0] > 0, "int32"), y_pred)


@pytest.mark.long
@pytest.mark.parametrize("kind", [OfPairs, OfImages])
def test_metrics_get_the_targets_that_the_step_takes(kind: Any) -> None:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype("float32")
    labels = (x[:, 0] > 0).astype("int32")
    pairs = ((x, labels), (x + 0.1, labels))
    data = tf.data.Dataset.from_tensor_slices(pairs if kind is OfPairs else x).batch(BATCH_SIZE)
    seen = []
    for strategy in (None, kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        keras.utils.set_random_seed(1)
        model = kind([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", metrics=["accuracy"])
        if strategy is None:
            seen.append(model.fit(data, epochs=2, verbose=0).history)
        else:
            seen.append(kfit.fit(model, data, epochs=2, verbose=0, strategy=strategy).history)
    assert seen[0]["accuracy"] == pytest.approx(seen[1]["accuracy"])
    assert seen[0]["accuracy"][0] > 0


class WithAuxiliaryHead(keras.layers.Layer):
    """Only training calls its second layer, whose loss it adds."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.head = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        hidden = self.dense(x)
        if training:
            self.add_loss(keras.ops.mean(self.head(hidden) ** 2))
        return hidden


class Whole(keras.Model):
    """A model with a layer that its `call` does not use."""

    compiled_with: Any = "mse"

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.head = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


class OfAuxiliaryHead(Whole):
    """The layer is in a layer within the model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([WithAuxiliaryHead(), keras.layers.Dense(1)])

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)


class OfOwnLoss(Whole):
    """Only its loss calls the layer; `compile` got none."""

    compiled_with = None

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return keras.ops.mean((self.head(y_pred) - y) ** 2)


class OfKeptOutput(OfOwnLoss):
    """Its loss takes what `call` has kept in the model, and calls the layer in training only."""

    compiled_with = "mse"

    def call(self, x: Any) -> Any:
        self.kept = self.dense(x)
        return self.kept

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        own = keras.ops.mean(self.head(self.kept) ** 2) if training else 0.0
        return keras.Model.compute_loss(self, x, y, y_pred, sample_weight) + own


class OfOwnTrainStep(Whole):
    """Only its training step calls the layer."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self.head(self(x, training=True)))
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class OfOwnTestStep(Whole):
    """Only its evaluation calls the layer."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        y_pred = self.head(self(x))
        self.metrics[0].update_state(self.compute_loss(x, y, y_pred))
        return self.compute_metrics(x, y, y_pred)


class OfOwnMetrics(Whole):
    """Only its metrics call the layer, which is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.head.trainable = False

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, y, self.head(y_pred), sample_weight)


PARTLY_CALLED = (OfAuxiliaryHead, OfOwnLoss, OfKeptOutput, OfOwnTrainStep)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "eager"),
    only(
        [(OfAuxiliaryHead, False)],
        [
            *((kind, eager) for kind in PARTLY_CALLED for eager in (False, True)),
            (OfOwnTestStep, False),  # Keras itself trains no such model eagerly
            (OfOwnMetrics, False),
        ],
    ),
)
def test_layers_that_only_some_steps_call(kind: Any, eager: bool) -> None:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype("float32")
    y = x.sum(1, keepdims=True)
    seen = []
    for strategy in (None, "one_device", kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        keras.utils.set_random_seed(1)
        model = kind()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), kind.compiled_with)
        model.run_eagerly = eager
        given = {"epochs": 2, "validation_data": (x, y), "batch_size": 4, "shuffle": False}
        if strategy is None:
            history = model.fit(x, y, **given, verbose=0).history
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "With `run_eagerly=True` kfit cannot read")
                history = kfit.fit(model, x, y, **given, verbose=0, strategy=strategy).history
        seen.append([*history.values(), *model.get_weights()])
    for other in seen[1:]:
        assert all(np.allclose(*pair, atol=1e-5) for pair in zip(seen[0], other, strict=True))


class Looking(keras.Model):
    """A model that reads the values of what it gets, as `run_eagerly` allows."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        assert np.isfinite(x.numpy()).all()
        return self.dense(keras.ops.mean(x, axis=1))


@pytest.mark.long
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
def test_python_reads_the_values_of_eager_steps(is_open: bool) -> None:
    """Also of a model that is not built, and of sequences whose length the data leaves open."""
    targets: list[Any] = []

    def loss(y: Any, y_pred: Any) -> Any:
        targets.append(y.numpy())
        return keras.ops.mean((y - y_pred) ** 2, axis=-1)

    def largest(y: Any, y_pred: Any) -> Any:
        return np.full(len(y), np.abs(y.numpy() - y_pred.numpy()).max() < 1e9)

    (x, y), seen = rows(), []
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)
    if is_open:
        shapes = (tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, 1)))
        data = tf.data.Dataset.from_generator(data.as_numpy_iterator, output_signature=shapes)
    for strategy in (None, "one_device", kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        keras.utils.set_random_seed(1)
        model = Looking()
        model.compile("sgd", loss, metrics=[largest], run_eagerly=True)
        targets.clear()
        if strategy is None:
            history = model.fit(data, epochs=2, verbose=0).history
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "With `run_eagerly=True` kfit cannot read")
                history = kfit.fit(model, data, epochs=2, verbose=0, strategy=strategy).history
        seen.append([*history.values(), *model.get_weights()])
        if strategy == "one_device":  # no zeros are passed to code that looks at each batch
            assert np.array_equal(np.concatenate(targets), np.concatenate([y, y]))
    for other in seen[1:]:
        assert all(np.allclose(*pair, atol=1e-5) for pair in zip(seen[0], other, strict=True))


@pytest.mark.parametrize("kind", only(["dense"], ["dense", "sparse", "ragged", "strings"]))
def test_zeros_stand_for_any_data(kind: str) -> None:
    """Eager steps of replicas are built by them."""
    x: Any = tf.ones((EXAMPLES, 3))
    layers: list[Any] = [keras.layers.Dense(1)]
    if kind == "sparse":
        x = tf.sparse.from_dense(x)
    elif kind == "ragged":
        x = tf.RaggedTensor.from_tensor(x)
        layers = [keras.layers.Lambda(lambda x: x.to_tensor(shape=(None, 3))), *layers]
    elif kind == "strings":
        x = tf.fill((EXAMPLES, 3), "a")
        lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")
        layers = [lookup, *layers]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((x, np.ones((EXAMPLES, 1)))).batch(BATCH_SIZE)
    strategy = kfit.distribute.Mirrored(["CPU:0", "CPU:1"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "With `run_eagerly=True` kfit cannot read")
        history = kfit.fit(model, data, epochs=2, verbose=0, strategy=strategy).history["loss"]
    assert history[1] < history[0]


class OfRaggedWords(keras.Model):
    """Calls what only a ragged tensor has."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.outer = keras.layers.Embedding(9, 3), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        mask = tf.sequence_mask(x.row_lengths(), dtype="float32")
        return self.outer(tf.reduce_sum(self.words(x.to_tensor()) * mask[..., None], 1))


@pytest.mark.long
@pytest.mark.parametrize("as_arrays", [True, False])
def test_a_built_model_may_take_ragged_tensors_only(tiny: Any, as_arrays: bool) -> None:
    words = tf.ragged.constant([list(range(1, 2 + n % 5)) for n in range(17)])
    y = np.arange(17) / 10.0

    def trained(trainer: Any) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = OfRaggedWords()
        model(words[:2])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        if as_arrays:
            trainer(model).fit(words, y, batch_size=7, shuffle=False, verbose=0)
        else:
            data = tf.data.Dataset.from_tensor_slices((words, y)).batch(7)
            trainer(model).fit(data, verbose=0)
        return model

    expected = trained(lambda model: model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        found = trained(lambda model: kfit.Trainer(model, tiny.strategy(2)))
    assert tiny.distance(expected, found) < 1e-5


class Drawn(keras.Sequential):
    """A model whose own step builds its layers, whose weights are drawn by Keras."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def drawn(shape: Any, dtype: Any = None) -> Any:
    return keras.random.normal(shape, dtype=dtype)


@pytest.mark.parametrize("own_seed", [True, False])
def test_initial_values_are_drawn_from_seed_generators_in_the_order_of_keras(
    own_seed: bool,
) -> None:
    x, y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)

    def weights(fit: Any) -> Any:
        keras.utils.set_random_seed(3)
        seed = keras.random.SeedGenerator(5)
        how: Any = keras.initializers.RandomNormal(seed=seed) if own_seed else drawn
        layers = [keras.layers.Dense(n, kernel_initializer=how) for n in (3, 1)]
        model = Drawn(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        fit(model)
        return [*model.get_weights(), np.array(keras.random.uniform((2,)))]

    expected = weights(lambda model: model.fit(x, y, batch_size=4, verbose=0))
    found = weights(
        lambda model: kfit.fit(
            model,
            x,
            y,
            batch_size=4,
            verbose=0,
            strategy=kfit.distribute.Mirrored(["CPU:0", "CPU:1"]),
        )
    )
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


class OfData(keras.layers.Layer):
    """A layer whose variable begins with a value of the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Any = None

    def call(self, x: Any) -> Any:
        if self.scale is None:
            self.scale = tf.Variable(lambda: tf.reduce_mean(x), trainable=False, name="scale")
        return x * self.scale


class BeginsWithData(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(1)
        self.first = OfData()

    def train_step(self, data: Any) -> Any:
        return {"mean": keras.ops.mean(self.inner(self.first(data[0])))}


def test_an_initial_value_of_the_data_is_named() -> None:
    model = BeginsWithData()
    model.compile("sgd", "mse")
    x, y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    strategy = kfit.distribute.Mirrored(["CPU:0", "CPU:1"])
    with pytest.raises(ValueError, match="scale:0' gets an initial value"):
        kfit.fit(model, x, y, batch_size=4, verbose=0, strategy=strategy)


class Failing(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x @ keras.ops.ones((3, 3))


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize("kind", [keras.Sequential, OwnStep])
@pytest.mark.parametrize(
    ("first", "says"),
    [(keras.layers.Conv2D, "expected min_ndim=4, found ndim=3"), (Failing, "Failing.call()")],
)
def test_the_layer_that_fails_in_a_model_without_input_is_named(
    strategy: Any, kind: Any, first: Any, says: str
) -> None:
    layer = first() if first is Failing else first(2, 3)
    model = kind([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = kfit.Trainer(model, strategy)
    with pytest.raises(ValueError, match=re.escape(says)):
        trainer.fit(np.ones((8, 6, 6)), np.ones(8), verbose=0)
    if first is Failing:
        return
    before = trainer.fit(np.ones((8, 6, 6, 1)), np.ones(8), batch_size=8, verbose=0).history
    after = trainer.evaluate(np.ones((8, 6, 6, 1)), np.ones(8), verbose=0)
    assert after < before["loss"][0]
    assert len(model.trainable_variables) == 4


class InBranches(keras.metrics.Metric):
    """Assigns its variable in a branch and in a loop of the graph."""

    def __init__(self) -> None:
        super().__init__(name="in_branches")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        total, is_wide = self.total, tf.shape(y_pred)[1] > 0
        tf.cond(is_wide, lambda: total.assign_add(keras.ops.sum(y_pred)), lambda: total + 0.0)
        tf.while_loop(
            lambda i: i < 2, lambda i: (total.assign_add(keras.ops.sum(y_true)), i + 1)[1:], (0,)
        )

    def result(self) -> Any:
        return self.total + 0.0


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_metric_may_assign_its_variable_in_a_branch(tiny: Any, replicas: int) -> None:
    x, y = tiny.data(9)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[InBranches(), "mae"])
    expected = model.evaluate(x, y, batch_size=4, verbose=0)
    model.compile("sgd", "mse", metrics=[InBranches(), "mae"])
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    got = trainer.evaluate(x, y, batch_size=4, verbose=0)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
