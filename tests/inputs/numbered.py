"""Batches that are numbered, so that a test sees which ones were read."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import keras
import numpy as np

import kfit
from kfit.distribute import OneDevice
from kfit.inputs import Batches, Cursor, as_batches


def batches_of(x: Any, **options: Any) -> Batches:
    return as_batches(x, strategy=OneDevice(), **options)


def read(batches: Batches, epoch: int = 0, step: int = 0) -> list[Any]:
    """The batches of an epoch, taken two at a time as the loops take them."""
    seen: list[Any] = []

    def take(run: Any, steps: int) -> tuple[int, None]:
        elements = list(islice(run.iterator, steps))
        seen.extend(run.layout.template.pack(element) for element in elements)
        return len(elements), None

    batches.on_epoch_begin()
    cursor = Cursor(batches, epoch, step)
    while cursor.more:
        cursor.take(take, 2)
    batches.on_epoch_end()
    return seen


def numbers(seen: list[Any]) -> list[int]:
    """Which batches these are; every value of a batch is its number."""
    return [int(np.asarray(batch[0]).flat[0]) for batch in seen]


def batch(number: int, examples: int = 2) -> tuple[Any, Any]:
    return np.full((examples, 1), number), np.full((examples,), number)


def generated(count: int) -> Iterator[Any]:
    return (batch(number) for number in range(count))


class Shows(keras.Model):
    """Shows the number of each batch as a log."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.scale(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"number": keras.ops.mean(keras.ops.cast(data[0], "float32"))}


def shows(tiny: Any, replicas: int) -> Any:
    model = Shows()
    model.compile("sgd", "mse")
    return kfit.Trainer(model, tiny.strategy(replicas), seed=1)
