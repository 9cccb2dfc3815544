"""Reads batches ahead of training, and knows the state their source was in after each.

tf.data draws batches in a thread of its own, some before training takes them. A snapshot must hold
the state after the last batch that was *trained on*: of the random generators that drawing moves,
and of what the source itself remembers. So each batch is drawn with a mark of both, and marks are
dropped as training takes the batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kfit.objects import Generators
from kfit.objects.values import fingerprint


class Mark(NamedTuple):
    """The state after a batch was drawn.

    Attributes:
        generators: The global random generators.
        own: What the source itself remembers; None where it is not asked.
        print: Tells this batch from another; 0 before the first.
    """

    generators: Generators
    own: Any
    print: int


class Reader:
    """An iterator over batches.

    Args:
        batches: What is read.
        own: Reads what the source itself remembers, after each batch; None for a reader that keeps
            no marks, since nobody will ask.
        turn: A number that changes whenever training begins or ends an execution; odd within one,
            where no hook can draw from a generator.

    Attributes:
        mark: The state after the last batch that was taken.
        draws: Whether drawing a batch has moved a global generator.
    """

    def __init__(
        self, batches: Iterator[Any], own: Callable[[], Any] | None, turn: Callable[[], int]
    ) -> None:
        self._batches = batches
        self._own = own
        self._turn = turn
        self._drawn: deque[Mark] = deque()
        self._lock = threading.RLock()
        self._stopped = False
        self.draws = False
        self.mark = None if own is None else Mark(Generators.now(), own(), 0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._batches) if self._own is None else self._marked(self._own)

    def took(self, batches: int) -> None:
        """Training has taken so many more."""
        for _ in range(batches if self._own is not None else 0):
            self.mark = self._drawn.popleft()

    def stop(self, wait: bool = True) -> None:
        """Draws no more; `wait` for a batch that is being drawn in another thread."""
        self._stopped = True
        if wait:
            with self._lock:
                pass

    @contextmanager
    def held(self) -> Iterator[Mark | None]:
        """Within it the state after the last batch that was taken is known, and stays.

        It is the mark where more was drawn than taken; None where the source and the generators are
        as they were after that batch. Nothing is drawn then until the block is left: a batch that a
        thread is drawing is waited for, as it has moved the source already.
        """
        if self._drawn:
            yield self.mark
            return
        with self._lock:
            yield self.mark if self._drawn else None

    def _marked(self, own: Callable[[], Any]) -> Any:
        turn, before = self._turn(), Generators.now()
        batch = next(self._batches)
        after = Generators.now()
        alone = threading.current_thread() is threading.main_thread() or turn % 2 == 1
        if after != before and alone and turn == self._turn():
            self.draws = True
        self._drawn.append(Mark(after, own(), print_of(batch, rows=1)))
        return batch


def print_of(batch: Any, rows: int | None = None) -> int:
    """A number that is another for another batch; of its first and last `rows`, or all of it."""
    found = 0
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is None:
            continue
        array = np.asarray(leaf)
        if rows is not None and array.ndim and len(array) > 2 * rows:
            found = fingerprint(len(array), found)
            array = np.concatenate([array[:rows], array[-rows:]])
        found = fingerprint(array if array.dtype.kind != "O" else array.tolist(), found)
    return found
