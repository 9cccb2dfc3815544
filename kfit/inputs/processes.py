"""Processes that make the batches of a PyDataset with `use_multiprocessing=True`.

The processes are spawned, since a forked process would inherit locks of TensorFlow's threads.
Usually a spawned process runs the program's file again, which fails in programs without `if
__name__ == "__main__":`. kfit's processes do not run the file: the data set is pickled by value,
with all that it refers to in the program's file.

The data set is pickled when kfit begins to read it, usually at the beginning of an epoch. A process
makes each batch with a fresh copy from this pickle, after seeding the random generators of Python,
NumPy and, if the data set imports it, torch for this batch. So a batch does not depend on which
process makes it.
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

_SAFE_PATH = "PYTHONSAFEPATH"


class Processes:
    """A pool of processes that make batches, which is kept from epoch to epoch.

    Args:
        workers: The number of processes.
    """

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        variable = os.environ.get(_SAFE_PATH)
        with _without_program(), _without_current_folder():
            self._executor = ProcessPoolExecutor(
                workers, mp_context=context, initializer=_set_safe_path, initargs=(variable,)
            )
            for _ in range(workers):  # each starts a process, since none is idle yet
                self._executor.submit(os.getpid)

    def batches(
        self, dataset: keras.utils.PyDataset, indices: Iterator[int], ahead: int, key: Any
    ) -> Iterator[Any]:
        """Makes batches in the processes, and yields them in the order of their indices.

        Args:
            dataset: The data set. A copy of its present state is sent to the processes.
            indices: The indices of the batches, in the wanted order.
            ahead: The number of batches that are made before they are requested.
            key: A tuple of numbers, such as the seed and the number of the epoch. Before a process
                makes a batch, it seeds its random generators with these numbers and the index of
                the batch.
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
    """Calls a function in parallel, and yields the results in the order of the arguments.

    Args:
        executor: The threads or processes that call the function.
        get: The function.
        tasks: The arguments, one for each call.
        ahead: The number of calls that are begun before their results are requested.
    """
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
    """A context in which new processes do not run the program's file (`__main__`) again."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """A context in which new processes import no module from the current folder while they start.

    They are started by `python -c`, which looks there first, so that a file `pickle.py` would be
    run in place of Python's own module. As soon as they have started, they get the path of this
    process. Before Python 3.11 there is no such switch.
    """
    before = os.environ.get(_SAFE_PATH)
    _set_safe_path("1")
    try:
        yield
    finally:
        _set_safe_path(before)


def _set_safe_path(text: str | None) -> None:
    """Sets or deletes the environment variable that keeps the current folder off the path."""
    if text is None:
        os.environ.pop(_SAFE_PATH, None)
    else:
        os.environ[_SAFE_PATH] = text


def _packed(dataset: keras.utils.PyDataset) -> bytes:
    """Pickles a data set, with all that it refers to in the program's file.

    Raises:
        ValueError: If the data set cannot be pickled.
    """
    try:
        return cloudpickle.dumps(dataset)
    except Exception as error:
        raise ValueError(
            f"`x`, a {type(dataset).__name__} with use_multiprocessing=True, cannot be sent to "
            f"other processes: {error}. Expected: what can be pickled. Open files and the like in "
            "`__getitem__`, or use threads: use_multiprocessing=False."
        ) from error


def _made(task: tuple[bytes, int, tuple[int, ...]]) -> Any:
    """Makes a batch in a process of the pool, after seeding that process's random generators.

    Args:
        task: The pickled data set, the index of the batch, and numbers to seed the generators with.
    """
    packed, index, key = task
    seed = np.random.SeedSequence(key).generate_state(4)
    dataset = pickle.loads(packed)  # noqa: S301  written by our own parent, for us
    np.random.seed(seed)
    random.seed(int(seed[0]))
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(seed[0]))
    return dataset[index]
