"""The base of callbacks that reach training itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import keras

if TYPE_CHECKING:
    from kfit.checkpoint.snapshot import Snapshot
    from kfit.training.fit_state import Training

Reason: TypeAlias = Literal["begin", "step", "epoch", "stop"]


_TOGETHER = (
    *("find_snapshot", "resume", "steps_until_due", "is_due", "on_due"),
    *("on_save_point", "on_fit_end"),
)


class TrainingCallback(keras.callbacks.Callback):
    """A Keras callback with further hooks, in which it may save, restore or redirect training.

    Under `keras.Model.fit` only Keras' hooks are called. Under kfit all hooks run on every task,
    at the same step of each; what is written, the chief writes (`self.training.is_chief`).

    A callback that remembers something from step to step says so by two more methods, which any
    Keras callback may have under kfit:

    - `state_dict()` returns a dict of numbers, strings, None, arrays, and lists and dicts of these;
    - `load_state_dict(state)` gets it back when training goes on, after `on_train_begin`.

    Attributes:
        training: The `fit` under way; None outside of one.
    """

    training: Training | None = None

    @property
    def takes_part(self) -> bool:
        """Whether it has a hook that all tasks must call together, so that all must have it."""
        own, base = type(self), TrainingCallback
        return any(getattr(own, hook) is not getattr(base, hook) for hook in _TOGETHER)

    def set_training(self, training: Training) -> None:
        """Called before `on_train_begin`, with the `fit` that begins."""
        self.training = training

    def find_snapshot(self) -> Snapshot | None:
        """Called on the chief before `on_train_begin`.

        Returns:
            A snapshot that training should go on from, which all tasks then get, or None.
        """
        return None

    def resume(self, snapshot: Snapshot) -> None:
        """Called on all tasks with what the chief's `find_snapshot` returned."""

    def steps_until_due(self) -> int | None:
        """How many steps from now `on_due` is wanted; None for at no known step.

        No execution goes beyond it, so the hook comes after that very step.
        """
        return None

    def is_due(self) -> bool:
        """Whether `on_due` is wanted now; asked after each execution, on every task.

        It is called on all tasks when one says yes, so one may decide by its clock.
        """
        return False

    def on_due(self) -> None:
        """Called on all tasks after the step at which `is_due` said yes on any.

        `self.model.stop_training = True` here, on any task, makes that step the last.
        """

    def on_save_point(self, reason: Reason) -> None:
        """Called where the state of training is whole: after all other hooks of a step or an epoch.

        Args:
            reason: "begin" before the first step of this `fit`, or where there is none left to
                take; "step" when `is_due` said yes on any task; "epoch" after all `on_epoch_end`;
                "stop" when training stops after this, to go on in a later run.
        """

    def on_fit_end(self) -> None:
        """Called on all tasks when training has come to its end, after all other hooks."""

    def on_fit_exit(self, succeeded: bool) -> None:
        """Called when `fit` is left, after all other hooks, also when it fails.

        Args:
            succeeded: Whether training came to its end, on this task and as far as it knows.
        """
