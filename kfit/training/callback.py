"""The base class of callbacks that save, restore or interrupt training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import keras

from kfit.heartbeat.tracebacks import made_for_user

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

    Under `keras.Model.fit` only Keras' hooks are called. Under kfit all hooks, except for
    `find_snapshot`, run on every task after the same step. Only the chief should write files
    (`self.training.is_chief`).

    A callback with a state of its own defines two more methods, by which kfit saves and restores
    this state. kfit calls these methods of any Keras callback that defines them:

    - `state_dict()` returns a dict of numbers, strings, None, arrays, and lists and dicts of these;
    - `load_state_dict(state)` gets this dict back when training resumes, after `on_train_begin`.

    Attributes:
        training: The state of the `fit` that is running; None outside of the `fit` of kfit.
        goes_back: Whether the callback may request a restore in `on_save_point`. It is called there
            before the others. If it does so, these are not called, since they would save a state
            that is about to be given up.
    """

    training: FitState = cast("FitState", None)  # in hooks of kfit it is always there
    goes_back = False

    _needs_kfit = False
    """Whether the callback would do nothing under `keras.Model.fit`, which is then an error."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leaves out kfit's frames of the errors of wrong arguments, in the callbacks of kfit."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("kfit.") and "__init__" in vars(cls):
            made_for_user(cls)

    @property
    def takes_part(self) -> bool:
        """Whether the callback overrides a hook that all tasks must call together.

        If so, every task must have the callback, and an error is raised if a task does not have it.
        """
        return any(self.defines(hook) for hook in _TOGETHER)

    def defines(self, hook: str) -> bool:
        """Returns whether the class of the callback overrides a hook of this class."""
        return getattr(type(self), hook) is not getattr(TrainingCallback, hook)

    @property
    def saved_in(self) -> str:
        """The directory in which the chief has saved the state after the present step.

        It is empty if the callback has not saved this state.
        """
        return ""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the callback can work in this `fit`.

        Raises:
            RuntimeError: If this is `keras.Model.fit`, in which the callback would do nothing.
        """
        training: Any = self.training
        if self._needs_kfit and training is None:
            raise RuntimeError(
                f"{type(self).__name__} works in the `fit` of kfit: use kfit.Trainer, kfit.Model, "
                "kfit.fit or kfit.install."
            )

    def set_training(self, training: FitState) -> None:
        """Gives the callback the state of the `fit` that begins; called before `on_train_begin`.

        Args:
            training: The state, through which the callback can save and restore training.
        """
        self.training = training

    def find_snapshot(self) -> Snapshot | None:
        """Returns a snapshot that training should resume from, or None.

        It is called only on the chief, before `on_train_begin`. The snapshot is then sent to all
        tasks, and passed to `resume` on each of them.
        """
        return None

    def resume(self, snapshot: Snapshot) -> None:
        """Called on all tasks if `find_snapshot` has returned a snapshot on the chief.

        To restore the snapshot, call `self.training.request_restore`. If several callbacks have
        found one, the hook of the one with the newest is called first. It is not called if another
        callback has already requested a restore.

        Args:
            snapshot: The snapshot that `find_snapshot` has returned.
        """

    def steps_until_due(self) -> int | None:
        """Returns the number of steps from now until `is_due` must be called; None for any number.

        kfit calls `is_due` after each graph call, which takes one or more steps. No graph call goes
        beyond the returned number of steps, so `is_due` is called right after the last of them.
        """
        return None

    def is_due(self) -> bool:
        """Returns whether `on_due` and `on_save_point` should be called now.

        It is called on every task after each graph call. If the result is True on at least one
        task, the two hooks are called on all tasks. So the tasks may return different results, for
        example by their own clocks. The method is also called at other times, such as during a
        validation; then the result is ignored.
        """
        return False

    def on_due(self) -> None:
        """Called on all tasks after a step if `is_due` has returned True on any task.

        If the hook sets `self.model.stop_training` to True on any task, training ends after this
        step.
        """

    def on_save_point(self, reason: Reason) -> None:
        """Called where training may be saved, after all other hooks of a step or an epoch.

        Args:
            reason: Why it is called now. "begin": before the first step of this `fit`, or if no
                step is left to take. "step": `is_due` was True on any task. "epoch": after all
                `on_epoch_end`. "stop": training stops after this call, to resume in a later run.
        """

    def on_restored(self) -> None:
        """Called on all tasks when a snapshot was restored, and before the next step."""

    def on_fit_end(self) -> None:
        """Called on all tasks after all other hooks of a training that has come to its end.

        It is not called if training was interrupted or has failed.
        """

    def on_fit_exit(self, succeeded: bool) -> None:
        """Called when `fit` is left, after all other hooks, even if `fit` fails.

        Args:
            succeeded: Whether training came to its end, as far as this task knows.
        """
