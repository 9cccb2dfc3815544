"""What tasks begin a training from is the same on all of them, or is made so.

Each task calls the user's `on_train_begin`, and what that reads may be its own: TensorFlow's
tutorials give Keras' BackupAndRestore a directory of each worker's own, of which only the chief's
is ever written. Workers that began from other weights or another epoch would exchange gradients
all the same.
"""

from __future__ import annotations

import warnings
import zlib

import keras

from kfit.checkpoint.state import entries
from kfit.distribute import variable_values
from kfit.objects.checksum import checksum
from kfit.training.fit_state import Training


def agree_on_beginning(training: Training) -> None:
    """Has all tasks begin at the chief's epoch with the chief's variables; they all call it.

    Args:
        training: The training, after `on_train_begin`.

    Raises:
        ValueError: If the tasks cannot train together: they were given other `epochs`, or other
            variables are in their models.
    """
    host_collectives, progress = training.host_collectives, training.progress
    if host_collectives.is_alone:
        return
    # What each replica adds up by itself is metrics', which every epoch resets.
    listed = [e for e in entries(training.model) if not variable_values.is_per_replica(e.variable)]
    variables = [entry.variable for entry in listed]
    names = zlib.crc32(repr([(e.name, tuple(e.variable.shape)) for e in listed]).encode())
    may_restore = any(_may_restore(callback) for callback in training.callbacks)
    views = host_collectives.all_gather([training.epochs, names, progress.epoch, int(may_restore)])
    if len(set(views[:, 0])) > 1:
        given = [int(epochs) for epochs in views[:, 0]]
        raise ValueError(f"`epochs` must be the same on all workers. Received: {given}")
    if len(set(views[:, 1])) > 1:
        raise ValueError(
            "The models of the workers must have the same variables when training begins. A "
            "callback's `on_train_begin` has made others on some of them: have all do the same."
        )
    are_together = len(set(views[:, 2])) == 1
    if are_together and not views[:, 3].any():
        return
    values = variable_values.get_values(variables, training.strategy, host_collectives)
    checksums = host_collectives.all_gather([checksum(values)])
    if are_together and len(set(checksums[:, 0])) == 1:
        return
    begun = [int(epoch) for epoch in views[:, 2]]
    progress.epoch = begun[0]
    variable_values.set_values(variables, host_collectives.broadcast(values), training.strategy)
    if training.is_chief:
        warnings.warn(
            f"After `on_train_begin` the workers stood at epochs {begun}, or had other weights: "
            f"all begin at epoch {begun[0]} with those of the chief. A callback restores what only "
            "this worker has, such as keras.callbacks.BackupAndRestore with a directory of each "
            "worker's own; kfit.callbacks.BackupAndRestore needs one on the chief alone.",
            stacklevel=2,
        )


def _may_restore(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback's `on_train_begin` may give the model other weights.

    Those of kfit don't on some tasks alone, and of Keras' own only BackupAndRestore gives any; a
    LambdaCallback calls what is the user's.
    """
    if "on_train_begin" in vars(callback):
        return True
    defines = (each for each in type(callback).__mro__ if "on_train_begin" in vars(each))
    kind = next(defines, keras.callbacks.Callback)
    is_known = kind.__module__.partition(".")[0] in ("keras", "kfit")
    return not is_known or kind is keras.callbacks.BackupAndRestore
