"""Decides whether XLA compiles a model's steps, from `jit_compile` and the strategy.

When Keras compiles a model, it replaces `jit_compile="auto"` by True or False, depending only on
the devices of the host. On several accelerators kfit takes "auto" for False: replicas communicate
outside of XLA, so XLA could compile only a part of the step. Keras does not store the original
argument; so kfit's own `compile` records it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from kfit.distribute.strategy import Strategy
from kfit.internals.models import auto_jit_compile, loss_tracker

_ASKED = "_kfit_jit_compile"


def remember_jit(model: keras.Model, asked: bool | str) -> None:
    """Records the `jit_compile` argument of `compile`, which is valid until the next `compile`.

    Keras itself stores only True or False, even if the argument was "auto".

    Args:
        model: The model that was compiled.
        asked: The argument: True, False or "auto".
    """
    # Bypasses Keras' attribute tracking, because this value is not a part of the model.
    object.__setattr__(model, _ASKED, (loss_tracker(model), asked))


@contextmanager
def resolved_jit(model: keras.Model, strategy: Strategy) -> Iterator[None]:
    """Context in which `jit_compile="auto"` means False if replicas run on several accelerators.

    Keras may have replaced "auto" by True in `model.jit_compile`. On several accelerators, this
    attribute is then False within the context. If the user called Keras' own `compile`, kfit does
    not know whether the argument was "auto" or True. kfit then assumes "auto" if Keras would
    replace "auto" by True for this model, and the chief prints a message once.

    Args:
        model: The compiled model.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the model will run.
    """
    several = strategy.num_replicas > 1 and strategy.on_accelerators
    if not several or not model.jit_compile or not _is_auto(model, strategy.is_chief):
        yield
        return
    tracker = loss_tracker(model)
    model.jit_compile = False
    try:
        yield
    finally:
        if loss_tracker(model) is tracker:  # not compiled again in the meantime
            model.jit_compile = True


def _is_auto(model: keras.Model, prints: bool) -> bool:
    tracker, asked = getattr(model, _ASKED, (None, None))
    if asked is not None and tracker is loss_tracker(model):
        return bool(asked == "auto")
    is_auto = auto_jit_compile(model)
    if is_auto and prints:
        print(
            "kfit: takes this model's jit_compile for 'auto', which is off on several replicas; "
            "compile it by kfit.Trainer.compile(jit_compile=True) to have XLA there.",
            flush=True,
        )
    remember_jit(model, "auto" if is_auto else True)
    return is_auto
