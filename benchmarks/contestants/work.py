"""The work that all contestants do: the models, the data and their sizes."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FEATURES, CLASSES = 64, 10


class Size(NamedTuple):
    """The amount of work.

    Attributes:
        rows: The number of examples of an epoch.
        batch_size: The global batch size.
        epochs: The number of epochs that are timed, after one to warm up; of "growth", rounds.
    """

    rows: int
    batch_size: int
    epochs: int

    @property
    def steps(self) -> int:
        """The number of steps of an epoch."""
        return self.rows // self.batch_size


SIZES = {
    "mlp": Size(64_000, 32, 5),
    "cnn": Size(5_120, 128, 3),
    "big": Size(8_000_000, 1024, 2),
    "resnet": Size(8, 8, 1),
    "growth": Size(500_000, 1024, 10),
}
QUICK = {
    "mlp": Size(640, 32, 1),
    "cnn": Size(256, 128, 1),
    "big": Size(4_096, 1024, 1),
    "resnet": Size(8, 8, 1),
    "growth": Size(4_096, 1024, 10),
}
CALLS = 100
"""The number of timed calls, if one call is the unit of work."""


def size_of(work: str) -> Size:
    """The size of `work`, a key of `SIZES`; a small one if the variable QUICK is set."""
    return (QUICK if os.environ.get("QUICK") else SIZES)[work]


def data(work: str) -> tuple[np.ndarray, np.ndarray]:
    """Random examples and classes.

    Returns:
        float32 of shape `(rows, 28, 28, 1)` for "cnn", `(rows, 32, 32, 3)` for "resnet" or
        `(rows, 64)` for the others (2 GB for "big"), and int64 of shape `(rows,)`.
    """
    draw = np.random.default_rng(0)
    rows = size_of(work).rows
    shape = {"cnn": (28, 28, 1), "resnet": (32, 32, 3)}.get(work, (FEATURES,))
    return draw.random((rows, *shape), "float32"), draw.integers(0, CLASSES, rows).astype("int64")


def in_a_file(array: np.ndarray) -> np.ndarray:
    """The same array as an `np.memmap`; its file is gone when the process has ended."""
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, array)
        file.flush()
        return np.load(file.name, mmap_mode="r")


def model(keras: Any, work: str) -> Any:
    """A compiled model of Keras 3 or tf_keras.

    All but "cnn" and "resnet" have 64 inputs and 10 outputs, "mlp" also 128 hidden units; "cnn" is
    the model of TensorFlow's multi-worker tutorial, with 2.77 million parameters; "resnet" is the
    one of `keras.applications` for images of 32 x 32, or its first block if the variable QUICK is
    set.
    """
    layers = keras.layers
    keras.utils.set_random_seed(1)
    if work == "mlp":
        stack = [keras.Input((FEATURES,)), layers.Dense(128, activation="relu")]
        optimizer = keras.optimizers.Adam()
    elif work in ("big", "growth"):
        stack = [keras.Input((FEATURES,))]
        optimizer = keras.optimizers.SGD()
    elif work == "resnet":
        stack = [keras.Input((32, 32, 3)), _resnet(keras)]
        optimizer = keras.optimizers.SGD(0.001)
    else:
        stack = [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
        ]
        optimizer = keras.optimizers.SGD(0.001)
    made = keras.Sequential([*stack, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return made


def _resnet(keras: Any) -> Any:
    whole = keras.applications.ResNet50(
        include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
    )
    if not os.environ.get("QUICK"):
        return whole
    end = keras.layers.GlobalAveragePooling2D()(whole.get_layer("conv2_block1_out").output)
    return keras.Model(whole.input, end)


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def peak_memory() -> float:
    """The most memory that this process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tell(value: float) -> None:
    """Writes the seconds, or MB, and this process's peak memory to the file that RESULT names."""
    with open(os.environ["RESULT"], "w") as file:
        json.dump({"value": value, "memory": peak_memory()}, file)
    sys.stdout.flush()
