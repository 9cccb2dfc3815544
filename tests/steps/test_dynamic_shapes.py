"""The graph of a step on a full batch: what a plain loop has, and nothing that exactness adds."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from kfit.inputs import as_batches
from kfit.steps.dynamic_shapes import make_step

BATCH_SIZE, REPLICAS = 8, 2

GUARDS = {
    "Select",
    "SelectV2",
    "Where",
    "DivNoNan",
    "PlaceholderWithDefault",
    "Shape",
    "Cond",
    "If",
}
"""What only batches that are not full have a use for."""


class Counted(tf.distribute.ReductionToOneDevice):
    """Counts what is reduced over the replicas while a graph is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.reduced = 0

    def reduce_implementation(self, *args: Any, **kwargs: Any) -> Any:
        self.reduced += 1
        return super().reduce_implementation(*args, **kwargs)


def convolutional() -> keras.Model:
    keras.utils.set_random_seed(1)
    features = [layers.Conv2D(3, 2, activation="relu"), layers.Flatten(), layers.Dropout(0.1)]
    model = keras.Sequential([layers.Input((5, 5, 1)), *features, layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def plain_step(model: keras.Model, strategy: Any) -> Callable[[Any], None]:
    """A step as one writes it by hand: each replica takes its rows through Keras' own step."""
    own = BATCH_SIZE // REPLICAS

    def on_replica(element: Any) -> None:
        first = own * tf.distribute.get_replica_context().replica_id_in_sync_group
        model.train_step(tuple(part[first : first + own] for part in element))

    return lambda element: strategy.run(on_replica, (element,))


def traced(step: Callable[[Any], Any], spec: Any, strategy: Any) -> tuple[list[Any], int]:
    """The operations of a step, those of functions within it included, and its reductions."""
    counted = strategy.extended._cross_device_ops
    before = counted.reduced
    with strategy.scope():
        function = tf.function(lambda element: (step(element), None)[1], autograph=False)
        graph = function.get_concrete_function(spec).graph
    return list(_operations(graph)), counted.reduced - before


def _operations(graph: Any) -> Iterator[Any]:
    yield from graph.get_operations()
    for name in graph._functions:
        inner = getattr(graph._get_function(name), "graph", None)
        if inner is not None:
            yield from _operations(inner)


@pytest.fixture(scope="module")
def both() -> dict[str, Any]:
    """The operations and the number of reductions of kfit's step and of the plain one."""
    strategy = kfit.distribute.Mirrored(["CPU:0", "CPU:1"], cross_device_ops=Counted())
    x, y = tf.zeros((BATCH_SIZE, 5, 5, 1)), tf.zeros((BATCH_SIZE,), tf.int64)
    trainer = kfit.Trainer(convolutional(), strategy)
    batches = as_batches(x, y, strategy=strategy, batch_size=BATCH_SIZE)
    run = next(batches.segments(0))
    spec = run.iterator.element_spec
    with trainer._ready.working(batches, "train"):
        trainer._ready.build_optimizer()
        step = make_step(trainer.model, trainer.model.train_step, strategy)
        ours = traced(lambda element: step(element, run.layout), spec, strategy.tf_strategy)
    with strategy.scope():
        model = convolutional()
        model.optimizer.build(model.trainable_variables)
        model.evaluate(x, y, verbose=0)
    plain = plain_step(model, strategy.tf_strategy)
    return {"kfit": ours, "plain": traced(plain, spec, strategy.tf_strategy)}


@pytest.mark.long
def test_a_full_batch_meets_as_often_as_in_a_plain_loop(both: Any) -> None:
    (_, ours), (_, plain) = both["kfit"], both["plain"]
    assert ours == plain == 4  # one for each gradient, in one call


@pytest.mark.long
def test_a_full_batch_has_no_operation_that_a_plain_loop_has_not(both: Any) -> None:
    ours, plain = (Counter(op.type for op in both[name][0]) for name in ("kfit", "plain"))
    # They cost nothing when a graph is run; a snapshot passes on memory of TensorFlow.
    for free in ("Const", "StopGradient", "Snapshot"):
        del ours[free], plain[free]
    assert not ours - plain


@pytest.mark.long
def test_a_full_batch_has_static_shapes(both: Any) -> None:
    open_shapes = {
        name: [op.name for op in both[name][0] for t in op.outputs if _is_open(t)]
        for name in ("kfit", "plain")
    }
    assert len(open_shapes["kfit"]) <= len(open_shapes["plain"]), open_shapes


def _is_open(tensor: Any) -> bool:
    """Whether the first dimension of a tensor of numbers is unknown."""
    is_data = tensor.dtype not in (tf.resource, tf.variant)
    return is_data and (tensor.shape.rank is None or tensor.shape[:1].as_list() == [None])


class OfTwoKinds(keras.Sequential):
    """Trains on labelled examples, and to be sure on those without labels."""

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, y), others = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            loss -= 0.1 * tf.reduce_mean(self(others, training=True) ** 2)
            loss += (
                0.01 * tf.reduce_sum(tf.abs(self(others))) / tf.cast(tf.shape(others)[0], "float32")
            )
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def of_two_sizes(rows: int, others: int, **fixed: Any) -> Any:
    drawn = np.random.default_rng(1).normal(size=(60, 7)).astype("float32")
    labelled = tf.data.Dataset.from_tensor_slices((drawn[:, :4], drawn[:, 4:])).batch(rows, **fixed)
    return tf.data.Dataset.zip(
        labelled, tf.data.Dataset.from_tensor_slices(drawn[:, :4] * 2).batch(others, **fixed)
    )


def two_kinds() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = OfTwoKinds([layers.Input((4,)), layers.Dense(3, activation="tanh")])
    model.compile(keras.optimizers.SGD(0.1))
    return model


def test_parts_of_different_sizes_are_divided_each_by_itself(tiny: Any) -> None:
    one, many = two_kinds(), two_kinds()
    data = of_two_sizes(8, 20, drop_remainder=True)
    expected = keras.Model.fit(one, data, verbose=0).history["loss"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kfit.Trainer(many, tiny.strategy(2)).fit(data, verbose=0).history["loss"]
    assert tiny.distance(one, many) < 1e-5
    assert got == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sizes", [(8, 15), (8, 2)])
def test_parts_that_cannot_be_divided_evenly_are_refused(tiny: Any, sizes: Any) -> None:
    data = of_two_sizes(*sizes, drop_remainder=True)
    with pytest.raises(ValueError, match=r"the same number of examples.*multiple of the number"):
        kfit.Trainer(two_kinds(), tiny.strategy(2)).fit(data, verbose=0)


class MeansOfGraphs(keras.Model):
    """Takes the mean over the nodes of each graph, where the nodes of all graphs share one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        nodes, graph = inputs
        return tf.math.segment_mean(self.dense(nodes), graph)


def test_sizes_that_keras_step_cannot_tell_apart_are_refused(tiny: Any) -> None:
    """Twelve nodes and four labels are multiples of two, but a node may be another replica's."""
    nodes, graph = np.ones((2, 12, 3), "float32"), np.repeat(np.arange(4), 3)
    data = tf.data.Dataset.from_tensor_slices(((nodes, [graph] * 2), np.ones((2, 4, 1))))
    model = MeansOfGraphs()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"the same number of examples.*pad.*\[12, 12, 4\]"):
        kfit.Trainer(model, tiny.strategy(2)).fit(data, verbose=0)
