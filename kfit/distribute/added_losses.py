"""What layers add to the loss while they are called (`add_loss`, activity regularizers).

Keras keeps it on the layer until the loss is computed. Replicas are traced in turns: where they
meet in between (synchronized BatchNormalization, masked losses), one would find what another one's
call has left there. So each replica keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from kfit.distribute.replicas import current_replica


def of_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `keras.Layer` that works on the losses it added, those of the replica."""

    def method(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is None:
            return original(self, *args, **kwargs)
        kept = self._losses
        # Past Keras' tracker, for which a list on a layer is one of layers or variables.
        self.__dict__["_losses"] = replica.added_losses.setdefault(id(self), [])
        try:
            return original(self, *args, **kwargs)
        finally:
            self.__dict__["_losses"] = kept

    return method
