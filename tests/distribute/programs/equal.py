"""Trains one small model on many kinds of data and prints a JSON line for each.

Run as one process or as every task of a cluster; the lines must say the same.
"""

import hashlib
import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import kfit

EXAMPLES, BATCH = 101, 20
rng = np.random.default_rng(0)
X = rng.normal(size=(EXAMPLES, 6)).astype("float32")
Y = rng.integers(0, 3, EXAMPLES)


def model_of(seed: int, middle: list[keras.Layer] | None = None) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh"), *(middle or []), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")]
    model.compile(keras.optimizers.SGD(0.3, global_clipnorm=0.5), loss, metrics=metrics)
    keras.utils.set_random_seed(7)  # of the data sets: the same on all workers
    return model


class Batches(keras.utils.PyDataset):
    def __init__(self, **kwargs: int) -> None:
        super().__init__(**kwargs)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]


def generator():
    for _ in range(2):
        dataset = Batches()
        yield from (dataset[index] for index in range(6))


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def with_policy(name: str, data: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[name]
    return data.with_options(options)


def cases(seed: int) -> dict[str, tuple[keras.Model, dict]]:
    keras.utils.set_random_seed(7)
    norm = [keras.layers.BatchNormalization(synchronized=True)]
    endless = dataset().shuffle(EXAMPLES, seed=3).repeat().batch(BATCH)
    unknown = dataset().filter(lambda x, y: y >= 0).batch(BATCH)
    static = dataset().repeat().batch(BATCH, drop_remainder=True)
    return {
        "arrays": (model_of(seed), {"x": X, "y": Y, "batch_size": BATCH}),
        "fewer examples than replicas": (
            model_of(seed),
            {"x": X[:21], "y": Y[:21], "batch_size": 20},
        ),
        "weights": (model_of(seed), {"x": X, "y": Y, "sample_weight": X[:, 0] ** 2}),
        "batch norm": (model_of(seed, norm), {"x": X, "y": Y, "batch_size": BATCH}),
        "finite dataset": (model_of(seed), {"x": dataset().batch(BATCH)}),
        "endless dataset": (model_of(seed), {"x": endless, "steps_per_epoch": 7}),
        "static dataset": (model_of(seed), {"x": static, "steps_per_epoch": 7}),
        "dataset of unknown length": (model_of(seed), {"x": unknown}),
        "sharded by DATA": (model_of(seed), {"x": with_policy("DATA", dataset().batch(BATCH))}),
        "PyDataset": (model_of(seed), {"x": Batches(workers=2)}),
        "generator": (model_of(seed), {"x": generator(), "steps_per_epoch": 6}),
    }


def say(name: str, **facts: object) -> None:
    print(json.dumps({"case": name, **facts}), flush=True)


def sha(model: keras.Model) -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


def main(out: str) -> None:
    task = kfit.distribute.current_cluster()
    # Each worker's own weights at first: the chief's must win.
    seed = 1 if task is None else 1 + task.worker_index
    weights = {}
    chief = True
    for name, (model, data) in cases(seed).items():
        trainer = kfit.Trainer(model, seed=5)
        chief = trainer.is_chief
        logs = trainer.fit(epochs=2, verbose=0, **data).history
        weights[name] = np.concatenate([w.ravel() for w in model.get_weights()])
        say(name, sha=sha(model), logs=logs)
    scores = trainer.evaluate(X, Y, verbose=0, return_dict=True)
    say("evaluate", logs=scores, predicted=float(np.sum(trainer.predict(X, verbose=0))))
    if chief:
        np.savez(pathlib.Path(out), **weights)


if __name__ == "__main__":
    main(sys.argv[1])
