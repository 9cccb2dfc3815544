"""One program with static shapes for all replicas, as on a TPU, tried out on CPU devices.

`Static` is a mirrored strategy that obeys the rules of a TPU; what is specific to the device itself
(its compiler, its memory) is not tried here.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from kfit.inputs import as_batches
from kfit.steps.dynamic_shapes import make_step
from tests.sweeps import only, sweep

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Static(kfit.distribute.Mirrored):
    """Mirrored devices with the rules of a TPU."""

    static_shapes = True


def static(replicas: int) -> Static:
    return Static([f"CPU:{index}" for index in range(replicas)])


class Rows(keras.metrics.Metric):
    """How many rows it was shown, whatever their weights."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def result(self) -> Any:
        return self.count + 0


class AddsLoss(layers.Layer):
    """Adds a mean over its rows to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


def apart(tiny: Any) -> keras.Model:
    """A model whose replicas need not meet before the gradients; all in it counts its rows."""

    def scalar(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(ops.one_hot(ops.reshape(y_true, (-1,)), 3) - y_pred))

    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    bins = ops.cast(ops.clip(x + 2, 0, 4), "int32")
    embedded = layers.Flatten()(layers.Embedding(5, 3)(bins))
    model = keras.Model(x, AddsLoss()(layers.Dense(3)(embedded)))
    model.compile(keras.optimizers.SGD(0.2), loss=scalar, metrics=["accuracy", Rows()])
    return model


def meeting(tiny: Any) -> keras.Model:
    """A model whose replicas meet before the gradients: statistics and masks of all of them."""
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    some = ops.concatenate([ops.abs(x[:, :1]) + 0.1, ops.relu(x[:, 1:])], axis=1)
    steps = layers.Masking(0.0)(layers.Reshape((4, 1))(some))
    masked = layers.Dense(1, name="masked")(steps)
    pooled = layers.GlobalAveragePooling1D()(layers.Dense(3, "tanh")(steps))
    read = layers.BatchNormalization(synchronized=True)(pooled)
    model = keras.Model(x, {"classes": layers.Dense(3, name="classes")(read), "masked": masked})
    optimizer = keras.optimizers.SGD(0.2, gradient_accumulation_steps=2)
    metrics = {"classes": ["accuracy", Rows()]}
    model.compile(optimizer, loss={"classes": LOSS, "masked": "mse"}, metrics=metrics)
    return model


def targets(make: Any, x: Any, y: Any) -> Any:
    return {"classes": y, "masked": x[:, :, None]} if make is meeting else y


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "replicas", "batch_size", "epochs"),
    [(apart, 2, 15, 2), (meeting, 2, 21, 1)],
    ids=["apart", "meeting"],
)
def test_equals_one_device(
    tiny: Any, make: Any, replicas: int, batch_size: int, epochs: int
) -> None:
    x, y = tiny.data(101)
    fixed = {"batch_size": batch_size, "epochs": epochs, "shuffle": False, "verbose": 0}
    data = x, targets(make, x, y)
    part = x[:33], targets(make, x[:33], y[:33])
    one, many = make(tiny), make(tiny)
    alone = kfit.Trainer(one, "one_device")
    expected = alone.fit(*data, validation_data=part, **fixed).history
    trainer = kfit.Trainer(many, static(replicas))
    got = trainer.fit(*data, validation_data=part, **fixed).history
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name
    assert tiny.distance(one, many) < 1e-5
    predicted, wanted = (
        each.predict(x[:31], batch_size=batch_size, verbose=0) for each in (trainer, alone)
    )
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), predicted, wanted
    )


@pytest.mark.parametrize("replicas", only([2], [1, 2, 4]))
def test_101_examples_by_20_equal_one_device(tiny: Any, replicas: int) -> None:
    one, many = (
        tiny.model(optimizer=keras.optimizers.SGD(0.5, global_clipnorm=0.3)) for _ in range(2)
    )
    fixed = {"batch_size": 20, "epochs": 5, "shuffle": False, "verbose": 0}
    expected = one.fit(*tiny.data(101), **fixed).history
    got = kfit.Trainer(many, static(replicas)).fit(*tiny.data(101), **fixed).history
    assert tiny.distance(one, many) < 1e-5
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, abs=1e-6), name


@pytest.mark.parametrize(
    ("make_optimizer", "is_warned_of"),
    sweep(
        [
            (lambda: keras.optimizers.Adam(), True),
            (lambda: keras.optimizers.SGD(0.2, momentum=0.9), False),
            (lambda: keras.optimizers.SGD(0.2, clipnorm=1.0), True),
            (lambda: keras.optimizers.Adam(gradient_accumulation_steps=2), False),
            (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.2)), False),
            (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop()), True),
        ],
        every=4,
    ),
    ids=["adam", "sgd", "clipping", "accumulating", "scaling_sgd", "scaling_rmsprop"],
)
def test_dense_gradients_of_embeddings_are_warned_of_where_they_differ(
    tiny: Any, make_optimizer: Any, is_warned_of: bool
) -> None:
    embedding, optimizer = layers.Embedding(5, 3), make_optimizer()
    model = keras.Sequential([layers.Input((4,)), embedding, layers.Flatten(), layers.Dense(3)])
    model.compile(optimizer, LOSS)
    x, y = np.ones((8, 4), "int32"), np.zeros(8, "int32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfit.Trainer(model, static(2)).fit(x, y, batch_size=4, verbose=0)
    told = [str(each.message) for each in caught if "embedding is summed" in str(each.message)]
    assert bool(told) == is_warned_of
    assert all(type(optimizer).__name__ in each and "a TPU" in each for each in told)


@pytest.mark.long
def test_xla_takes_it(tiny: Any) -> None:
    one, many = tiny.model(), tiny.model(jit_compile=True)
    fixed = {"batch_size": 7, "shuffle": False, "verbose": 0}  # 3 rows and 4
    one.fit(*tiny.data(7), **fixed)
    kfit.Trainer(many, static(2)).fit(*tiny.data(7), **fixed)
    assert tiny.distance(one, many) < 1e-5


def operations(graph: Any) -> Iterator[Any]:
    yield from graph.get_operations()
    for name in graph._functions:
        inner = getattr(graph._get_function(name), "graph", None)
        if inner is not None:
            yield from operations(inner)


@pytest.mark.parametrize(
    "examples", only([7, 1], [8, 7, 1]), ids=["even", "uneven", "fewer_than_replicas"]
)
def test_no_operation_has_an_open_shape(tiny: Any, examples: int, monkeypatch: Any) -> None:
    # A TPU's program is one for all replicas: which of them runs it is not known when it is traced.
    monkeypatch.delattr("kfit.steps.static_shapes.replica_index")
    strategy = static(2)
    trainer = kfit.Trainer(apart(tiny) if examples == 7 else tiny.model(), strategy)
    batches = as_batches(*tiny.data(examples), strategy=strategy, batch_size=examples)
    run = next(batches.segments(0))
    with trainer._ready.working(batches, "train"), strategy.scope():
        step = make_step(trainer.model, trainer.model.train_step, strategy)
        function = tf.function(lambda e: (step(e, run.layout), None)[1], autograph=False)
        graph = function.get_concrete_function(run.iterator.element_spec).graph
    found = list(operations(graph))
    assert ("StatelessIf" in {op.type for op in found} or "If" in {op.type for op in found}) == (
        examples == 7
    )
    kinds = (tf.resource, tf.variant)
    open_shapes = {
        f"{op.type} {op.name}": tensor.shape
        for op in found
        for tensor in op.outputs
        if tensor.dtype not in kinds and not tensor.shape.is_fully_defined()
    }
    assert not open_shapes


def test_replicas_draw_different_numbers(tiny: Any) -> None:
    keras.utils.set_random_seed(3)
    dropped = layers.Dropout(0.5, noise_shape=(None, 1), seed=7)
    dense = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([layers.Input((32,)), dropped, dense])
    model.compile(keras.optimizers.SGD(0.5), keras.losses.MeanSquaredError(reduction="sum"))
    x, y = np.eye(32, dtype="float32"), np.ones((32, 1), "float32")
    kfit.Trainer(model, static(2)).fit(x, y, batch_size=32, shuffle=False, verbose=0)
    kept = (model.get_weights()[0][:, 0] != 0).reshape(2, 16)
    assert 4 < kept.sum() < 28
    assert not np.array_equal(kept[0], kept[1])


@pytest.mark.long
def test_streams_whose_shapes_come_with_their_batches(tiny: Any) -> None:
    x, y = tiny.data(11)

    def generator() -> Iterator[Any]:
        for _ in range(2):
            yield x[:4], y[:4]
            yield x[4:], y[4:]

    one, many, other = tiny.model(), tiny.model(), tiny.model()
    for rows in [slice(0, 4), slice(4, 8), slice(8, 11)] * 2:
        one.train_on_batch(x[rows], y[rows])
    trainer = kfit.Trainer(many, static(2))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)  # 4, 4, 3
    history = trainer.fit(dataset, epochs=2, verbose=0).history
    assert tiny.distance(one, many) < 1e-5
    assert len(history["loss"]) == 2
    np.testing.assert_allclose(
        trainer.predict(dataset, verbose=0), one.predict(x, verbose=0), atol=1e-5
    )
    assert trainer.evaluate(dataset, verbose=0) == pytest.approx(
        one.evaluate(x, y, verbose=0), rel=1e-5
    )
    plain = tiny.model()
    for rows in [slice(0, 4), slice(4, 11)] * 2:
        plain.train_on_batch(x[rows], y[rows])
    kfit.Trainer(other, static(2)).fit(generator(), verbose=0)
    assert tiny.distance(plain, other) < 1e-5


def test_what_a_tpu_does_not_take_is_named(tiny: Any) -> None:
    x, y = tiny.data(8)
    model = tiny.model()
    trainer = kfit.Trainer(model, static(2))
    ragged = tf.RaggedTensor.from_tensor(x)
    sparse = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(4)
    with pytest.raises(ValueError, match=r"`x` yields sparse or ragged tensors.*to_dense"):
        trainer.predict(ragged, verbose=0)
    with pytest.raises(ValueError, match=r"`x` yields sparse or ragged tensors.*to_dense"):
        trainer.fit(sparse, verbose=0)
    text = keras.Sequential([layers.Input((), dtype="string"), layers.StringLookup()])
    with pytest.raises(ValueError, match=r"`x` holds strings.*StringLookup"):
        kfit.Trainer(text, static(2)).predict(np.array(["a", "b"]), verbose=0)
    model.compile("sgd", LOSS, run_eagerly=True)
    with pytest.raises(ValueError, match="`run_eagerly=True` does not go with strategy"):
        trainer.fit(x, y, verbose=0)
    assert tiny.is_plain(model)
