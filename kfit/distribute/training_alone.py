"""A warning where a task that has joined a cluster trains by Keras' own `fit`, and so alone."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from kfit.cluster.cluster import Cluster
from kfit.internals.keras_methods import diverted

_WARNING = (
    "`model.fit` is Keras' own, so this task trains alone, although it has joined a cluster of {} "
    "workers. Train by `kfit.fit(model, ...)` or a `kfit.Trainer`; or call `kfit.install()` (`kfit "
    "run --keras-fit`), which makes `model.fit` that of kfit."
)


@functools.cache
def warn_of_training_alone(cluster: Cluster) -> None:
    """Makes Keras' own `fit` warn from now on, in the process of a task of `cluster`."""

    def divert(model: keras.Model, name: str) -> Callable[..., Any] | None:
        warnings.warn(_WARNING.format(cluster.num_workers), stacklevel=4)
        return None

    FOR_GOOD.enter_context(diverted(divert, ("fit",)))


FOR_GOOD = ExitStack()
"""Holds what stays for the rest of the process."""
