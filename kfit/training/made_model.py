"""Makes the model of a trainer from what the user has passed: a model, or a function."""

from __future__ import annotations

from collections.abc import Callable

import keras

from kfit.distribute.contexts import replicas_meet_here
from kfit.distribute.strategy import Strategy


def made_model(model: keras.Model | Callable[[], keras.Model], strategy: Strategy) -> keras.Model:
    """Returns the model itself, or what the function returns in the scope of the strategy.

    Args:
        model: A model, or a function without arguments that makes one.
        strategy: The strategy on which the model will be trained.

    Raises:
        ValueError: If the function returns anything else, or clears the session of Keras while the
            scope is open.
    """
    if isinstance(model, keras.Model):
        return model
    is_left = False
    try:
        with strategy.scope():
            made = model()
            is_left = not replicas_meet_here()
    except IndexError as error:  # of leaving the scope again
        if not is_left:
            raise
        raise ValueError(
            "`model` is a function that calls `keras.backend.clear_session()`, which also ends "
            "the scope of the strategy, in which the function is called. Call `clear_session()` "
            "before you make the trainer."
        ) from error
    if not isinstance(made, keras.Model):
        raise ValueError(
            "`model` is a function, which must return a keras.Model. It returned: "
            f"{made!r} (of type {type(made)})"
        )
    return made
