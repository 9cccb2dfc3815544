"""tf.data pipelines, distributed data sets and functions that make them, on several replicas."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute import OneDevice
from kfit.inputs import as_batches
from tests.sweeps import only, sweep


def dataset(tiny: Any, examples: int = 50, batch_size: int = 20) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data(examples)).batch(batch_size)


def options(ds: Any) -> dict[str, Any]:
    return {"x": ds, "epochs": 2, "verbose": 0}


@pytest.fixture(scope="module")
def expected(tiny: Any) -> Any:
    """The tiny model after two epochs of Keras on `dataset`, and its history."""
    one = tiny.model()
    return one, one.fit(**options(dataset(tiny))).history


def assert_learned(tiny: Any, expected: Any, trainer: Any) -> None:
    one, history = expected
    assert tiny.distance(one, trainer.model) < 1e-5
    for name, values in history.items():
        assert trainer.history.history[name] == pytest.approx(values, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("replicas", only([2], [2, 3, 4]))
def test_a_data_set_is_shared_by_the_replicas(tiny: Any, expected: Any, replicas: int) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(replicas))
    trainer.fit(**options(dataset(tiny)))
    assert_learned(tiny, expected, trainer)
    x, y = tiny.data(50)
    scores = trainer.evaluate(dataset(tiny), verbose=0)
    assert scores == pytest.approx(expected[0].evaluate(x, y, verbose=0), rel=1e-5)
    predicted = trainer.predict(dataset(tiny).map(lambda x, y: x), verbose=0)
    np.testing.assert_allclose(predicted, expected[0].predict(x, verbose=0), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("drop_remainder", only([False], [True, False]))
def test_batches_of_known_and_unknown_size(tiny: Any, drop_remainder: bool) -> None:
    def made() -> tf.data.Dataset:
        ds = tf.data.Dataset.from_tensor_slices(tiny.data(50)).repeat()
        return ds.batch(21, drop_remainder=drop_remainder)

    one, many = tiny.model(), tiny.model()
    one.fit(made(), steps_per_epoch=4, verbose=0)
    kfit.Trainer(many, tiny.strategy(2)).fit(made(), steps_per_epoch=4, verbose=0)
    assert tiny.distance(one, many) < 1e-6
    batches = as_batches(made(), strategy=OneDevice(), steps=4)
    assert batches.batch_size == (21 if drop_remainder else None)


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_distributed_data_set(tiny: Any, expected: Any, replicas: int) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(replicas))
    distributed = trainer.strategy.distribute_dataset(dataset(tiny))
    trainer.fit(**options(distributed))
    assert_learned(tiny, expected, trainer)


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_function_that_makes_the_data_set(tiny: Any, expected: Any, replicas: int) -> None:
    contexts: list[Any] = []

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        contexts.append(context)
        own = tf.data.Dataset.from_tensor_slices(tiny.data(50))
        own = own.shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.batch(context.get_per_replica_batch_size(20))

    trainer = kfit.Trainer(tiny.model(), tiny.strategy(replicas))
    trainer.fit(**options(make))
    assert contexts[0].num_replicas_in_sync == replicas
    assert_learned(tiny, expected, trainer)


VALIDATION: dict[str, Callable[[tf.data.Dataset], Any]] = {
    "of_known_length": lambda ds: ds,
    "of_unknown_length": lambda ds: ds.filter(lambda *batch: True),
    "as_long_as_asked_for": lambda ds: ds.take(2).filter(lambda *batch: True),
    "endless": lambda ds: ds.repeat(),
}


@pytest.mark.long
@pytest.mark.parametrize("distributed", sweep([True, False]))
@pytest.mark.parametrize("kind", only(["as_long_as_asked_for"], VALIDATION))
def test_each_validation_begins_the_data_set_as_in_keras(
    tiny: Any, kind: str, distributed: bool
) -> None:
    made = VALIDATION[kind]
    kwargs = {**options(dataset(tiny)), "epochs": 3, "validation_steps": 2}
    expected = tiny.model().fit(**kwargs, validation_data=made(dataset(tiny, 70))).history
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(2))
    data = made(dataset(tiny, 70))
    data = trainer.strategy.distribute_dataset(data) if distributed else data
    history = trainer.fit(**kwargs, validation_data=data).history
    for name, values in expected.items():
        assert history[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


def test_distributed_data_sets_without_end_need_a_number_of_steps(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(2))
    endless = trainer.strategy.distribute_dataset(dataset(tiny).repeat())
    for data in (endless, lambda context: dataset(tiny).repeat()):
        with pytest.raises(ValueError, match=r"`steps_per_epoch`.*never ends"):
            trainer.fit(**options(data))


def _of_unknown_shape(value: tf.Tensor) -> tf.Tensor:
    return tf.numpy_function(lambda array: array, [value], value.dtype)


@pytest.mark.parametrize("is_unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("labels", ["flat", "column", "one_hot", "float"])
def test_class_weights_in_a_data_set(tiny: Any, labels: str, is_unknown: bool) -> None:
    x, y = tiny.data(50)
    kinds = {
        "flat": y,
        "column": y[:, None],
        "one_hot": np.eye(3, dtype="float32")[y],
        "float": y.astype("float32"),
    }
    weights = {0: 0.5, 2: 3.0}
    ds = tf.data.Dataset.from_tensor_slices((x, kinds[labels])).batch(20)
    if is_unknown:
        y_shape = None if labels in ("flat", "float") else (None, None)
        ds = ds.map(lambda x, y: (x, tf.ensure_shape(_of_unknown_shape(y), y_shape)))
    batches = as_batches(ds, strategy=OneDevice(), class_weight=weights)
    (run,) = batches.segments(0)
    got = np.concatenate([weight for _, _, weight in run.iterator])
    np.testing.assert_array_equal(got, [weights.get(label, 1.0) for label in y])


def test_class_weights_train_as_with_arrays(tiny: Any) -> None:
    weights = {"class_weight": {0: 0.5, 2: 3.0}}
    one, many = tiny.model(), tiny.model()
    one.fit(*tiny.data(50), batch_size=20, shuffle=False, verbose=0, **weights)
    kfit.Trainer(many, tiny.strategy(2)).fit(dataset(tiny), verbose=0, **weights)
    assert tiny.distance(one, many) < 1e-6
    weighted = dataset(tiny).map(lambda x, y: (x, y, tf.ones_like(y)))
    with pytest.raises(ValueError, match="`class_weight` and sample weights"):
        kfit.Trainer(many, "one_device").fit(weighted, verbose=0, **weights)


@pytest.mark.long
def test_ragged_and_sparse_data_sets(tiny: Any) -> None:
    class Pooling(keras.Model):
        """Means over ragged rows, and a product with sparse ones."""

        def __init__(self) -> None:
            super().__init__()
            self.out = keras.layers.Dense(1)
            self.out.build((None, 4))

        def call(self, x: Any) -> Any:
            ragged, sparse = x
            if isinstance(ragged, tf.RaggedTensor):
                ragged = tf.reduce_mean(ragged, axis=1)
            ragged = keras.ops.reshape(ragged, (-1, 1))
            if isinstance(sparse, tf.SparseTensor):
                sparse = tf.sparse.to_dense(sparse)
            return self.out(keras.ops.concatenate([ragged, sparse], axis=1))

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = Pooling()
        model.compile("sgd", "mse")
        return model

    rows = [[float(k) for k in range(1 + n % 3)] for n in range(13)]
    dense = np.eye(13, 3, dtype="float32")
    y = np.arange(13.0)[:, None] / 13
    ragged, sparse = tf.ragged.constant(rows), tf.sparse.from_dense(dense)
    ds = tf.data.Dataset.from_tensor_slices(((ragged, sparse), y)).batch(5)
    one, many = made(), made()
    means = np.array([[np.mean(row)] for row in rows], "float32")
    plain = tf.data.Dataset.from_tensor_slices(((means, dense), y)).batch(5)
    one.fit(plain, epochs=2, verbose=0)
    kfit.Trainer(many, tiny.strategy(3)).fit(ds, epochs=2, verbose=0)
    assert tiny.distance(one, many) < 1e-5


def test_a_shuffled_data_set_has_another_order_in_each_epoch(tiny: Any) -> None:
    ds = tf.data.Dataset.range(30).shuffle(30, seed=3).batch(10)
    batches = as_batches(ds, strategy=OneDevice())
    epochs = []
    for epoch in range(2):
        (run,) = batches.segments(epoch)
        epochs.append(np.concatenate(list(run.iterator)))
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(30))
    assert not np.array_equal(*epochs)


class OfItsLoss(keras.Model):
    """A model that needs no targets, and takes a dict whose "b" may be None."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(4)

    def call(self, x: Any) -> Any:
        out = self.out(x["a"] if x["b"] is None else x["a"] + x["b"])
        self.add_loss(keras.ops.mean(keras.ops.square(out - x["a"])))
        return out


