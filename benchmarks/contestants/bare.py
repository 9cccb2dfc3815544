"""The lower bound: the same Keras model, optimizer and metrics in one graph call per epoch.

Usage: python -m benchmarks.contestants.bare fit|evaluate|predict
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.contestants import work

SIZE = work.size_of("mlp")


def batches(x: np.ndarray, y: np.ndarray, shuffle: bool) -> tf.data.Dataset:
    """A data set that gathers whole batches by their indices, the fastest way for arrays."""
    images, labels = tf.constant(x), tf.constant(y)
    order = tf.data.Dataset.range(1).flat_map(
        lambda _: tf.data.Dataset.from_tensor_slices(
            tf.reshape(
                tf.random.shuffle(tf.range(SIZE.rows)) if shuffle else tf.range(SIZE.rows),
                (SIZE.steps, SIZE.batch_size),
            )
        )
    )
    gather = order.map(lambda rows: (tf.gather(images, rows), tf.gather(labels, rows)))
    return gather.prefetch(tf.data.AUTOTUNE)


def fit(model: keras.Model, x: np.ndarray, y: np.ndarray) -> Any:
    @tf.function
    def epoch(iterator: Iterator[Any]) -> Any:
        for _ in tf.range(SIZE.steps):
            images, labels = next(iterator)
            with tf.GradientTape() as tape:
                outputs = model(images, training=True)
                loss = model.compute_loss(x=images, y=labels, y_pred=outputs)
            gradients = tape.gradient(loss, model.trainable_weights)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            model._loss_tracker.update_state(loss)
            model.compute_metrics(images, labels, outputs)
        return [metric.result() for metric in model.metrics]

    ds = batches(x, y, shuffle=True)
    return lambda: [np.asarray(value) for value in tf.nest.flatten(epoch(iter(ds)))]


def evaluate(model: keras.Model, x: np.ndarray, y: np.ndarray) -> Any:
    @tf.function
    def epoch(iterator: Iterator[Any]) -> Any:
        for _ in tf.range(SIZE.steps):
            images, labels = next(iterator)
            outputs = model(images, training=False)
            loss = model.compute_loss(x=images, y=labels, y_pred=outputs, training=False)
            model._loss_tracker.update_state(loss)
            model.compute_metrics(images, labels, outputs)
        return [metric.result() for metric in model.metrics]

    ds = batches(x, y, shuffle=False)
    return lambda: [np.asarray(value) for value in tf.nest.flatten(epoch(iter(ds)))]


def predict(model: keras.Model, x: np.ndarray, y: np.ndarray) -> Any:
    @tf.function
    def epoch(iterator: Iterator[Any]) -> Any:
        outputs = tf.TensorArray(tf.float32, SIZE.steps)
        for step in tf.range(SIZE.steps):
            images, _ = next(iterator)
            outputs = outputs.write(step, model(images, training=False))
        return outputs.concat()

    ds = batches(x, y, shuffle=False)
    return lambda: np.asarray(epoch(iter(ds)))


def main() -> None:
    """Does the work once to warm up, and then times it."""
    model = work.model(keras, "mlp")
    model.optimizer.build(model.trainable_weights)
    x, y = work.data("mlp")
    model.evaluate(x[:32], y[:32], verbose=0)  # Keras creates its metrics at the first batch
    once = {"fit": fit, "evaluate": evaluate, "predict": predict}[sys.argv[1]](model, x, y)
    once()
    seconds = work.timed(lambda: [once() for _ in range(SIZE.epochs)])
    work.tell(seconds / SIZE.epochs / SIZE.steps)


if __name__ == "__main__":
    main()
