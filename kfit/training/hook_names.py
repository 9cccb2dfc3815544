"""Tells of hooks of the user's callbacks that nobody calls."""

from __future__ import annotations

from kfit.exactness.own_code import is_of_keras
from kfit.heartbeat.tracebacks import warn_user
from kfit.lazy import closest_name
from kfit.training.callback import TrainingCallback

_HOOKS = sorted(name for name in dir(TrainingCallback) if name.startswith("on_"))
_LIKENESS = 0.87
"""How much a name must be like that of a hook: "on_epoch_ends" is, and "on_click" is not."""


def warn_of_misspelled_hooks(callback: object) -> None:
    """Warns of methods of a callback that have almost the name of a hook: they are never called.

    Args:
        callback: The callback. Classes of Keras and kfit have no such methods.
    """
    kinds = type(callback).__mro__
    known = {name for kind in kinds if is_of_keras(kind) for name in vars(kind)}
    own = {name: value for kind in reversed(kinds) for name, value in vars(kind).items()}
    for name, value in {**own, **getattr(callback, "__dict__", {})}.items():
        if not name.startswith("on_") or name in known or name in _HOOKS or not callable(value):
            continue
        # Other libraries have such names for the same hooks.
        alike: str | None = name.replace("on_train_epoch", "on_epoch").replace("start", "begin")
        if alike not in _HOOKS:
            alike = closest_name(name, _HOOKS, likeness=_LIKENESS)
        if alike is not None:
            warn_user(
                f"`{type(callback).__name__}.{name}` is never called, since no hook has this "
                f"name. Did you mean `{alike}`?"
            )
