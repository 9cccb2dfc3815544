"""Puts a function in the place of every `fit` of a script that a command runs or imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NoReturn


@contextmanager
def replaced_fit(function: Callable[..., NoReturn]) -> Iterator[None]:
    """Context in which a function is called in place of `Trainer.fit`.

    `kfit.fit` and the `fit` of a `kfit.Model` come to `Trainer.fit` as well, and so does
    `keras.Model.fit` while `kfit.install` lasts. A model's own `fit` is still run, since it may
    prepare the data.

    Args:
        function: The function, which gets the arguments of `Trainer.fit`, the trainer first.
    """
    from kfit.trainer import Trainer
    from kfit.training.own_methods import through_model

    original = Trainer.fit
    fit = through_model(wraps(original)(function))
    setattr(Trainer, "fit", fit)  # noqa: B010  mypy forbids to assign a method
    try:
        yield
    finally:
        setattr(Trainer, "fit", original)  # noqa: B010