NONES: dict[str, Callable[..., Any]] = {
    "weights": lambda x, y: ({"a": x, "b": x}, x, None),
    "targets": lambda x, y: ({"a": x, "b": x}, None),
    "input": lambda x, y: ({"a": x, "b": None}, x),
    "optional": lambda x, y: ({"a": x, "b": x}, tf.experimental.Optional.empty(None)),
}


@pytest.mark.parametrize(
    ("kind", "replicas"),
    only([("input", 1)], itertools.product(NONES, [1, 2])),
)
def test_elements_with_none(tiny: Any, kind: str, replicas: int) -> None:
    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = OfItsLoss()
        model.compile(keras.optimizers.SGD(0.1), None if kind in ("targets", "optional") else "mse")
        return model

    ds = dataset(tiny, 45).map(NONES[kind])
    given = {**options(ds), "validation_data": ds}
    one, trainer = made(), kfit.Trainer(made(), tiny.strategy(replicas))
    history = one.fit(**given).history
    trainer.fit(**given)
    assert_learned(tiny, (one, history), trainer)
    assert trainer.evaluate(ds, verbose=0) == pytest.approx(one.evaluate(ds, verbose=0), rel=1e-5)
    np.testing.assert_allclose(trainer.predict(ds), one.predict(ds, verbose=0), atol=1e-5)


