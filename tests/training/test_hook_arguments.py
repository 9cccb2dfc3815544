"""A hook that cannot be called is told with its place."""

from typing import Any

import keras
import pytest

import kfit


class TakesTooLittle(keras.callbacks.Callback):
    """Callback with a hook that Keras' calls do not fit."""

    def on_epoch_end(self, logs: Any = None) -> None:  # type: ignore[override]
        """Takes no epoch."""


def test_a_hook_with_other_arguments_is_told_with_its_place(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    line = TakesTooLittle.on_epoch_end.__code__.co_firstlineno
    told = (
        rf"3 were given\. It is defined in {__file__}, line {line}; expected `def on_epoch_end\(s"
    )
    with pytest.raises(TypeError, match=told):
        trainer.fit(*tiny.data(4), verbose=0, callbacks=[TakesTooLittle()])
