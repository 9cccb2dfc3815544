"""Reads batches ahead of training, and records the state of their source after each batch.

tf.data draws batches in a thread of its own, some of them before training takes them. A snapshot
must have the state after the last batch that was *trained on*: that of the global random
generators, and that of the source itself. So a `Mark` of both is recorded when a batch is drawn,
and dropped when training takes the next batch.
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
        generators: The states of the global random generators.
        own: The state of the source itself; None if it is not recorded.
        print: A fingerprint of the batch; 0 before the first batch.
    """

    generators: Generators
    own: Any
    print: int


class Reader:
    """An iterator over batches, which records the state of their source after each batch.

    Args:
        batches: The iterator to read.
        own: Returns the state of the source itself; called after each batch. None for a reader that
            records no marks, since no snapshot is taken.
        turn: Returns a number that changes when an execution begins or ends. It is odd during an
            execution, in which no hook can draw from a generator.

    Attributes:
        mark: The state after the last batch that training has taken; None if no marks are
            recorded.
        draws: Whether drawing a batch has changed a global random generator.
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
        """Moves `mark` on by `batches` batches, which training has taken."""
        for _ in range(batches if self._own is not None else 0):
            self.mark = self._drawn.popleft()

    def stop(self, wait: bool = True) -> None:
        """Stops drawing; if `wait`, waits for a batch that another thread is drawing."""
        self._stopped = True
        if wait:
            with self._lock:
                pass

    @contextmanager
    def held(self) -> Iterator[Mark | None]:
        """A context that provides the state after the last batch that training has taken.

        If a thread is drawing a batch, entering the context may wait for that batch, since the
        state of the source may be changing.

        Yields:
            The mark of the last batch taken, if further batches were drawn ahead. Otherwise None:
            the source and the generators are in the wanted state now, and no batch is drawn until
            the context is left.
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
    """Returns a fingerprint of a batch: of its first and last `rows` rows, or of all its rows."""
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
