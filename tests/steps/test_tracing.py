"""How often a model is traced while the sizes of its batches vary."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.one_device import OneDevice
from kfit.inputs import BatchLayout, Segment
from kfit.steps.tracing import GraphsBySize


class Counting(keras.layers.Layer):
    """Counts the traces of itself; Python alone sees it."""

    traces = 0

    def call(self, x: Any) -> Any:
        Counting.traces += 1
        return x


def made() -> Any:
    keras.utils.set_random_seed(1)
    layers = [Counting(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((None, 4)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], weighted_metrics=["mse"])
    return model


def data(rows: int, length: int = 5) -> Any:
    draw = np.random.default_rng(rows * length)
    return (
        draw.normal(size=(rows, length, 4)).astype("float32"),
        draw.normal(size=(rows, length, 3)).astype("float32"),
        draw.uniform(size=(rows, 1)).astype("float32"),
    )


def taken(model: Any, rows: int, length: int, batch_size: int) -> tuple[int, list[Any]]:
    """What the methods of a model or trainer return, and how often they traced the model."""
    before = Counting.traces
    x, y, weight = data(rows, length)
    arguments = {"batch_size": batch_size, "verbose": 0}
    history = model.fit(x, y, sample_weight=weight, shuffle=False, **arguments)
    results = [
        history.history["loss"],
        model.evaluate(x, y, sample_weight=weight, **arguments),
        model.train_on_batch(x[:3], y[:3]),
        model.predict(x, **arguments),
    ]
    return Counting.traces - before, results


SIZES = [(43, 5, size) for size in (10, 9, 12, 11, 8, 7)]
LENGTHS = [(48, length, 4) for length in (5, 6, 7, 8, 4)]
LENGTHS_OF_ONE = [(4, length, 4) for length in (5, 6, 7, 8, 4)]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(1, id="one_replica"),
        pytest.param(2, id="two_replicas", marks=pytest.mark.long),
    ],
    indirect=True,
)
@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param(SIZES, id="sizes"),
        pytest.param(LENGTHS, id="lengths", marks=pytest.mark.long),
        pytest.param(LENGTHS_OF_ONE, id="lengths_of_one_batch", marks=pytest.mark.long),
    ],
)
def test_batches_that_vary_share_a_graph(tiny: Any, strategy: Any, shapes: Any) -> None:
    """After two sizes of the full and of the last batch each, or two lengths, nothing is traced."""
    one, many = made(), made()
    trainer = kfit.Trainer(many, strategy)
    traced = []
    for shape in shapes:
        _, expected = taken(one, *shape)
        traces, results = taken(trainer, *shape)
        traced.append(traces)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-6)
        assert tiny.distance(one, many) < 1e-6
    assert traced[0] > 0
    assert traced[-2:] == [0, 0], traced


@pytest.mark.long
def test_batches_of_many_sizes_train_with_a_backup(tmp_path: Any) -> None:
    trainer = kfit.Trainer(made(), "one_device")
    x, y, _ = data(12)
    for size in (6, 5, 7, 4):
        backup = kfit.callbacks.BackupAndRestore(tmp_path / str(size))
        history = trainer.fit(x, y, batch_size=size, verbose=0, callbacks=[backup])
        assert np.isfinite(history.history["loss"]).all()


def segment_of(layout: BatchLayout, *arrays: Any) -> Segment:
    return Segment(layout, 1, element=tuple(map(tf.constant, arrays)))


def test_the_graph_of_the_latest_call_serves_batches_of_the_same_form_only() -> None:
    graphs, build, layout = GraphsBySize(OneDevice()), print, BatchLayout(template=None)
    one = segment_of(layout, np.zeros((4, 2), "float32"), np.zeros(4, "int64"))
    assert graphs.latest(build, one) is None
    graphs.remember(build, one, "graph")
    same = segment_of(layout, np.ones((4, 2), "float32"), np.ones(4, "int64"))
    assert graphs.latest(build, same) == "graph"
    for other in (
        segment_of(layout, np.zeros((5, 2), "float32"), np.zeros(5, "int64")),
        segment_of(layout, np.zeros((4, 2), "float64"), np.zeros(4, "int64")),
        segment_of(layout, np.zeros((4, 2), "float32")),
        segment_of(BatchLayout(per_replica=True), *one.element),
        Segment(layout, 1, element={"x": one.element[0]}),
        Segment(layout, None, iterator=iter(tf.data.Dataset.range(2))),
    ):
        assert graphs.latest(build, other) is None
    assert graphs.latest(len, same) is None  # the graph of another function


def test_the_graph_of_the_latest_call_serves_the_segment_of_an_iterator() -> None:
    graphs, build, layout = GraphsBySize(OneDevice()), print, BatchLayout()
    one, other = (Segment(layout, None, iter(tf.data.Dataset.range(2))) for _ in range(2))
    graphs.remember(build, one, "graph")
    assert graphs.latest(build, one) == "graph"
    assert graphs.latest(build, other) is None
    graphs.remember(build, Segment(layout, 1, element={"x": tf.zeros(2)}), "another")
    assert graphs.latest(build, one) == "graph", "other forms are not kept"


@pytest.mark.long
def test_batches_of_alternating_sizes_and_dtypes_are_trained_as_keras_does() -> None:
    x, y, _ = data(8)
    batches = [(x, y), (x[:5], y[:5]), (x.astype("float64"), y), (x[:3], y[:3]), (x, y)]
    ours, theirs = kfit.Trainer(made(), "one_device"), made()
    for _ in range(2):
        for batch in batches:
            for name in ("train_on_batch", "test_on_batch"):
                expected = getattr(theirs, name)(*batch)
                np.testing.assert_allclose(getattr(ours, name)(*batch), expected, rtol=1e-5)
            predicted = ours.predict_on_batch(batch[0])
            np.testing.assert_allclose(predicted, theirs.predict_on_batch(batch[0]), rtol=1e-4)
