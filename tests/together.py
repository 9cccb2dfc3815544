"""Threads that stand for the workers of a cluster, and exchange small values."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from kfit.distribute.host_collectives import HostCollectives


class Together(HostCollectives):
    """The collectives of one of several threads, each of which stands for a worker."""

    is_alone = False

    def __init__(self, index: int, barrier: threading.Barrier, rows: dict[int, Any]) -> None:
        self._index, self._barrier, self._rows = index, barrier, rows

    def all_gather(self, own: Any) -> np.ndarray:
        self._rows[self._index] = own
        self._barrier.wait(10)
        table = np.asarray([self._rows[index] for index in sorted(self._rows)], "float64")
        self._barrier.wait(10)
        return table


def raised_by(workers: int, call: Callable[[int, Together], Any]) -> list[str]:
    """What each worker raises as a ValueError; empty if it raises nothing.

    The function is called in a thread for each worker, with the worker's index.
    """
    barrier, rows = threading.Barrier(workers), dict[int, Any]()
    raised = ["it has not ended"] * workers

    def run(index: int) -> None:
        try:
            call(index, Together(index, barrier, rows))
        except ValueError as error:
            raised[index] = str(error)
        else:
            raised[index] = ""

    threads = [threading.Thread(target=run, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return raised
