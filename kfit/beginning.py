"""What tasks begin a training from is the same on all of them, or is made so.

Each task calls the user's `on_train_begin`, and what that reads may be its own: TensorFlow's
tutorials give Keras' BackupAndRestore a directory of each worker's own, of which only the chief's
is ever written. Workers that began from other weights or another epoch would exchange gradients
all the same.
"""

from __future__ import annotations

import warnings
import zlib

import numpy as np

from kfit.checkpoint.state import entries
from kfit.distribute import copies
from kfit.training import Training


def agree_on_beginning(training: Training) -> None:
    """Has all tasks begin at the chief's epoch with the chief's variables; they all call it.

    Args:
        training: The training, after `on_train_begin`.

    Raises:
        ValueError: If the tasks cannot train together: they were given other `epochs`, or other
            variables are in their models.
    """
    agreement, progress = training.agreement, training.progress
    if agreement.is_alone:
        return
    # What each replica adds up by itself is metrics', which every epoch resets.
    listed = [e for e in entries(training.model) if not copies.is_per_replica(e.variable)]
    variables = [entry.variable for entry in listed]
    values = copies.take(variables, training.strategy, agreement)
    names = zlib.crc32(repr([(e.name, tuple(e.variable.shape)) for e in listed]).encode())
    checksum = 0
    for value in values:
        checksum = zlib.crc32(np.asarray(value).tobytes(), checksum)
    views = agreement.views([training.epochs, names, progress.epoch, checksum])
    if len(set(views[:, 0])) > 1:
        given = [int(epochs) for epochs in views[:, 0]]
        raise ValueError(f"`epochs` must be the same on all workers. Received: {given}")
    if len(set(views[:, 1])) > 1:
        raise ValueError(
            "The models of the workers must have the same variables when training begins. A "
            "callback's `on_train_begin` has made others on some of them: have all do the same."
        )
    if (views == views[0]).all():
        return
    begun = [int(epoch) for epoch in views[:, 2]]
    progress.epoch = begun[0]
    copies.give(variables, agreement.broadcast(values), training.strategy)
    if training.is_chief:
        warnings.warn(
            f"After `on_train_begin` the workers stood at epochs {begun}, or had other weights: "
            f"all begin at epoch {begun[0]} with those of the chief. A callback restores what only "
            "this worker has, such as keras.callbacks.BackupAndRestore with a directory of each "
            "worker's own; kfit.callbacks.BackupAndRestore needs one on the chief alone.",
            stacklevel=2,
        )
