"""Arguments of `fit` and its kin, judged before anything is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import keras


def capped(epochs: int, steps_per_epoch: int | None) -> tuple[int, int | None]:
    """Applies `keras.config.set_max_epochs` and `set_max_steps_per_epoch`, for debugging runs."""
    max_epochs = keras.config.max_epochs()
    if max_epochs and max_epochs < epochs:
        warnings.warn(f"Limiting epochs to {max_epochs}", stacklevel=3)
        epochs = max_epochs
    max_steps = keras.config.max_steps_per_epoch()
    if max_steps and (not steps_per_epoch or max_steps < steps_per_epoch):
        warnings.warn(f"Limiting steps_per_epoch to {max_steps}", stacklevel=3)
        steps_per_epoch = max_steps
    return epochs, steps_per_epoch


def validation_rule(validation_freq: int | Sequence[int]) -> Callable[[int], bool]:
    """Whether an epoch, from 0, is followed by a validation.

    Raises:
        ValueError: If `validation_freq` is neither an integer nor a list of them.
    """
    if isinstance(validation_freq, int):
        return lambda epoch: (epoch + 1) % validation_freq == 0
    if isinstance(validation_freq, (list, tuple, set)):
        return lambda epoch: epoch + 1 in validation_freq
    raise ValueError(
        "Expected `validation_freq` to be a list or int. "
        f"Received: validation_freq={validation_freq!r} of the type {type(validation_freq)}."
    )
