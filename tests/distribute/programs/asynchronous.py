"""Trains on the servers of a cluster on this host, and tells how that compares to one device.

python asynchronous.py FOLDER    prints a line `RESULT {...}` for each case
"""

import contextlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit
from kfit.launching.local import free_ports

PORTS = free_ports(4)
CLUSTER = {
    "worker": [f"localhost:{port}" for port in PORTS[:2]],
    "ps": [f"localhost:{port}" for port in PORTS[2:]],
}
FOLDER = Path(sys.argv[1])
DRAW = np.random.default_rng(0)
IDS, Y = DRAW.integers(0, 50, (101, 6)), DRAW.integers(0, 3, 101)


def serve() -> Any:
    """Starts one process with all servers; in this one they would want for threads."""
    code = (
        "import json, sys, tensorflow as tf\n"
        "cluster = json.loads(sys.argv[1])\n"
        "spec, config = tf.train.ClusterSpec(cluster), tf.compat.v1.ConfigProto()\n"
        "config.inter_op_parallelism_threads = 16\n"
        "servers = [tf.distribute.Server(spec, job_name=kind, task_index=index, config=config)\n"
        "           for kind, listed in cluster.items() for index in range(len(listed))]\n"
        "sys.stdin.read()\n"  # until this process ends, however that happens
    )
    command = [sys.executable, "-c", code, json.dumps(CLUSTER)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def model(optimizer: Any, **compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential(
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
    "adamw_clipped": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def distance(one: keras.Model, other: keras.Model) -> float:
    pairs = zip(
        one.variables + one.optimizer.variables,
        other.variables + other.optimizer.variables,
        strict=True,
    )
    return max(float(np.abs(a.numpy().astype("float64") - b.numpy()).max()) for a, b in pairs)


def in_turns(strategy: Any, optimizer: Callable[[], Any]) -> dict[str, Any]:
    """One step at a time: the very numbers of one device."""
    one, other = model(optimizer()), model(optimizer())
    expected = kfit.Trainer(one, strategy="one_device", seed=3).fit(
        IDS, Y, batch_size=20, epochs=3, verbose=0
    )
    watches = Watches()
    trainer = kfit.Trainer(other, strategy=strategy, seed=3)
    history = trainer.fit(IDS, Y, batch_size=20, epochs=3, verbose=0, callbacks=[watches])
    predicted = trainer.predict(IDS, batch_size=20, verbose=0)
    return {
        "weights": distance(one, other),
        "logs": max(
            abs(a - b)
            for name, values in expected.history.items()
            for a, b in zip(values, history.history[name], strict=True)
        ),
        "predicted": float(np.abs(predicted - one.predict(IDS, verbose=0)).max()),
        "steps": watches.steps,
    }


def side_by_side(strategy: Any) -> dict[str, Any]:
    """Workers add to the same metrics and counters at the same time, and nothing is lost."""
    metrics = [
        "accuracy",
        keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2"),
        keras.metrics.MeanIoU(3, sparse_y_true=True, sparse_y_pred=False, name="iou"),
    ]
    other = model(keras.optimizers.SGD(0.0), metrics=metrics, weighted_metrics=["accuracy"])
    x, y = np.tile(IDS, (10, 1)), np.tile(Y, 10)
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

    def fit(*callbacks: Any) -> keras.Model:
        other = model(keras.optimizers.Adam(0.01))
        backup = kfit.callbacks.BackupAndRestore(FOLDER / "backup", save_freq=2)
        with contextlib.suppress(KeyboardInterrupt):
            kfit.Trainer(other, strategy=strategy, seed=3).fit(
                IDS, Y, batch_size=20, epochs=3, verbose=0, callbacks=[backup, *callbacks]
            )
        return other

    cut = fit(Stops())
    steps = int(cut.optimizer.iterations)
    whole = model(keras.optimizers.Adam(0.01))
    kfit.Trainer(whole, strategy="one_device", seed=3).fit(
        IDS, Y, batch_size=20, epochs=3, verbose=0
    )
    return {"cut": steps, "weights": distance(fit(Watches()), whole)}


def refused(strategy: Any) -> dict[str, str]:
    def of_worker(context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(10)

    attempts: dict[str, Callable[[], Any]] = {
        "eager": lambda: kfit.Trainer(model("sgd", run_eagerly=True), strategy=strategy).fit(
            IDS, Y, verbose=0
        ),
        "jit": lambda: kfit.Trainer(model("sgd", jit_compile=True), strategy=strategy).fit(
            IDS, Y, verbose=0
        ),
        "no_steps": lambda: kfit.Trainer(model("sgd"), strategy=strategy).fit(of_worker, verbose=0),
        "ended": lambda: kfit.Trainer(model("sgd"), strategy=strategy).fit(
            of_worker, steps_per_epoch=100, verbose=0
        ),
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

    def ends(context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(10)

    other = model(keras.optimizers.SGD(0.1))
    trainer = kfit.Trainer(other, strategy=strategy)
    with contextlib.suppress(ValueError):
        trainer.fit(ends, steps_per_epoch=100, verbose=0)
    before = int(other.optimizer.iterations)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(IDS, Y, batch_size=20, epochs=2, verbose=0)
    warned = [str(each.message) for each in caught if "begun again" in str(each.message)]
    return {"steps": int(other.optimizer.iterations) - before, "warned": warned}


def main() -> None:
    servers = serve()
    split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    whole = kfit.distribute.ParameterServer(CLUSTER)
    shards = kfit.distribute.ParameterServer(CLUSTER, variable_partitioner=split)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), rpc_layer="grpc"
    )
    users = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=split)
    warnings.simplefilter("ignore")
    cases: dict[str, Callable[[], Any]] = {
        **{
            f"{name}_of_shards": lambda make=make: in_turns(shards, make)
            for name, make in OPTIMIZERS.items()
        },
        "adam": lambda: in_turns(whole, lambda: keras.optimizers.Adam(0.01)),
        "side_by_side": lambda: side_by_side(whole),
        "kinds_of_data": lambda: kinds_of_data(whole),
        "resumed": lambda: resumed(whole),
        "resumed_shards": lambda: resumed(shards),
        "users_own": lambda: in_turns(users, OPTIMIZERS["sgd"]),
        "after_a_failure": lambda: after_a_failure(whole),
        "refused": lambda: refused(whole),
    }
    for name, case in cases.items():
        print("RESULT", json.dumps({name: case()}), flush=True)
    servers.kill()


if __name__ == "__main__":
    main()
