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
        rows: Any = slice(index * self.batch_size, (index + 1) * self.batch_size)
        if self.shuffles:
            rows = self.order[rows]
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


class DataLoader:
    """A loader like torch's: it can be iterated again, in another order each time if it is to."""

    def __init__(self, arrays: Any, batch_size: int, shuffles: bool) -> None:
        self.arrays = arrays
        self.batch_size = batch_size
        self.shuffles = shuffles

    def __len__(self) -> int:
        return -(-len(keras.tree.flatten(self.arrays)[0]) // self.batch_size)

    def permuted(self) -> Any:
        examples = len(keras.tree.flatten(self.arrays)[0])
        return np.random.permutation(examples) if self.shuffles else np.arange(examples)

    def batch(self, order: Any, index: int) -> Any:
        rows = order[index * self.batch_size : (index + 1) * self.batch_size]
        return keras.tree.map_structure(lambda array: array[rows], self.arrays)

    def __iter__(self) -> Iterator[Any]:
        order = self.permuted()
        for index in range(len(self)):
            yield self.batch(order, index)


class StatefulLoader(DataLoader):
    """A loader like torchdata's, which says where it is; a pass after that goes on from there."""

    def __init__(self, arrays: Any, batch_size: int, shuffles: bool) -> None:
        super().__init__(arrays, batch_size, shuffles)
        self.draw = np.random.default_rng(6)
        self.order = np.arange(0)
        self.index = 0
        self.goes_on = False

    def __iter__(self) -> Iterator[Any]:
        if not self.goes_on:
            size = len(keras.tree.flatten(self.arrays)[0])
            self.order = self.draw.permutation(size) if self.shuffles else np.arange(size)
            self.index = 0
        self.goes_on = False
        while self.index < len(self):
            self.index += 1
            yield self.batch(self.order, self.index - 1)

    def state_dict(self) -> dict[str, Any]:
        draw = self.draw.bit_generator.state
        return {"order": self.order.tolist(), "index": self.index, "draw": draw}

    def load_state_dict(self, state: Any) -> None:
        self.order, self.index = np.array(state["order"]), state["index"]
        self.draw.bit_generator.state = state["draw"]
        self.goes_on = 0 < self.index < len(self)


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


def aligned(array: Any) -> Any:
    """The array in memory that TensorFlow shares: it begins at a multiple of 64 bytes."""
    array = np.asarray(array)
    memory = np.empty(array.nbytes + 64, "uint8")
    begin = -memory.ctypes.data % 64
    found = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def shaken(array: Any, digits: float) -> Any:
    """The array with other last digits, of about that relative size, if it has floats."""
    if array.dtype.kind != "f":
        return array
    return array * (1 + digits * np.random.default_rng(1).normal(size=array.shape))
