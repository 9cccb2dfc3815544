"""Counts the passes over data sets, which several calls of `fit` and `evaluate` may read.

A pass is one reading of all the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, ref

_passes: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
"""For each source, the numbers of batches taken in the passes that this process has begun."""

_counted_by: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
"""For each `shuffle`, the source by which the passes over its first pipeline are counted."""


class PassCounter:
    """A counter of the passes over a data set, and of the batches that were taken from them.

    A pass is one reading of all the data. Several calls of `fit` and `evaluate` may read the same
    data set, one after the other or alternately, and each call has a `PassCounter`. All passes are
    counted together, since a data set that shuffles draws new seeds in each pass.

    Args:
        source: The data set or, for several pipelines over one `shuffle`, this `shuffle`. None if
            its passes in other calls need not be counted.

    Attributes:
        first: The number of passes that had begun before this object was created.
    """

    def __init__(self, source: Any = None) -> None:
        self._passes = [] if source is None else _passes.setdefault(source, [])
        self._own: int | None = None
        self.first = len(self._passes)

    @property
    def begun(self) -> int:
        """The number of passes over the data set that have begun, including those of other calls.

        A pass is one reading of all the data; other calls are calls of `fit` or `evaluate` with the
        same data set.
        """
        return len(self._passes)

    @property
    def own(self) -> int | None:
        """The number of passes that had begun before this counter's open pass; None if it has none.

        A pass is one reading of all the data.
        """
        return self._own

    @property
    def is_open(self) -> bool:
        """Whether this counter has an open pass: a reading of all the data that has not ended."""
        return self._own is not None

    @property
    def taken(self) -> int:
        """The number of batches taken from this counter's open pass; 0 if it has none."""
        return 0 if self._own is None else self._passes[self._own]

    def begin(self) -> None:
        """Records that this counter has begun a new pass over the data set."""
        self._own = len(self._passes)
        self._passes.append(0)

    def begin_another(self) -> None:
        """Records a new pass over the data set that does not belong to this counter.

        Used when training resumes: the passes that other calls began before the restart are begun
        again, so that later passes draw the same seeds.
        """
        self._passes.append(0)

    def take(self, batches: int) -> None:
        """Records that the next `batches` batches of this counter's open pass were taken.

        Nothing is recorded if no pass is open.
        """
        if self._own is not None:
            self._passes[self._own] += batches

    def end(self) -> None:
        """Records that this counter's open pass has ended."""
        self._own = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts, which a snapshot contains.

        A pass is one reading of all the data, which is open until it has ended.

        Returns:
            "begun", the number of passes that have begun; "own", the number of passes that began
            before this counter's open pass; and "taken", the number of batches taken from the open
            pass. The last two are None if no pass is open.
        """
        taken = self.taken if self.is_open else None
        return {"begun": self.begun, "own": self._own, "taken": taken}

    def passes(self) -> list[int]:
        """Returns how many batches were taken from each pass since this counter was made.

        A pass is one reading of all the data. Passes of other calls on the data set are included.
        """
        return self._passes[self.first :]


def are_counted_apart(shuffles: Iterable[Any], source: Any) -> bool:
    """Returns whether another pipeline reads one of the same shuffles, and is counted by another.

    Args:
        shuffles: The shuffles of a pipeline that draw new seeds.
        source: The source by which the passes over this pipeline are counted.
    """
    others = [_counted_by.setdefault(shuffle, ref(source))() for shuffle in shuffles]
    return any(other is not None and other is not source for other in others)


def note_pass(source: Any) -> None:
    """Counts a pass over a data set that the user's code has begun, if kfit counts its passes."""
    if source in _passes:
        _passes[source].append(0)
