"""Makes all tasks begin a training with the same epoch and the same weights.

Each task calls the user's `on_train_begin`, which may read a file that only this task has. For
example, TensorFlow's tutorials give Keras' BackupAndRestore a different directory on each worker,
and only the chief's directory is ever written. Without a check, workers with different weights or
epochs would sum their gradients, and nobody would notice.
"""

from __future__ import annotations

import zlib

import keras

from kfit.checkpoint.state import entries
from kfit.distribute import variable_values
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.models import asked_initial_epoch
from kfit.objects.checksum import checksum
from kfit.training.fit_state import FitState


def agree_on_beginning(fit: FitState) -> None:
    """Gives all tasks the chief's epoch and the chief's variables, if the tasks differ.

    The tasks may differ since a callback may have changed the weights in `on_train_begin`, or
    requested a different first epoch, as Keras' BackupAndRestore does. If `fit` resumes from a
    snapshot of kfit, nothing is changed, since epoch and variables are then restored from the
    snapshot.

    It is a collective: all tasks must call it.

    Args:
        fit: The state of the `fit`, after `on_train_begin`.

    Raises:
        ValueError: If the tasks cannot train together, because their `epochs` or the shapes of
            their models' variables differ.
    """
    if fit.resuming is not None:
        return
    host_collectives, progress = fit.strategy.host_collectives, fit.progress
    progress.epoch = asked_initial_epoch(fit.model) or progress.epoch
    if host_collectives.is_alone:
        return
    # Only metrics have variables with a value for each replica, and every epoch resets them.
    listed = [e for e in entries(fit.model) if not variable_values.is_per_replica(e.variable)]
    variables = [entry.variable for entry in listed]
    names = zlib.crc32(repr([(e.name, tuple(e.variable.shape)) for e in listed]).encode())
    may_restore = any(_may_restore(callback) for callback in fit.callbacks)
    views = host_collectives.all_gather([fit.epochs, names, progress.epoch, int(may_restore)])
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
    values = variable_values.get_values(variables, fit.strategy)
    checksums = host_collectives.all_gather([checksum(values)])
    if are_together and len(set(checksums[:, 0])) == 1:
        return
    begun = [int(epoch) for epoch in views[:, 2]]
    progress.epoch = begun[0]
    variable_values.set_values(variables, host_collectives.broadcast(values), fit.strategy)
    if fit.is_chief:
        warn_user(
            f"After `on_train_begin` the workers stood at epochs {begun}, or had other weights: "
            f"all begin at epoch {begun[0]} with those of the chief. A callback restores what only "
            "this worker has, such as keras.callbacks.BackupAndRestore with a directory of each "
            "worker's own; kfit.callbacks.BackupAndRestore needs one on the chief alone."
        )


def _may_restore(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback's `on_train_begin` may change the weights on this task alone.

    The result is True for an `on_train_begin` that the user has written (also as an argument of a
    LambdaCallback), and for that of Keras' BackupAndRestore. Other callbacks of Keras do not change
    the weights, and callbacks of kfit change them in the same way on all tasks.
    """
    if "on_train_begin" in vars(callback):
        return True
    defines = (each for each in type(callback).__mro__ if "on_train_begin" in vars(each))
    kind = next(defines, keras.callbacks.Callback)
    is_known = kind.__module__.partition(".")[0] in ("keras", "kfit")
    return not is_known or kind is keras.callbacks.BackupAndRestore
