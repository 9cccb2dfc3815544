"""A hook that nobody calls is told."""

import warnings
from typing import Any

import keras
import pytest

import kfit
from kfit.training.hook_names import warn_of_misspelled_hooks


def with_methods(*names: str, base: type = keras.callbacks.Callback) -> Any:
    return type("Watch", (base,), {name: lambda self, *rest: None for name in names})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_epoch_ends", "on_epoch_end"),
        ("on_batch_ended", "on_batch_end"),
        ("on_train_epoch_end", "on_epoch_end"),
        ("on_epoch_start", "on_epoch_begin"),
        ("on_train_batches_end", "on_train_batch_end"),
    ],
)
def test_a_misspelled_hook_is_named_with_the_one_that_was_meant(
    tiny: Any, name: str, meant: str
) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    told = rf"^`Watch\.{name}` is never called, .*\. Did you mean `{meant}`\?$"
    with pytest.warns(UserWarning, match=told):
        trainer.evaluate(*tiny.data(4), verbose=0, callbacks=[with_methods(name)()])


def test_hooks_given_as_functions_may_be_misspelled() -> None:
    with pytest.warns(UserWarning, match=r"`LambdaCallback\.on_epoch_endd` is never called"):
        warn_of_misspelled_hooks(keras.callbacks.LambdaCallback(on_epoch_endd=print))


def test_names_of_hooks_and_of_other_methods_are_no_mistakes() -> None:
    hooks = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]
    own = [*hooks, "on_click", "on_validation_end", "on_test_epoch_end", "on_step", "on_epoch"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misspelled_hooks(with_methods(*own)())
        for name in kfit.callbacks.__all__:
            kind = getattr(kfit.callbacks, name)
            if isinstance(kind, type):
                made = with_methods(*(n for n in dir(kind) if n.startswith("on_")), base=kind)
                warn_of_misspelled_hooks(object.__new__(made))
