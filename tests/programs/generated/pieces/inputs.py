"""Data as people hand them over: a PyDataset and a generator of their own."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    """Batches of arrays; `order` of the examples changes in `on_epoch_end` if it is to."""

    def __init__(self, arrays: Any, batch_size: int, shuffles: str = "", workers: int = 1) -> None:
        super().__init__(workers=workers, use_multiprocessing=False)
        self.arrays = arrays
        self.batch_size = batch_size
        self.shuffles = shuffles
        self.order = np.arange(len(keras.tree.flatten(arrays)[0]))
        self.draw = np.random.default_rng(3)

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return keras.tree.map_structure(lambda array: array[rows], self.arrays)

    def on_epoch_end(self) -> None:
        if self.shuffles == "own":
            self.order = self.draw.permutation(len(self.order))
        elif self.shuffles == "global":
            np.random.shuffle(self.order)
        elif self.shuffles == "roll":
            self.order = np.roll(self.order, 5)

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.tolist(), "draw": self.draw.bit_generator.state}

    def load_state_dict(self, state: Any) -> None:
        self.order = np.array(state["order"])
        self.draw.bit_generator.state = state["draw"]


def batches_of(arrays: Any, batch_size: int, endless: bool = True) -> Iterator[Any]:
    """Yields batches of arrays, again and again if it is endless."""
    examples = len(keras.tree.flatten(arrays)[0])
    while True:
        for start in range(0, examples, batch_size):
            rows = slice(start, start + batch_size)
            yield keras.tree.map_structure(lambda array, rows=rows: array[rows], arrays)
        if not endless:
            return


def everything(*batch: Any) -> bool:
    """Keeps every batch: TensorFlow no longer knows then how many there are."""
    return True
