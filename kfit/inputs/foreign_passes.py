"""Counts the passes over tf.data pipelines that the user's code begins during a `fit`.

A pipeline with `shuffle` draws a new seed for each iterator, from one sequence. A hook of a
callback may read the training data as well, by `next(iter(dataset))` or by Keras' own `evaluate`. A
training that resumes does not call the hooks of earlier epochs again. So their iterators are
counted with kfit's own, and the resumed training draws their seeds. A pipeline that only hooks read
has no such count in a snapshot. If hooks begin a second pass over one, a warning is given.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.late_shuffles import LateShuffles, draws_anew, shuffles_of, source_of_orders
from kfit.inputs.passes import note_pass
from kfit.internals.patch_points import MAKE_ITERATOR
from kfit.internals.patching import patched

_OF_HOOKS = "kfit.training.call"
"""The module from which all hooks are called."""
_OF_DATA = "kfit.inputs.python"
"""The module from which Python code is called that makes batches."""
_of_thread = threading.local()
_read_by_hooks: WeakSet[tf.data.Dataset] = WeakSet()
"""The shuffles of pipelines that hooks have read, of which no snapshot has a count."""


_OTHER_ORDER = (
    "After a restart the training would see other orders than without it, since such passes take "
    "turns in drawing from one sequence. Make a data set of its own for this, whose `shuffle` is "
    "another object, or give the `shuffle` `reshuffle_each_iteration=False`."
)


class _Counting:
    """How passes are counted in one `fit`.

    Args:
        sources: What the passes over its data are counted by, as those are restored.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self._sources = sources
        self._shuffles = [
            each for source in sources if source is not None for each in shuffles_of(source)
        ]
        self._has_warned = False

    def note(self, dataset: tf.data.Dataset) -> None:
        """Counts a pass over a data set, or warns if no resumed training would begin it again."""
        source = source_of_orders(dataset)
        if draws_anew(source) and not _is_ours():
            note_pass(source)
        if not _is_in_hook():
            return
        shuffles = shuffles_of(dataset)
        if any(each is own for each in shuffles for own in self._shuffles):
            if not self._has_warned and LateShuffles.of(dataset):
                self._has_warned = True
                warn_user(
                    "A hook reads the data of `fit`, and one `shuffle` of it draws its order "
                    "while the data is read: it stands before a `repeat` or another `shuffle`, or "
                    f"in a part of the data. {_OTHER_ORDER}"
                )
            return
        if any(each is source for each in self._sources):
            return
        if not self._has_warned and any(each in _read_by_hooks for each in shuffles):
            self._has_warned = True
            warn_user(
                "A hook reads a tf.data.Dataset that is neither the training data nor the "
                "validation data, and whose `shuffle` draws another order in each pass. Its passes "
                "are not counted: after a restart it begins with its first order again. Make it "
                "anew in the hook with a seed that depends on the epoch, or give its `shuffle` "
                "`reshuffle_each_iteration=False`."
            )
        _read_by_hooks.update(shuffles)


@contextmanager
def counting_foreign_passes(sources: Sequence[Any]) -> Iterator[None]:
    """Context in which iterators that this thread makes outside of kfit's code are counted.

    Args:
        sources: What the passes over the data of the `fit` are counted by (`Batches.counted_by`).
    """
    first, *others = sources
    if first is not None and any(each is first for each in others) and LateShuffles.of(first):
        warn_user(
            "`x` and `validation_data` read one `shuffle`, which draws its order while the data is "
            f"read: it stands before a `repeat` or another `shuffle`. {_OTHER_ORDER}"
        )
    before = getattr(_of_thread, "counting", None)
    if before is not None:
        warn_user(
            "A hook of a `fit` that saves snapshots calls another `fit` that does, too. After a "
            "restart the hook is not called again for what the first `fit` has done, so that its "
            "calls of the second one are counted anew, and may be taken for others. Leave the "
            "BackupAndRestore of the second one out: what it trains belongs to the hook, which "
            "is repeated as a whole."
        )
    _of_thread.counting = _Counting(sources)
    try:
        with patched(MAKE_ITERATOR, _counting):
            yield
    finally:
        _of_thread.counting = before


def _counting(usual: Callable[[tf.data.Dataset], Any]) -> Callable[[tf.data.Dataset], Any]:
    @functools.wraps(usual)
    def make_iterator(dataset: tf.data.Dataset) -> Any:
        made = usual(dataset)
        counting = getattr(_of_thread, "counting", None)
        if counting is not None and tf.executing_eagerly():
            counting.note(dataset)
        return made

    return make_iterator


def _is_ours() -> bool:
    """Returns whether kfit's own code makes the iterator, which counts it."""
    return next(_callers()).startswith("kfit.")


def _is_in_hook() -> bool:
    """Returns whether a hook makes the iterator, and not code that makes batches for a hook."""
    of_fit = (name for name in _callers() if name in (_OF_HOOKS, _OF_DATA))
    return next(of_fit, None) == _OF_HOOKS


def _callers() -> Iterator[str]:
    """Yields the modules of the functions that call `__iter__`, from the innermost one on."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != __name__:
            yield name
        frame = frame.f_back
