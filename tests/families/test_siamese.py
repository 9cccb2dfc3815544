"""Networks that are trained on pairs and triplets, and losses between the examples of a batch."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit

MARGIN = 1.0


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(21, 4)).astype("float32")


def tower() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(3)])


def distance(one: Any, other: Any) -> Any:
    return ops.sqrt(ops.sum(ops.square(one - other), axis=-1, keepdims=True) + 1e-6)


def contrastive(y: Any, distances: Any) -> Any:
    """The mean over the pairs, as in Keras' example."""
    apart = ops.square(ops.maximum(MARGIN - distances, 0.0))
    return ops.mean((1 - y) * ops.square(distances) + y * apart)


def siamese() -> keras.Model:
    shared, inputs = tower(), [keras.Input((4,)), keras.Input((4,))]
    between = layers.Lambda(lambda pair: distance(*pair))([shared(each) for each in inputs])
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(between))
    model.compile(keras.optimizers.SGD(0.3), contrastive, metrics=["accuracy"])
    return model


class Triplets(keras.Model):
    """A step of its own, whose loss has one value for each triplet, as in Keras' example."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.loss_tracker = tower(), keras.metrics.Mean(name="loss")
        self.built = True

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.loss_tracker]

    def scaled(self, loss: Any) -> Any:
        return loss

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            anchor, alike, unlike = (self.tower(each) for each in data[0])
            further = distance(anchor, alike) - distance(anchor, unlike) + MARGIN
            loss = ops.maximum(further, 0.0)
            scaled = self.scaled(loss)
        weights = self.tower.trainable_weights
        self.optimizer.apply(tape.gradient(scaled, weights), weights)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class ScaledTriplets(Triplets):
    def scaled(self, loss: Any) -> Any:
        return self.optimizer.scale_loss(loss)


def triplets(cls: type[Triplets]) -> keras.Model:
    model = cls()
    model.compile(keras.optimizers.SGD(0.05))
    return model


def in_batch(y: Any, codes: Any) -> Any:
    """Compares each example with all others of the batch that the loss is given."""
    return compared(y, codes, y, codes)


def in_global_batch(y: Any, codes: Any) -> Any:
    """Compares each example with all others of the global batch."""
    return compared(y, codes, of_all_replicas(y), of_all_replicas(codes))


def compared(y: Any, codes: Any, all_y: Any, all_codes: Any) -> Any:
    same = ops.cast(ops.equal(y, ops.transpose(all_y)), "float32")
    alike = ops.log_softmax(ops.matmul(codes, ops.transpose(all_codes)))
    return -ops.sum(alike * same, axis=-1) / ops.sum(same, axis=-1)


def of_all_replicas(values: Any) -> Any:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_gather(values, axis=0)


def coder(loss: Any) -> keras.Model:
    model = tower()
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def labels() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 3, (21, 1)).astype("float32")


def test_a_contrastive_loss_of_pairs_is_that_of_keras(as_in_keras: Any) -> None:
    unlike = np.random.default_rng(2).integers(0, 2, (21, 1)).astype("float32")
    as_in_keras(siamese, (rows(0), rows(1)), unlike)


@pytest.mark.long
def test_a_loss_of_each_triplet_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(lambda: triplets(Triplets), (rows(0), rows(1), rows(2)))


@pytest.mark.long
def test_a_scaled_loss_of_each_triplet_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(lambda: triplets(ScaledTriplets), (rows(0), rows(1), rows(2)), replicas=[2])


@pytest.mark.long
def test_a_loss_over_the_global_batch_is_that_of_keras(as_in_keras: Any) -> None:
    """Of 21 examples the last batch has 5, which two replicas share unevenly."""
    as_in_keras(lambda: coder(in_global_batch), rows(0), labels(), replicas=[2])


def test_a_loss_between_the_examples_of_a_batch_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(lambda: coder(in_batch), rows(0), labels(), replicas=[2])


@pytest.mark.long
def test_a_mean_of_pairs_from_a_pipeline_is_not_warned_of(tiny: Any) -> None:
    pairs = tf.data.Dataset.from_tensor_slices(((rows(0), rows(1)), labels() > 0)).batch(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kfit.Trainer(siamese(), tiny.strategy(2)).fit(pairs, verbose=0)
