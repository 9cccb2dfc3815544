"""Compares training on R replicas with training on one device, for kfit, Keras 3 and tf_keras.

python -m benchmarks.exactness       prints the table; `pip install tf_keras` for that library

Each case trains on one device and on R mirrored CPU replicas with the same library, from the same
weights and on the same batches. The table shows the largest difference of a weight. Every column
runs in a process of its own, because some of the cases crash the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

LIBRARIES = ("kfit", "keras", "tf_keras")
REPLICAS = (2, 4)
EXAMPLES, BATCH, EPOCHS = 101, 20, 5


class Case:
    """One model, optimizer and data set, for any of the libraries.

    Args:
        name: Its name in the table.
        layers: Gets the library's module; returns the layers between input and output.
        optimizer: Gets the library's module; returns the optimizer.
        loss: Reduction of the loss, or a function of targets and predictions in its place.
        fit: Gets a NumPy generator; returns further arguments of `fit`.
        compile: Further arguments of `compile`.
    """

    def __init__(
        self,
        name: str,
        *,
        layers: Callable[[Any], list[Any]] = lambda k: [],
        optimizer: Callable[[Any], Any] = lambda k: k.optimizers.SGD(0.5),
        loss: str | Callable[[Any, Any], Any] = "sum_over_batch_size",
        fit: Callable[[Any], dict[str, Any]] = lambda rng: {},
        compile: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.layers = layers
        self.optimizer = optimizer
        self.loss = loss
        self.fit = fit
        self.compile = compile or {}


def masked(y: Any, logits: Any) -> Any:
    """The mean of the losses of the examples that count, as in tutorials on translation."""
    import tensorflow as tf

    classes = tf.cast(tf.reshape(y, [-1]), "int32")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
    counts = tf.cast(classes > 0, losses.dtype)
    return tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)


def contrastive(y: Any, codes: Any) -> Any:
    """A loss that compares the examples of a batch: those of a class shall be alike."""
    import tensorflow as tf

    classes = tf.reshape(y, [-1])
    alike = tf.cast(classes[:, None] == classes[None, :], codes.dtype)
    near = tf.nn.log_softmax(tf.matmul(codes, codes, transpose_b=True))
    return -tf.reduce_mean(tf.reduce_sum(alike * near, 1) / tf.reduce_sum(alike, 1))


CASES = [
    Case("partial last batch"),
    Case("sample weights", fit=lambda rng: {"sample_weight": rng.random(EXAMPLES)}),
    Case("reduction 'sum'", loss="sum", optimizer=lambda k: k.optimizers.SGD(0.01)),
    Case("global_clipnorm", optimizer=lambda k: k.optimizers.SGD(0.5, global_clipnorm=0.1)),
    Case("clipvalue", optimizer=lambda k: k.optimizers.SGD(0.5, clipvalue=0.01)),
    Case(
        "gradient accumulation",
        optimizer=lambda k: k.optimizers.SGD(0.5, gradient_accumulation_steps=2),
    ),
    Case(
        "EMA, overwriting",
        optimizer=lambda k: k.optimizers.SGD(0.5, use_ema=True, ema_overwrite_frequency=3),
    ),
    Case(
        "synchronized BatchNorm", layers=lambda k: [k.layers.BatchNormalization(synchronized=True)]
    ),
    Case("regularizer", layers=lambda k: [k.layers.Dense(8, kernel_regularizer="l2")]),
    Case("masked loss, sum / sum", loss=masked),
    Case("contrastive loss", loss=contrastive, optimizer=lambda k: k.optimizers.SGD(0.05)),
    Case("steps_per_execution=3", compile={"steps_per_execution": 3}),
    Case("jit_compile=True", compile={"jit_compile": True}),
]


def weights_after(library: str, case: Case, replicas: int) -> list[Any]:
    """The weights after `library` has trained a case on `replicas` replicas."""
    import numpy as np
    import tensorflow as tf

    if library == "tf_keras":
        import tf_keras as k
    else:
        import keras as k
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 8)).astype("float32")
    y = rng.integers(0, 3, EXAMPLES)
    k.utils.set_random_seed(1)

    def compiled() -> Any:
        model = k.Sequential(
            [
                k.layers.Input((8,)),
                k.layers.Dense(16, activation="tanh"),
                *case.layers(k),
                k.layers.Dense(3),
            ]
        )
        loss = case.loss
        if isinstance(loss, str):
            loss = k.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=loss)
        model.compile(case.optimizer(k), loss, metrics=["accuracy"], **case.compile)
        return model

    devices = [f"CPU:{i}" for i in range(replicas)]
    arguments = {
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "shuffle": False,
        "verbose": 0,
        **case.fit(rng),
    }
    if library == "kfit":
        import kfit

        strategy = kfit.distribute.Mirrored(devices) if replicas > 1 else "one_device"
        model = compiled()
        kfit.Trainer(model, strategy).fit(x, y, **arguments)
    elif replicas > 1:
        # Reduce on one device, as kfit does: with TensorFlow's default the process aborts if it
        # uses two strategies one after the other.
        ops = tf.distribute.ReductionToOneDevice()
        with tf.distribute.MirroredStrategy(devices, cross_device_ops=ops).scope():
            model = compiled()
        model.fit(x, y, **arguments)
    else:
        model = compiled()
        model.fit(x, y, **arguments)
    return model.get_weights()


def column(library: str, replicas: int) -> dict[str, str]:
    """The largest difference of a weight from training on one device, or an error, by case."""
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(max(REPLICAS))]
    )
    results = {}
    for case in CASES:
        try:
            one = weights_after(library, case, 1)
        except Exception as error:
            results[case.name] = f"not on 1 device ({type(error).__name__})"
            continue
        try:
            several = weights_after(library, case, replicas)
        except Exception as error:
            results[case.name] = f"crash ({type(error).__name__})"
            continue
        difference = max(
            float(np.max(np.abs(a - b))) for a, b in zip(one, several, strict=True) if a.size
        )
        results[case.name] = f"{difference:.1g}"
    return results


def table() -> str:
    """Runs all columns and returns a Markdown table."""
    columns: dict[str, dict[str, str]] = {}
    for library in LIBRARIES:
        for replicas in REPLICAS:
            command = [sys.executable, "-m", "benchmarks.exactness", library, str(replicas)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
            head = f"{library}, {replicas} replicas"
            columns[head] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    lines = [
        "| case | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for case in CASES:
        cells = [results.get(case.name, "process died") for results in columns.values()]
        lines.append(f"| {case.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(column(sys.argv[1], int(sys.argv[2]))))
    else:
        print(table())
