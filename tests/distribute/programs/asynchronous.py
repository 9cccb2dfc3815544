"""Trains on the servers of a cluster on this host, and tells how that compares to one device.

python asynchronous.py FOLDER CLUSTER              prints a line `RESULT {...}` for each case
python asynchronous.py FOLDER CLUSTER CASE ...     only for these

Most of the time is that of tracing graphs, so what a case does not need it leaves out: a partial
batch, which is a graph of its own, predictions, and what one device comes to a second time.
"""

import contextlib
import functools
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit

FOLDER, CLUSTER = Path(sys.argv[1]), json.loads(sys.argv[2])
CASES = sys.argv[3:]
DRAW = np.random.default_rng(0)
IDS, Y = DRAW.integers(0, 50, (101, 6)), DRAW.integers(0, 3, 101)


class OwnStep(keras.Sequential):
    """Updates its layers by its optimizer, but the last one by another, which the step builds."""

    second: keras.optimizers.Optimizer

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        *_, first, last = self.layers
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        variables = [*first.trainable_variables, *last.trainable_variables]
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients[:2], variables[:2], strict=True))
        self.second.apply([tf.clip_by_norm(each, 0.3) for each in gradients[2:]], variables[2:])
        return {"loss": loss}


def model(
    optimizer: Any, kind: type[keras.Sequential] = keras.Sequential, **compiled: Any
) -> keras.Model:
    keras.utils.set_random_seed(1)
    made = kind(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(50, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(7, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer=optimizer, loss=loss, **{"metrics": ["accuracy"], **compiled})
    return made


class Watches(keras.callbacks.Callback):
    """Has workers take turns, so that numbers are those of one device."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw_clipped": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
}


def distance(one: keras.Model, other: keras.Model) -> float:
    pairs = zip(
        one.variables + one.optimizer.variables,
        other.variables + other.optimizer.variables,
        strict=True,
    )
    return max(float(np.abs(a.numpy().astype("float64") - b.numpy()).max()) for a, b in pairs)


def fit(other: keras.Model, strategy: Any, examples: int, *callbacks: Any) -> Any:
    """Three epochs in batches of 20."""
    trainer = kfit.Trainer(other, strategy=strategy, seed=3)
    options: dict[str, Any] = {"batch_size": 20, "epochs": 3, "verbose": 0}
    return trainer.fit(IDS[:examples], Y[:examples], callbacks=list(callbacks), **options)


@functools.cache
def on_one_device(optimizer: str, examples: int) -> tuple[keras.Model, dict[str, Any]]:
    """The model and the history that all others are held against."""
    one = model(OPTIMIZERS[optimizer]())
    return one, fit(one, "one_device", examples).history


def in_turns(strategy: Any, optimizer: str, examples: int = 100) -> dict[str, Any]:
    """One step at a time: the very numbers of one device."""
    one, expected = on_one_device(optimizer, examples)
    other, watches = model(OPTIMIZERS[optimizer]()), Watches()
    history = fit(other, strategy, examples, watches)
    return {
        "weights": distance(one, other),
        "logs": max(
            abs(a - b)
            for name, values in expected.items()
            for a, b in zip(values, history.history[name], strict=True)
        ),
        "steps": [watches.steps, 3 * -(-examples // 20)],
    }


def own_step(strategy: Any) -> dict[str, float]:
    """A step of the model's own, which builds two optimizers when it is traced."""
    models, logs = [], []
    for each in ("one_device", strategy):
        other = model(OPTIMIZERS["momentum"](), OwnStep, metrics=None)
        other.second = OPTIMIZERS["adam"]()
        logs.append(fit(other, each, 100, Watches()).history["loss"])
        models.append(other)
    second = zip(*(each.second.variables for each in models), strict=True)
    return {
        "weights": distance(*models),
        "second": max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in second),
        "logs": max(abs(a - b) for a, b in zip(*logs, strict=True)),
        "slots": len(models[1].optimizer.variables) + len(models[1].second.variables),
    }


def predicted(strategy: Any) -> float:
    one = on_one_device("sgd", 101)[0]
    outputs = kfit.Trainer(one, strategy=strategy).predict(IDS, batch_size=20, verbose=0)
    return float(np.abs(outputs - one.predict(IDS, verbose=0)).max())


def side_by_side(strategy: Any) -> dict[str, Any]:
    """Workers add to the same metrics and counters at the same time, and nothing is lost."""
    metrics = [
        "accuracy",
        keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2"),
        keras.metrics.MeanIoU(3, sparse_y_true=True, sparse_y_pred=False, name="iou"),
    ]
    other = model(keras.optimizers.SGD(0.0), metrics=metrics, weighted_metrics=["accuracy"])
    x, y = np.tile(IDS, (5, 1)), np.tile(Y, 5)
    weight = np.linspace(0.1, 2.0, len(y))
    trainer = kfit.Trainer(other, strategy=strategy)
    history = trainer.fit(x, y, batch_size=8, epochs=2, verbose=0, sample_weight=weight)
    evaluated = trainer.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
    expected = other.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
    return {
        "logs": max(abs(history.history[name][-1] - expected[name]) for name in expected),
        "evaluated": max(abs(evaluated[name] - expected[name]) for name in expected),
        "iterations": int(other.optimizer.iterations),
        "expected": 2 * -(-len(y) // 8),
    }


def kinds_of_data(strategy: Any) -> dict[str, Any]:
    """Every kind of data is trained on once, in whatever order workers take it."""

    class Counts(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="count")
            self.total = self.add_weight(shape=(50,), initializer="zeros", name="total")

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign(
                self.total + tf.math.bincount(tf.reshape(y, [-1]), minlength=50, dtype=tf.float32)
            )

        def result(self) -> Any:
            return self.total

    y = np.arange(50) % 3
    x = DRAW.integers(0, 50, (50, 6))

    def batches() -> Any:
        yield from ((x[i : i + 8], y[i : i + 8]) for i in range(0, 50, 8))

    class Sequence(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> Any:
            return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]

    def of_worker(context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).repeat().batch(10)

    given: dict[str, Any] = {
        "arrays": {"x": x, "y": y, "batch_size": 8},
        "tf_data": {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(8)},
        "generator": {"x": batches()},
        "py_dataset": {"x": Sequence()},
        "function": {"x": of_worker, "steps_per_epoch": 5},
    }
    told = {}
    for kind, arguments in given.items():
        other = model(keras.optimizers.SGD(0.1), metrics=[Counts()])
        history = kfit.Trainer(other, strategy=strategy).fit(**arguments, epochs=1, verbose=0)
        counts = np.asarray(history.history["count"][0])
        told[kind] = [int(counts.sum()), counts[:3].astype(int).tolist()]
    return told


def resumed(strategy: Any) -> dict[str, Any]:
    """Training that is cut off in an epoch and goes on ends with the same bits, in turns."""

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 9:
                raise KeyboardInterrupt

    def run(callback: Any) -> keras.Model:
        other = model(OPTIMIZERS["adam"]())
        backup = kfit.callbacks.BackupAndRestore(FOLDER / "backup", save_freq=4)
        with contextlib.suppress(KeyboardInterrupt):
            fit(other, strategy, 101, backup, callback)
        return other

    cut = run(Stops())
    steps = int(cut.optimizer.iterations)
    return {"cut": steps, "weights": distance(run(Watches()), on_one_device("adam", 101)[0])}


def ends(context: Any) -> tf.data.Dataset:
    """A data set of each worker's own that should have been repeated."""
    return tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(10)


def refused(strategy: Any) -> dict[str, str]:
    attempts: dict[str, Callable[[], Any]] = {
        "eager": lambda: kfit.Trainer(model("sgd", run_eagerly=True), strategy=strategy).fit(
            IDS, Y, verbose=0
        ),
        "jit": lambda: kfit.Trainer(model("sgd", jit_compile=True), strategy=strategy).fit(
            IDS, Y, verbose=0
        ),
        "no_steps": lambda: kfit.Trainer(model("sgd"), strategy=strategy).fit(ends, verbose=0),
        "too_late": lambda: kfit.distribute.ParameterServer({**CLUSTER, "worker": ["nowhere:1"]}),
    }
    told = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            told[name] = "nothing"
        except ValueError as error:
            told[name] = str(error)
    return told


def after_a_failure(strategy: Any) -> dict[str, Any]:
    """A trainer whose `fit` has failed counts right in the next one."""
    other = model(keras.optimizers.SGD(0.1))
    trainer = kfit.Trainer(other, strategy=strategy)
    said = "nothing"
    try:
        trainer.fit(ends, steps_per_epoch=100, verbose=0)
    except ValueError as error:
        said = str(error)
    before = int(other.optimizer.iterations)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(IDS[:100], Y[:100], batch_size=20, epochs=2, verbose=0)
    warned = [str(each.message) for each in caught if "begun again" in str(each.message)]
    steps = int(other.optimizer.iterations) - before
    return {"steps": steps, "warned": warned, "said": said}


def main() -> None:
    split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    whole = kfit.distribute.ParameterServer(CLUSTER)
    shards = kfit.distribute.ParameterServer(CLUSTER, variable_partitioner=split)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), rpc_layer="grpc"
    )
    users = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=split)
    warnings.simplefilter("ignore")
    cases: dict[str, Callable[[], Any]] = {
        "sgd_of_shards": lambda: in_turns(shards, "sgd", 101),
        "adamw_clipped_of_shards": lambda: in_turns(shards, "adamw_clipped"),
        "accumulated_of_shards": lambda: in_turns(shards, "accumulated"),
        "loss_scaled_of_shards": lambda: in_turns(shards, "loss_scaled"),
        "adam": lambda: in_turns(whole, "adam", 101),
        "own_step": lambda: own_step(whole),
        "own_step_of_shards": lambda: own_step(shards),
        "users_own": lambda: in_turns(users, "sgd", 101),
        "predicted": lambda: [predicted(strategy) for strategy in (whole, shards)],
        "side_by_side": lambda: side_by_side(whole),
        "kinds_of_data": lambda: kinds_of_data(whole),
        "resumed": lambda: resumed(whole),
        "resumed_shards": lambda: resumed(shards),
        "after_a_failure": lambda: after_a_failure(whole),
        "refused": lambda: refused(whole),
    }
    for name in CASES or cases:
        began = time.perf_counter()
        print("RESULT", json.dumps({name: cases[name]()}), flush=True)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
