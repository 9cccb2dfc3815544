"""A warning if a task of a cluster calls Keras' own `fit`, which trains on this task alone.

A task is one process of the cluster.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from kfit.cluster.cluster import Cluster
from kfit.heartbeat.tracebacks import place_of_caller, warn_user, warned_at
from kfit.internals.keras_methods import diverted

_WARNING = (
    "`model.fit` is Keras' own, so this task trains alone, although it has joined a cluster of {} "
    "workers. Train by `kfit.fit(model, ...)` or a `kfit.Trainer`; or call `kfit.install()` (`kfit "
    "run --keras-fit`), which makes `model.fit` that of kfit."
)


_AGAIN = (
    "This program has trained each of {} workers alone, since its `model.fit` is Keras' own. `kfit "
    "run --keras-fit` lets them train together."
)


@functools.cache
def warn_of_training_alone(cluster: Cluster) -> None:
    """Makes Keras' own `fit` warn from now on that it trains on this task (process) alone.

    It is called when the task has joined a cluster of several workers. To train on all workers
    together, the program must call kfit's `fit`. A second warning at the end of the program follows
    what it has printed meanwhile, which may be long.

    Args:
        cluster: The cluster. The warning says how many workers it has.
    """

    def divert(model: keras.Model, name: str) -> Callable[..., Any] | None:
        warn_user(_WARNING.format(cluster.num_workers))
        _warn_at_end(cluster.num_workers)
        return None

    FOR_GOOD.enter_context(diverted(divert, ("fit",)))


@functools.cache
def _warn_at_end(workers: int) -> None:
    place = place_of_caller()

    def warn() -> None:
        with warned_at(place):
            warn_user(_AGAIN.format(workers))

    atexit.register(warn)


FOR_GOOD = ExitStack()
"""The contexts that stay active for the rest of the process."""
