"""Leaves out what TensorFlow logs of its own work with several devices.

In a notebook TensorFlow's logger prints all messages of level INFO. For each model these are dozens
of lines on where gradients are added up, and the traceback of each error that is raised while a
step is traced, also of those that kfit catches.
"""

from __future__ import annotations

import logging

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


class _OwnWork(logging.Filter):
    """A filter that drops the messages on TensorFlow's own work, but no warning and no error."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a record is kept."""
        return record.levelno > logging.INFO or not str(record.msg).startswith(_BEGINNINGS)


_FILTER = _OwnWork()


def quieten() -> None:
    """Makes TensorFlow's logger leave out these messages; a second call changes nothing.

    Errors are still raised, and messages of any other kind are still logged.
    """
    tf.get_logger().addFilter(_FILTER)
