"""Processes that make the batches of a PyDataset with `use_multiprocessing=True`.

They are spawned, since a forked process would inherit locks of TensorFlow's threads. Usually a
spawned process runs the program's file again, which fails in programs without
`if __name__ == "__main__":`. Here it does not run the file: the data set is pickled by value, with
all that it refers to in the program's file. Each batch is made by a copy of the data set from the
beginning of the pass, with random generators seeded for this batch. So a batch does not depend on
which process makes it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import cloudpickle
import keras
import numpy as np


class Processes:
    """A pool of processes that make batches. It is kept from pass to pass.

    Args:
        workers: The number of processes.
    """

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(workers, mp_context=context)
        with _without_program():
            for _ in range(workers):  # each starts a process, since none is idle yet
                self._executor.submit(os.getpid)

    def batches(
        self, dataset: keras.utils.PyDataset, indices: Iterator[int], ahead: int, key: Any
    ) -> Iterator[Any]:
        """Yields the batches of a pass in order.

        Args:
            dataset: The data set; its present state is copied to the processes.
            indices: The indices of the batches.
            ahead: The number of batches that are made ahead.
            key: A tuple of numbers. With the index of a batch, it seeds the random generators.
        """
        packed = _packed(dataset)
        tasks = ((packed, index, (*key, index)) for index in indices)
        return in_order(self._executor, _made, tasks, ahead)

    def end(self) -> None:
        """Ends the processes, without waiting for batches that are being made."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def in_order(
    executor: Executor, get: Callable[[Any], Any], tasks: Iterator[Any], ahead: int
) -> Iterator[Any]:
    """Yields the results of `get` in the order of `tasks`; computes up to `ahead` in advance."""
    pending: deque[Future[Any]] = deque(executor.submit(get, task) for task in islice(tasks, ahead))
    try:
        while pending:
            result = pending.popleft().result()
            for task in islice(tasks, 1):
                pending.append(executor.submit(get, task))
            yield result
    finally:
        for future in pending:
            future.cancel()


@contextmanager
def _without_program() -> Iterator[None]:
    """A context in which spawned processes do not run the program's file (`__main__`) again."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def _packed(dataset: keras.utils.PyDataset) -> bytes:
    """Pickles a data set by value."""
    try:
        return cloudpickle.dumps(dataset)
    except Exception as error:
        raise ValueError(
            f"`x`, a {type(dataset).__name__} with use_multiprocessing=True, cannot be sent to "
            f"other processes: {error}. Expected: what can be pickled. Open files and the like in "
            "`__getitem__`, or use threads: use_multiprocessing=False."
        ) from error


def _made(task: tuple[bytes, int, tuple[int, ...]]) -> Any:
    """Makes a batch; runs in a process of the pool, whose random generators it seeds."""
    packed, index, key = task
    seed = np.random.SeedSequence(key).generate_state(4)
    dataset = pickle.loads(packed)  # noqa: S301  written by our own parent, for us
    np.random.seed(seed)
    random.seed(int(seed[0]))
    return dataset[index]
