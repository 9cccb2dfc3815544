"""A network on a batch of padded graphs: nodes send messages along edges, which it adds up."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit

NODES, EDGES, WIDTH = 5, 7, 3


def graphs() -> dict[str, np.ndarray]:
    """21 graphs with 2 to 5 nodes and up to 7 edges; what is padding is no edge and no node."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(2, NODES + 1, 21)
    exists = np.arange(NODES) < sizes[:, None]
    return {
        "nodes": (draw.normal(size=(21, NODES, WIDTH)) * exists[..., None]).astype("float32"),
        "exists": exists.astype("float32"),
        "edges": draw.integers(0, sizes[:, None, None], (21, EDGES, 2)).astype("int32"),
        "joined": (np.arange(EDGES) < draw.integers(1, EDGES + 1, 21)[:, None]).astype("float32"),
    }


class PassesMessages(layers.Layer):
    """Adds to each node what its neighbours send, in one sum over all graphs of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = layers.Dense(WIDTH, "tanh"), layers.Dense(WIDTH, "tanh")

    def call(self, nodes: Any, edges: Any, joined: Any) -> Any:
        graphs = ops.shape(nodes)[0]
        first = NODES * ops.arange(graphs)[:, None]
        sources = ops.reshape(edges[:, :, 0] + first, (-1,))
        targets = ops.reshape(edges[:, :, 1] + first, (-1,))
        flat = ops.reshape(nodes, (-1, WIDTH))
        sent = self.message(ops.take(flat, sources, axis=0)) * ops.reshape(joined, (-1, 1))
        received = ops.segment_sum(sent, targets, num_segments=NODES * graphs)
        return self.update(ops.reshape(ops.concatenate([flat, received], -1), (-1, NODES, 6)))


def network() -> keras.Model:
    shapes = {"nodes": (NODES, WIDTH), "exists": (NODES,), "joined": (EDGES,)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    inputs["edges"] = keras.Input((EDGES, 2), dtype="int32", name="edges")
    nodes = inputs["nodes"]
    for _ in range(2):
        nodes = PassesMessages()(nodes, inputs["edges"], inputs["joined"])
    nodes = nodes * ops.expand_dims(inputs["exists"], -1)
    model = keras.Model(inputs, layers.Dense(1)(ops.sum(nodes, axis=1)))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    auc = keras.metrics.AUC(from_logits=True, name="auc")
    model.compile(keras.optimizers.SGD(0.2), loss, metrics=[auc])
    return model


class AddsUp(layers.Layer):
    """Adds up the nodes of each graph, where the nodes of all graphs share one axis."""

    def call(self, nodes: Any, graph: Any) -> Any:
        return ops.segment_sum(nodes, graph, num_segments=2)


def joined_graphs() -> Iterator[Any]:
    """Batches of two graphs that have five nodes together."""
    for _ in range(2):
        yield (np.ones((5, WIDTH)), np.array([0, 0, 0, 1, 1])), np.ones((2, 1))


@pytest.mark.long
def test_message_passing_over_padded_graphs_is_that_of_keras(as_in_keras: Any) -> None:
    given = graphs()
    as_in_keras(network, given, (given["joined"].sum(1) > 3).astype("float32")[:, None])


def test_graphs_that_share_one_axis_are_refused_on_several_replicas(tiny: Any) -> None:
    """Nobody can tell which nodes belong to the examples of which replica: pad the graphs."""
    nodes, graph = keras.Input((WIDTH,)), keras.Input((), dtype="int32")
    model = keras.Model([nodes, graph], layers.Dense(1)(AddsUp()(nodes, graph)))
    model.compile("sgd", "mse")
    specs = tf.TensorSpec((None, WIDTH)), tf.TensorSpec((None,), tf.int32)
    signature = (specs, tf.TensorSpec((None, 1)))
    batches = tf.data.Dataset.from_generator(joined_graphs, output_signature=signature)
    said = r"^`x` must yield batches whose parts all hold the same number of .* Received: \d+, \d+$"
    with pytest.raises(ValueError, match=said):
        kfit.Trainer(model, tiny.strategy(2)).fit(batches, verbose=0)
