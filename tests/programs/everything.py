"""A training with everything that has a state, to be killed; prints a digest when it ends.

Usage: everything.py STRATEGY FOLDER [--epochs N] [--save-freq K] [--pause SECONDS]

What each epoch saw is in its History: the sum of all examples' numbers, and of their squares.
"""

import argparse
import hashlib
import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit

EXAMPLES, BATCH_SIZE = 150, 16

parser = argparse.ArgumentParser()
parser.add_argument("strategy", choices=["one_device", "mirrored", "multi_worker"])
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--save-freq", type=int, default=5)
parser.add_argument("--pause", type=float, default=0.0)
options = parser.parse_args()

if options.strategy == "mirrored":
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [one, one]
    )
    strategy: Any = kfit.distribute.Mirrored(["CPU:0", "CPU:1"])
else:
    strategy = options.strategy


class Numbers(keras.metrics.Metric):
    """Adds up a power of the numbers of the examples seen; they are the second column of y."""

    def __init__(self, power: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.power = power
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_sum(tf.cast(y_true[:, 1], "float32") ** self.power))

    def result(self) -> Any:
        return self.total + 0


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


keras.utils.set_random_seed(7)
draw = np.random.default_rng(0)
x = draw.normal(size=(EXAMPLES, 6)).astype("float32")
y = np.stack([draw.integers(0, 3, EXAMPLES), np.arange(EXAMPLES)], axis=1)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(12),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dropout(0.3),
        layers.Dense(3),
    ]
)
model.compile(
    keras.optimizers.Adam(0.01), loss, metrics=[Numbers(1, name="sum"), Numbers(2, name="squares")]
)
trainer = kfit.Trainer(model, strategy, seed=5)
folder = options.folder
# Nobody but the chief needs to see the directory.
backups = os.path.join(folder, "backup") if trainer.is_chief else "/nonexistent/backup"
callbacks = [
    keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, factor=0.7),
    keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
    kfit.callbacks.ModelCheckpoint(
        os.path.join(folder, "best.weights.h5"), save_best_only=True, save_weights_only=True
    ),
    kfit.callbacks.BackupAndRestore(backups, save_freq=options.save_freq),
    Slow(),
]
history = trainer.fit(
    x,
    y,
    batch_size=BATCH_SIZE,
    epochs=options.epochs,
    verbose=0,
    validation_data=(x[:40], y[:40]),
    callbacks=callbacks,
).history
for epoch in range(len(history["sum"])):
    assert history["sum"][epoch] == np.arange(EXAMPLES).sum(), "an example was lost or repeated"
    assert history["squares"][epoch] == (np.arange(EXAMPLES) ** 2).sum()
values = [v.numpy().tobytes() for v in [*model.variables, *model.optimizer.variables]]
digest = hashlib.sha256(b"".join(values) + repr(history).encode()).hexdigest()
print(f"\nDIGEST {digest} EPOCHS {len(history['sum'])}", flush=True)
