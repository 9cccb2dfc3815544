"""One program with many kinds of state; kills itself at the step that KILL_AT names.

Arguments: the directory of the backup. It prints a digest of all it has learned and counted.
"""

import hashlib
import os
import random
import signal
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit

keras.utils.set_random_seed(11)
EXAMPLES = 40


class Rows(keras.utils.PyDataset):
    """Shuffles itself, and draws from a generator of its own and from a global one."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(0)
        self.x = draw.normal(size=(EXAMPLES, 3)).astype("float32")
        self.y = self.x @ draw.normal(size=(3, 1))
        self.indices = np.arange(EXAMPLES)
        self.draw = random.Random(3)
        self.on_epoch_end()

    def __len__(self) -> int:
        return EXAMPLES // 4

    def __getitem__(self, index: int) -> Any:
        rows = self.indices[4 * index : 4 * index + 4]
        noise = np.random.normal(0, 0.1, (4, 3)) * self.draw.random()
        return self.x[rows] + noise, self.y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.indices)


class Noise(keras.layers.Layer):
    """Keeps a generator and a count that Keras does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = tf.random.Generator.from_seed(5)
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        self.calls.assign_add(1.0)
        return x + 0.01 * self.calls * self.generator.normal(tf.shape(x))


class Counts(keras.callbacks.Callback):
    """Remembers without saying so."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.draw = np.random.default_rng(4)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"] * self.draw.random())
        if os.environ.get("KILL_AT") == str(int(self.model.optimizer.iterations)):
            os.kill(os.getpid(), signal.SIGKILL)


layers = keras.layers
model = keras.Sequential([keras.Input((3,)), Noise(), layers.Dense(4, "tanh")])
model.add(layers.Dropout(0.3))
model.add(layers.Dense(1))
model.compile("adam", "mse")
blur = layers.GaussianNoise(0.1, seed=3)
pairs = tf.data.Dataset.from_tensor_slices((Rows().x, Rows().y)).batch(8)
counts = Counts()
kfit.fit(
    model,
    Rows(),
    epochs=3,
    verbose=0,
    strategy="one_device",
    validation_data=pairs.map(lambda x, y: (blur(x, training=True), y)),
    callbacks=[counts, kfit.callbacks.BackupAndRestore(sys.argv[1], save_freq=3)],
)
told = (counts.losses, counts.draw.bit_generator.state, model.history.history)
content = b"".join(np.asarray(w).tobytes() for w in model.get_weights()) + repr(told).encode()
print("DIGEST", hashlib.sha256(content).hexdigest(), flush=True)
