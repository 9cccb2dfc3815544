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

import atexit
import os
import queue
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any

import cloudpickle
import keras

from kfit.inputs.batch_maker import BatchMaker
from kfit.inputs.batch_process import SAFE_PATH, Task, set_safe_path


class Processes:
    """A pool of processes that make batches, which is kept from epoch to epoch.

    As many threads of this process wait for the batches. `ProcessPoolExecutor` would not do: it
    waits forever for a process that dies while it sends a batch, its processes outlive a parent
    that was killed, it ends them by SIGTERM, which they must be able to survive here, and it does
    not tell how a process has died.

    Args:
        workers: The number of processes.
    """

    def __init__(self, workers: int) -> None:
        variable = os.environ.get(SAFE_PATH)
        with _without_program(), _without_current_folder():
            self._makers = [BatchMaker(variable) for _ in range(workers)]
        self._idle: queue.SimpleQueue[BatchMaker] = queue.SimpleQueue()
        for maker in self._makers:
            self._idle.put(maker)
        self._threads = ThreadPoolExecutor(workers)
        self._has_ended = False
        _POOLS.add(self)

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
        tasks = (Task(packed, index, (*key, index)) for index in indices)
        return in_order(self._threads, partial(self._made, _named(dataset)), tasks, ahead)

    def end(self) -> None:
        """Ends the processes, without waiting for batches that are being made."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.hang_up()
        threading.Thread(target=_join, args=(self._makers,)).start()

    def hang_up(self) -> None:
        """Lets each process end as soon as it has made its batch."""
        self._has_ended = True
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().hang_up()

    def _made(self, of: str, task: Task) -> Any:
        # There are as many threads as processes, so the queue is empty only after the end.
        maker = self._idle.get_nowait()
        try:
            return maker.make(task, of)
        finally:
            self._idle.put(maker)
            if self._has_ended:
                self.hang_up()


_POOLS: weakref.WeakSet[Processes] = weakref.WeakSet()


@atexit.register
def _hang_up() -> None:
    """Lets the processes of pools that nobody has ended end with the program.

    Python waits for them in a function that `multiprocessing` has registered. The imports above
    have loaded it, so this one was registered later, and is called before.
    """
    for pool in list(_POOLS):
        pool.hang_up()


def _join(makers: list[BatchMaker]) -> None:
    for maker in makers:
        maker.join()


def in_order(
    executor: Executor, get: Callable[[Any], Any], tasks: Iterator[Any], ahead: int
) -> Iterator[Any]:
    """Calls a function in parallel, and yields the results in the order of the arguments.

    Args:
        executor: The threads that call the function.
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
    before = os.environ.get(SAFE_PATH)
    set_safe_path("1")
    try:
        yield
    finally:
        set_safe_path(before)


def _named(dataset: keras.utils.PyDataset) -> str:
    """Returns how messages name a data set whose batches are made by processes."""
    return f"`x`, a {type(dataset).__name__} with use_multiprocessing=True"


def _packed(dataset: keras.utils.PyDataset) -> bytes:
    """Pickles a data set, with all that it refers to in the program's file.

    Raises:
        ValueError: If the data set cannot be pickled.
    """
    try:
        return cloudpickle.dumps(dataset)
    except Exception as error:
        raise ValueError(
            f"{_named(dataset)}, cannot be sent to other processes: {error}. Expected: what can be "
            "pickled. Open files and the like in `__getitem__`, or use threads: "
            "use_multiprocessing=False."
        ) from error
