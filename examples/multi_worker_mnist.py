"""TensorFlow's multi-worker tutorial with `kfit.fit` instead of `model.fit`.

kfit run --workers 2 examples/multi_worker_mnist.py                  downloads MNIST
kfit run --workers 2 examples/multi_worker_mnist.py --data digits    needs no network
"""

import argparse
import sys

import keras
import numpy as np
import tensorflow as tf

import kfit

PER_WORKER_BATCH_SIZE = 64


def load(name: str) -> list:
    """Returns (x, y) to train on and to test with: MNIST, or UCI's digits scaled up to 28x28."""
    if name == "mnist":
        return [(x / np.float32(255), y) for x, y in kfit.datasets.mnist.load_data()]
    parts = [(x / np.float32(16), y) for x, y in kfit.datasets.digits.load_data()]
    return [(np.pad(x.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2))), y) for x, y in parts]


def build_and_compile_cnn_model() -> keras.Model:
    """The tutorial's model. With kfit it need not be built in the scope of a strategy."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((28, 28)), layers.Reshape((28, 28, 1))])
    model.add(layers.Conv2D(32, 3, activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(128, activation="relu"))
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=keras.optimizers.SGD(0.001), metrics=["accuracy"])
    return model


parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=("mnist", "digits"), default="mnist")
parser.add_argument("--steps", type=int, default=70, help="steps of each of the 3 epochs")
options = parser.parse_args()
try:
    train, test = load(options.data)
except kfit.datasets.download.DownloadError as error:
    sys.exit(f"{error}\nWith `--data digits` this example trains on those.")

strategy = kfit.distribute.as_strategy("auto")
if options.data == "digits" and strategy.is_chief:
    print("Training on UCI's 8x8 digits, scaled up to 28x28. They are not MNIST.")
batch_size = PER_WORKER_BATCH_SIZE * strategy.num_workers  # the global batch size
dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(60000).repeat().batch(batch_size)
validation = tf.data.Dataset.from_tensor_slices(test).batch(batch_size)
model = build_and_compile_cnn_model()
fit = {"epochs": 3, "steps_per_epoch": options.steps, "validation_data": validation}
kfit.fit(model, dataset, strategy=strategy, **fit)
