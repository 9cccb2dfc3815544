"""One attribute of Keras, swapped for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras


@contextmanager
def swapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Within it `owner.name` is `wrap(owner.name)`.

    Args:
        owner: A class or a module of Keras.
        name: The name of a function of it.
        wrap: From the function to what stands in for it.

    Raises:
        ImportError: If this Keras has the function no more.
    """
    original = getattr(owner, name, None)
    if original is None:
        raise ImportError(
            f"Keras {keras.__version__} has no `{owner.__name__}.{name}`, which kfit needs to "
            "train on several replicas. Install a Keras version that kfit supports."
        )
    inherited = name not in vars(owner)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
