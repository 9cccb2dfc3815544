"""Counts the training `fit`s of a process, so that progress can be told from a new beginning.

Each `fit` of a program begins at step 0 again. So the supervisor (`kfit run`) must know which `fit`
a step belongs to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CountedFits:
    """The number of each training `fit` of this process in its program, counted from 0.

    A `fit` that a hook of another one calls has no number of its own: it is a part of the other
    one. A program that is run again may skip what it has done. Then the number is not that of the
    process, and it is set where it is known (`set_number`).

    Several threads may train at once. Each has its own present `fit`, and they count together.
    """

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()
        self._own = _OfThread()

    @contextmanager
    def counted(self) -> Iterator[bool]:
        """Context of a `fit` that this thread calls.

        It yields whether the `fit` has a number of its own: no hook of another one has called it.
        """
        own = self._own
        own.depth += 1
        try:
            if own.depth == 1:
                with self._lock:
                    own.number = self._next
                    self._next += 1
            yield own.depth == 1
        finally:
            own.depth -= 1

    @property
    def number(self) -> int:
        """The number of the present or last `fit` of this thread; 0 before the first."""
        return self._own.number

    @property
    def depth(self) -> int:
        """The number of `fit`s that this thread is in: more than 1 if a hook has called one."""
        return self._own.depth

    def set_number(self, number: int) -> None:
        """Sets the number of the present `fit`; later ones count from there.

        Nothing is done in a `fit` that a hook of another one has called.

        Args:
            number: The number of the `fit` in the program, from 0.
        """
        if self.depth == 1:
            with self._lock:
                self._own.number = number
                self._next = number + 1


class _OfThread(threading.local):
    """The present `fit` of the thread that reads it."""

    depth = 0
    number = 0
