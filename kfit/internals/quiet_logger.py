"""Leaves out what TensorFlow logs of its own work with several devices.

In a notebook TensorFlow's logger prints all messages of level INFO. For each model these are dozens
of lines on where gradients are added up, and the traceback of each error that is raised while a
step is traced, also of those that kfit catches. It also warns of each call on replicas outside of a
graph, which takes long. kfit makes such a call once an epoch, or where a model is to run eagerly.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

_BEGINNINGS = (
    "Using MirroredStrategy with",
    "Reduce to ",
    "Gather to ",
    "batch_all_reduce: ",
    "Collective all_reduce ",
    "Collective batch_all_gather: ",
    "Error reported to Coordinator",
)
_OF_EAGER_CALLS = "eagerly has significant overhead"
_thread = threading.local()


class _OwnWork(logging.Filter):
    """A filter that drops the messages on TensorFlow's own work.

    It drops no error, and of the warnings only that of an eager call that kfit makes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is kept."""
        message = str(record.msg)
        if record.levelno > logging.INFO:
            return not (getattr(_thread, "calls", False) and _OF_EAGER_CALLS in message)
        return not message.startswith(_BEGINNINGS)


_FILTER = _OwnWork()


def quieten() -> None:
    """Makes TensorFlow's logger leave out these messages; a second call changes nothing.

    Errors are still raised, and messages of any other kind are still logged.
    """
    tf.get_logger().addFilter(_FILTER)


@contextmanager
def call_of_kfit() -> Iterator[None]:
    """A context in which kfit calls a function on the replicas, in a graph or eagerly."""
    before = getattr(_thread, "calls", False)
    _thread.calls = True
    try:
        yield
    finally:
        _thread.calls = before
