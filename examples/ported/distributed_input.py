"""Ported from `tutorials/distribute/input`: how data reach the replicas.

The tutorial distributes data sets for loops by hand: a batch of the global size is split over the
replicas, or a function makes a data set of smaller batches for each worker. It explains how files
and rows are sharded, short last batches, and generators, which need `from_generator`.

With kfit `fit` takes all kinds of data as they are, in global batches. The models below see the
same batches, the last one of 25 rows, and end with equal weights on any number of replicas.
"""

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

import kfit

(x, y), test = kfit.datasets.digits.load_data()


class Rows(keras.utils.PyDataset):
    """Global batches that Python code makes."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple:
        rows = slice(64 * index, 64 * (index + 1))
        return x[rows], y[rows]


def generator() -> Iterator[tuple]:
    """Yields the global batches of four epochs."""
    yield from (Rows()[step % 24] for step in range(4 * 24))


def trained(*data: object, **options: object) -> kfit.Trainer:
    """Trains a new model, and returns its trainer."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Rescaling(1 / 16), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss, metrics=["accuracy"])
    trainer = kfit.Trainer(model)  # kfit: nothing has to be distributed by hand
    trainer.fit(*data, epochs=4, shuffle=False, verbose=0, **options)  # kfit: model.fit
    return trainer


dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)  # 64 rows over all replicas
trainers = [trained(x, y, batch_size=64), trained(dataset), trained(Rows())]
trainers.append(trained(generator(), steps_per_epoch=24))
weights = [np.concatenate([w.ravel() for w in one.model.get_weights()]) for one in trainers]
loss, accuracy = trainers[0].evaluate(*test, verbose=0)  # kfit: model.evaluate
rows = [len(part) for part in trainers[0].predict_iter(dataset, verbose=0)]  # kfit: bit by bit
if trainers[0].is_chief:  # kfit: every worker runs this program
    print(f"Largest difference of a weight: {np.ptp(weights, axis=0).max():.1g}")
    print(f"Predicted rows: {sum(rows)}")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
