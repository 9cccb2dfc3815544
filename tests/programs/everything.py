"""A training with everything that has a state, to be killed; prints a digest when it ends.

Usage: everything.py STRATEGY FOLDER [--epochs N] [--save-freq K] [--pause SECONDS] ...

What each epoch saw is in its History: `off` adds up, over all examples, how many times more or less
than once an example was seen. The chief prints the figures of the training, too.
"""

import argparse
import hashlib
import json
import os
import random
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit

BATCH_SIZE = 16
STRATEGIES = ["one_device", "mirrored", "multi_worker", "parameter_server"]


def frequency(text: str) -> Any:
    return text if text == "auto" else int(text)


parser = argparse.ArgumentParser()
parser.add_argument("strategy", choices=STRATEGIES)
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--examples", type=int, default=150)
parser.add_argument("--width", type=int, default=12, help="of the hidden layer")
parser.add_argument("--save-freq", type=frequency, default=5, help="a number of steps, or auto")
parser.add_argument("--pause", type=float, default=0.0, help="seconds in a hook after each step")
parser.add_argument(
    "--step-seconds",
    type=float,
    help="seconds in each step itself; then no hook follows the steps, and many run in one call",
)
options = parser.parse_args()
is_exact = options.strategy != "parameter_server"

if options.strategy == "mirrored":
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [one, one]
    )
    strategy: Any = kfit.distribute.Mirrored(["CPU:0", "CPU:1"])
else:
    strategy = options.strategy


class Off(keras.metrics.Metric):
    """How many times more or less than once the examples were seen, by the second column of y."""

    def __init__(self) -> None:
        super().__init__(name="off")
        self.seen = self.add_weight(name="seen", shape=(options.examples,), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        numbers = tf.one_hot(tf.cast(y_true[:, 1], "int32"), options.examples)
        self.seen.assign_add(tf.reduce_sum(numbers, axis=0))

    def result(self) -> Any:
        return tf.reduce_sum(tf.abs(self.seen - 1.0))


class Waits(keras.layers.Layer):
    """Waits in each step of training, as a host waits for its accelerator, and changes nothing."""

    def call(self, x: Any, training: bool = False) -> Any:
        if not training or options.step_seconds is None:
            return x
        # The pause is made by an operation of TensorFlow, since Python functions cannot run on the
        # workers of asynchronous training.
        one = tf.data.Dataset.range(1)
        paused = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(one),
            sleep_microseconds=tf.constant(int(options.step_seconds * 1e6), "int64"),
            output_types=[tf.int64],
            output_shapes=[()],
        )
        waited = tf.data.experimental.from_variant(paused, one.element_spec)
        with tf.control_dependencies([waited.reduce(tf.constant(0, "int64"), tf.add)]):
            return tf.identity(x)


def loss(y_true: Any, y_pred: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y_true[:, 0], y_pred, from_logits=True)


class Slow(keras.callbacks.Callback):
    """Takes its time at each step, and writes down which steps were taken."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if options.pause:
            time.sleep(options.pause)
        if trainer.is_chief:
            with open(os.path.join(options.folder, "steps"), "a") as file:
                file.write(f"{int(model.optimizer.iterations)}\n")


class Draws(keras.callbacks.Callback):
    """Draws from the global generators of Python and NumPy at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        random.random()
        np.random.random()


keras.utils.set_random_seed(7)
draw = np.random.default_rng(0)
x = draw.normal(size=(options.examples, 6)).astype("float32")
y = np.stack([draw.integers(0, 3, options.examples), np.arange(options.examples)], axis=1)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((6,)),
        Waits(),
        layers.Dense(options.width),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dropout(0.3),
        layers.Dense(3),
    ]
)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=[Off()])
trainer = kfit.Trainer(model, strategy, seed=5)
# All that is written is the chief's: at the end there must be no folder of this name.
folder = options.folder if trainer.is_chief else os.path.join(options.folder, "not-the-chief")
callbacks = [
    keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, factor=0.7),
    keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
    kfit.callbacks.TensorBoard(os.path.join(folder, "logs"), update_freq=20),
    kfit.callbacks.ModelCheckpoint(
        os.path.join(folder, "best.weights.h5"), save_best_only=True, save_weights_only=True
    ),
    kfit.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=options.save_freq),
    Draws(),
]
if options.step_seconds is None:
    callbacks.append(Slow())
fitted = trainer.fit(
    x,
    y,
    batch_size=BATCH_SIZE,
    epochs=options.epochs,
    verbose=0,
    validation_data=(x[:40], y[:40]),
    callbacks=callbacks,
)
history = fitted.history
assert not is_exact or not any(history["off"]), "an example was lost or repeated"
values = [v.numpy().tobytes() for v in [*model.variables, *model.optimizer.variables]]
drawn = random.random(), float(np.random.random())
told = repr((history, drawn)).encode()
digest = hashlib.sha256(b"".join([*values, told])).hexdigest()
if trainer.is_chief:
    report = trainer.report()
    figures = {
        "epochs": fitted.epoch,
        "off": history["off"],
        "loss": history["loss"],
        "steps": report.total_steps,
        "step_seconds": report.goodput * report.total_seconds,
        "total_seconds": report.total_seconds,
        "snapshot_bytes": report.snapshot_bytes // max(1, report.snapshots),
    }
    print(f"FIGURES {json.dumps(figures)}", flush=True)
print(f"\nDIGEST {digest} EPOCHS {len(fitted.epoch)}", flush=True)
