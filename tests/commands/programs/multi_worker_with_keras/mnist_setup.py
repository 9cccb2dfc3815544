"""The data and the model of the tutorial: a small convolutional network for images of digits.

The tutorial downloads MNIST. Here the digits that come with kfit are enlarged to 28 x 28 pixels,
and the seed is fixed, so that a test can compare two runs.
"""

import numpy as np
import tensorflow as tf

from kfit.datasets import digits

tf.keras.utils.set_random_seed(1)


def load_data():
    (x_train, y_train), test = digits.load_data()
    enlarged = np.kron(x_train, np.ones((1, 3, 3))) * 255 / 16
    return (np.pad(enlarged, [(0, 0), (2, 2), (2, 2)]).astype("uint8"), y_train), test


def mnist_dataset(batch_size):
    (x_train, y_train), _ = load_data()  # tf.keras.datasets.mnist.load_data()
    x_train = x_train / np.float32(255)
    y_train = y_train.astype(np.int64)
    slices = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    return slices.shuffle(60000).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model
