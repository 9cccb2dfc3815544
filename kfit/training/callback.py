"""The base class of callbacks that save, restore or interrupt training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import keras

if TYPE_CHECKING:
    from kfit.checkpoint.snapshot import Snapshot
    from kfit.training.fit_state import FitState

Reason: TypeAlias = Literal["begin", "step", "epoch", "stop"]


_TOGETHER = (
    *("find_snapshot", "resume", "steps_until_due", "is_due", "on_due"),
    *("on_save_point", "on_fit_end"),
)


class TrainingCallback(keras.callbacks.Callback):
    """A Keras callback with more hooks, in which it may save, restore or interrupt training.

    Under `keras.Model.fit` only Keras' hooks are called. Under kfit all hooks run on every task,
    after the same step; only the chief should write files (`self.training.is_chief`).

    A callback with a state of its own has it saved and restored by two more methods, which any
    Keras callback may have under kfit:

    - `state_dict()` returns a dict of numbers, strings, None, arrays, and lists and dicts of these;
    - `load_state_dict(state)` gets it back when training resumes, after `on_train_begin`.

    Attributes:
        training: The state of the `fit` under way; None outside of one.
    """

    training: FitState | None = None

    @property
    def takes_part(self) -> bool:
        """Whether it overrides a hook that all tasks must call, so that all need the callback."""
        own, base = type(self), TrainingCallback
        return any(getattr(own, hook) is not getattr(base, hook) for hook in _TOGETHER)

    def set_training(self, training: FitState) -> None:
        """Called before `on_train_begin`, with the state of the `fit` that begins."""
        self.training = training

    def find_snapshot(self) -> Snapshot | None:
        """Called on the chief before `on_train_begin`.

        Returns:
            A snapshot that training should resume from, which all tasks then get, or None.
        """
        return None

    def resume(self, snapshot: Snapshot) -> None:
        """Called on all tasks with what the chief's `find_snapshot` returned."""

    def steps_until_due(self) -> int | None:
        """How many steps from now `on_due` should be called; None where that is not known.

        No execution goes beyond that step, so `on_due` is called right after it.
        """
        return None

    def is_due(self) -> bool:
        """Whether `on_due` should be called now; called after each execution, on every task.

        `on_due` is called on all tasks if this is True on any, so that it may depend on a clock.
        """
        return False

    def on_due(self) -> None:
        """Called on all tasks after the step at which `is_due` was True on any.

        `self.model.stop_training = True` here, on any task, makes that step the last.
        """

    def on_save_point(self, reason: Reason) -> None:
        """Called where training may be saved: after all other hooks of a step or an epoch.

        Args:
            reason: "begin" before the first step of this `fit`, or where there is none left to
                take; "step" when `is_due` was True on any task; "epoch" after all `on_epoch_end`;
                "stop" when training stops after this, to resume in a later run.
        """

    def on_fit_end(self) -> None:
        """Called on all tasks when training has come to its end, after all other hooks."""

    def on_fit_exit(self, succeeded: bool) -> None:
        """Called when `fit` is left, after all other hooks, also when it fails.

        Args:
            succeeded: Whether training came to its end, on this task and as far as it knows.
        """
