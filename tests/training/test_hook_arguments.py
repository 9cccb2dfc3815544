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


class TakesNoLogs(keras.callbacks.Callback):
    """Callback with hooks of batches, which Keras calls by the name of an argument."""

    def on_train_batch_end(self, batch: int) -> None:  # type: ignore[override]
        """Takes no logs."""


def test_a_hook_of_batches_without_logs_is_told_with_its_place(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    line = TakesNoLogs.on_train_batch_end.__code__.co_firstlineno
    told = (
        rf"'logs'\. It is defined in {__file__}, line {line}; "
        r"expected `def on_train_batch_end\(self, batch, logs=None\)`"
    )
    with pytest.raises(TypeError, match=told):
        trainer.fit(*tiny.data(4), verbose=0, callbacks=[TakesNoLogs()])
