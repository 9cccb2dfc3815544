"""Reads batches ahead of training, and records the state of their source after each batch.

tf.data draws batches in a thread of its own, some of them before training takes them. A snapshot
(the saved state of a training) must have the states after the last batch that was *trained on*: the
state of the global random generators, and the state of the data source itself. So both states are
recorded as a `Mark` when a batch is drawn. When training takes the batch, its mark becomes the one
that a snapshot saves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kfit.objects import Generators
from kfit.objects.eager_generators import EagerGenerators
from kfit.objects.values import fingerprint


class Mark(NamedTuple):
    """The states of the random generators and of the data source after a batch was drawn.

    Attributes:
        generators: The states of the global random generators.
        own: The state of the data source itself; None if it is not recorded.
        print: A checksum of parts of the batch, to recognize the batch when the data is read again;
            0 before the first batch.
    """

    generators: Generators
    own: Any
    print: int


class Reader:
    """An iterator over batches that records the state of the data source after each batch.

    The states are recorded since batches are drawn ahead of training, but a snapshot needs the
    state after the last batch that was trained on.

    Args:
        batches: The iterator to read.
        own: A function that returns the state of the data source; called after each batch. None if
            no snapshot is taken; then no states are recorded.
        turn: A function that returns the counter `Batches.turn`. The training loop adds 1 to the
            counter before it takes batches, and 1 afterwards. Hooks of callbacks, which may draw
            random numbers, do not run while the counter is odd.

    Attributes:
        mark: The states after the last batch that training has taken; None if no states are
            recorded.
        draws: Whether drawing a batch has changed a global random generator of Python. Changes that
            a hook of a callback may have made meanwhile do not count.
        draws_variables: Whether drawing a batch has changed a global generator of TensorFlow or
            Keras. Steps of the model may change these as well, so only batches count that were
            drawn while no step could run: the first one of each epoch.
        error: The error that drawing a batch has raised; None if it has raised none.
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
        self.draws = self.draws_variables = False
        self.error: Exception | None = None
        self.mark = None if own is None else Mark(Generators.now(), own(), 0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._stopped:
                raise StopIteration
            try:
                return next(self._batches) if self._own is None else self._marked(self._own)
            except StopIteration:
                raise
            except Exception as error:
                self.error = error
                raise

    def took(self, batches: int) -> None:
        """Moves `mark` on by `batches` batches, since training has taken these."""
        for _ in range(batches if self._own is not None else 0):
            self.mark = self._drawn.popleft()

    def drawn_until(self, mark: Mark) -> Generators | None:
        """Returns the states that the global generators had at a mark, if batches change them.

        Returns:
            The states. Those of Python's generators are the current ones, and those of TensorFlow's
            and Keras' are None, if drawing batches does not change them. The result is None if it
            changes no generator.
        """
        if not self.draws and not self.draws_variables:
            return None
        drawn = mark.generators if self.draws else Generators.now()
        seeds, variables = drawn.eager.seeds, _variables_of(mark.generators)
        eager = EagerGenerators(seeds, *(variables if self.draws_variables else (None, None)))
        return replace(drawn, eager=eager)

    def stop(self, wait: bool = True) -> None:
        """Stops drawing batches, so that the iterator ends.

        Args:
            wait: Whether to wait until another thread has finished the batch that it is drawing.
        """
        self._stopped = True
        if wait:
            with self._lock:
                pass

    @contextmanager
    def held(self) -> Iterator[Mark | None]:
        """A context that provides the states after the last batch that training has taken.

        A snapshot is taken within the context. If a thread is drawing a batch, entering the context
        may wait for that batch, since the state of the data source may be changing.

        Yields:
            The recorded states, if further batches were drawn ahead, or if drawing the next one has
            failed. Otherwise None: the data source and the random generators themselves have these
            states, and no batch is drawn until the context is left.
        """
        if self._is_ahead:
            yield self.mark
            return
        with self._lock:
            yield self.mark if self._is_ahead else None

    @property
    def _is_ahead(self) -> bool:
        """Whether the source may have another state than after the last batch that was taken."""
        return bool(self._drawn) or (self._own is not None and self.error is not None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which no batch is drawn ahead.

        Entering it waits for the batch that another thread is drawing.
        """
        with self._lock:
            yield

    def _marked(self, own: Callable[[], Any]) -> Any:
        turn, before = self._turn(), Generators.now()
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._note_draws(turn, before)
            raise
        after = self._note_draws(turn, before)
        self._drawn.append(Mark(after, own(), print_of(batch, rows=1)))
        return batch

    def _note_draws(self, turn: int, before: Generators) -> Generators:
        """Notes whether drawing a batch has changed global random generators.

        Args:
            turn: The counter `turn` before the batch was drawn.
            before: The states of the generators before it.

        Returns:
            Their states now.
        """
        after = Generators.now()
        is_main = threading.current_thread() is threading.main_thread()
        if after != before and (is_main or turn % 2 == 1) and turn == self._turn():
            self.draws = True
        if is_main and _variables_of(after) != _variables_of(before):
            self.draws_variables = True
            # In another thread Keras makes a generator anew, seeded from Python's.
            self.draws |= after.eager.keras != before.eager.keras
        return after


def _variables_of(generators: Generators) -> tuple[Any, Any]:
    return generators.eager.tensorflow, generators.eager.keras


def print_of(batch: Any, rows: int | None = None) -> int:
    """Returns a checksum of the values in a batch, to compare batches.

    Args:
        batch: The batch; tensors or arrays in any structure.
        rows: How many of the first and of the last rows are read; None for all rows.
    """
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
