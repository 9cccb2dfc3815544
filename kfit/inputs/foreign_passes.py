"""Counts the passes over tf.data pipelines that the user's code begins during a `fit`.

A pipeline with `shuffle` draws a new seed for each iterator, from one sequence. A hook of a
callback may read the training data as well, by `next(iter(dataset))` or by Keras' own `evaluate`. A
training that resumes does not call the hooks of earlier epochs again. So their iterators are
counted with kfit's own, and the resumed training draws their seeds.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.inputs.batches import note_pass
from kfit.inputs.late_shuffles import draws_anew, source_of_orders
from kfit.internals.patch_points import MAKE_ITERATOR
from kfit.internals.patching import patched

_of_thread = threading.local()


@contextmanager
def counting_foreign_passes() -> Iterator[None]:
    """Context in which iterators that this thread makes outside of kfit's code are counted."""
    before = getattr(_of_thread, "counts", False)
    _of_thread.counts = True
    try:
        with patched(MAKE_ITERATOR, _counting):
            yield
    finally:
        _of_thread.counts = before


def _counting(usual: Callable[[tf.data.Dataset], Any]) -> Callable[[tf.data.Dataset], Any]:
    @functools.wraps(usual)
    def make_iterator(dataset: tf.data.Dataset) -> Any:
        made = usual(dataset)
        if getattr(_of_thread, "counts", False) and tf.executing_eagerly() and not _is_ours():
            source = source_of_orders(dataset)
            if draws_anew(source):
                note_pass(source)
        return made

    return make_iterator


def _is_ours() -> bool:
    """Returns whether kfit's own code makes the iterator, which counts it."""
    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back  # that of `make_iterator`
    return caller is not None and caller.f_globals.get("__name__", "").startswith("kfit.")
