"""Whether XLA compiles a model's steps: what was asked for, seen from the strategy at hand.

Keras makes True or False of `jit_compile="auto"` when it compiles a model, by the devices of the
host alone. On several replicas of accelerators "auto" is to mean no: they meet outside of XLA, so
it can do less there. Keras keeps no record of what was asked for; kfit does of its own `compile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from kfit.distribute.strategy import Strategy
from kfit.internals.models import auto_jit_compile, loss_tracker

_ASKED = "_kfit_jit_compile"


def remember_jit(model: keras.Model, asked: bool | str) -> None:
    """Notes what `compile` was asked for; it counts until the model is compiled anew."""
    # Past Keras' tracking of attributes: this is no part of the model.
    object.__setattr__(model, _ASKED, (loss_tracker(model), asked))


@contextmanager
def resolved_jit(model: keras.Model, strategy: Strategy) -> Iterator[None]:
    """Within it `model.jit_compile` is what was asked for on this strategy.

    Where only Keras knows, True counts as "auto" if "auto" gives it here; that is said once.
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
        if loss_tracker(model) is tracker:  # nobody has compiled it meanwhile
            model.jit_compile = True


def _is_auto(model: keras.Model, tells: bool) -> bool:
    tracker, asked = getattr(model, _ASKED, (None, None))
    if asked is not None and tracker is loss_tracker(model):
        return bool(asked == "auto")
    is_auto = auto_jit_compile(model)
    if is_auto and tells:
        print(
            "kfit: takes this model's jit_compile for 'auto', which is off on several replicas; "
            "compile it by kfit.Trainer.compile(jit_compile=True) to have XLA there.",
            flush=True,
        )
    remember_jit(model, "auto" if is_auto else True)
    return is_auto