@pytest.mark.long
def test_a_function_may_make_a_data_set_with_none(tiny: Any, expected: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(2))
    with_none = dataset(tiny, batch_size=10).map(lambda x, y: (x, y, None))
    trainer.fit(**options(lambda context: with_none))
    assert_learned(tiny, expected, trainer)
    with pytest.raises(ValueError, match="`x`, a distributed data set, yields None"):
        trainer.fit(**options(trainer.strategy.distribute_dataset(with_none)))


class Shaping(keras.Model):
    """Knows the shapes of its data, which the pipeline does not tell."""

    def __init__(self, by_step: bool) -> None:
        super().__init__()
        self.out, self.by_step = keras.layers.Dense(1), by_step
        if not by_step:
            self.out.build((None, 4))
            self.built = True

    def call(self, x: Any) -> Any:
        return self.out(x if self.by_step else tf.ensure_shape(x, (None, 4)))

    def _shaped(self, data: Any) -> Any:
        x, y = data
        return tf.ensure_shape(x, (None, 4)), tf.ensure_shape(y, (None, 1))

    def train_step(self, data: Any) -> Any:
        return super().train_step(self._shaped(data) if self.by_step else data)

    def test_step(self, data: Any) -> Any:
        return super().test_step(self._shaped(data) if self.by_step else data)


@pytest.mark.parametrize(
    ("unknown", "replicas"),
    only(
        [("x_eagerly", 1)],
        itertools.product(["xy", "y", "x_of_call", "x", "x_eagerly"], [1, 2]),
    ),
)
def test_components_of_unknown_rank(tiny: Any, unknown: str, replicas: int) -> None:
    by_step = "_" not in unknown

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = Shaping(by_step)
        optimizer = keras.optimizers.SGD(0.1)
        model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=unknown == "x_eagerly")
        return model

    def opened(x: tf.Tensor, y: tf.Tensor) -> Any:
        y = y[:, None]
        return (
            _of_unknown_shape(x) if "x" in unknown else x,
            _of_unknown_shape(y) if unknown in ("y", "xy") else y,
        )

    ds = dataset(tiny, 45).map(opened)
    given = {**options(ds), "validation_data": ds}
    one, trainer = made(), kfit.Trainer(made(), tiny.strategy(replicas))
    history = one.fit(**given).history
    trainer.fit(**given)
    assert_learned(tiny, (one, history), trainer)
    assert trainer.evaluate(ds, verbose=0) == pytest.approx(one.evaluate(ds, verbose=0), rel=1e-5)
    if unknown == "x_of_call":
        np.testing.assert_allclose(trainer.predict(ds), one.predict(ds, verbose=0), atol=1e-5)


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_an_unknown_rank_that_a_layer_or_the_loss_needs_is_named(tiny: Any, replicas: int) -> None:
    says = r"^`x` yields tensors of unknown rank.*`tf\.ensure_shape"
    for opened in (
        lambda x, y: (_of_unknown_shape(x), y),
        lambda x, y: (x, _of_unknown_shape(y)),
    ):
        with pytest.raises(ValueError, match=says):
            kfit.Trainer(tiny.model(), tiny.strategy(replicas)).fit(dataset(tiny).map(opened))


def test_a_restored_position_that_was_not_reached_yet_is_saved_again() -> None:
    """Validation data is read only at the end of an epoch, before which training may be cut."""
    rows = tf.data.Dataset.range(20).shuffle(20).batch(4)
    batches = as_batches(rows, strategy=OneDevice(), steps=2)
    for own, taken in ((None, None), (1, 3)):
        batches.load_state_dict({"begun": 3, "own": own, "taken": taken})
        assert batches.state_dict()["begun"] == 3
        assert batches.state_dict()["own"] == own
