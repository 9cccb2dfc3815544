"""Lets a model that is built without data get what a checkpoint, restored before, holds for it.

`tf.train.Checkpoint(model=model).restore(path)` sets the variables that there are. What a model has
not made yet waits for it: TensorFlow assigns the value at once when a layer makes the variable.
While kfit builds a model without data, Keras gives a variable its `tf.Variable` only at the end;
and in a graph, a layer's `build` would fail half-way and then make its variables once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kfit.internals import patch_points as points
from kfit.internals.patching import patched


@contextmanager
def restored_afterwards() -> Iterator[None]:
    """Context in which models are built: what they make is restored at the end of the context.

    If building fails, the values go on waiting.
    """
    made: list[Callable[[], None]] = []

    def later(original: Callable[..., None]) -> Callable[..., None]:
        return lambda owner, name, trackable: made.append(
            lambda: original(owner, name=name, trackable=trackable)
        )

    with patched(points.RESTORE_LATE, later):
        yield
    for restore in made:
        restore()
