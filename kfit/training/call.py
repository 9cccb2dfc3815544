"""A call of `fit`, `evaluate` or `predict`: what its loops work with, and how they call hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import keras

from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.internals.models import runs_eagerly
from kfit.report import Account
from kfit.steps.compiled_steps import Graphs
from kfit.steps.pace import Pace
from kfit.training.batch_hooks import BatchHooks, watches_batches
from kfit.training.chief_only import without_writers
from kfit.training.hook_arguments import name_wrong_hook
from kfit.training.missing_monitor import name_missing_monitor
from kfit.training.progress import Progress
from kfit.training.progress_bar import ProgressBar, chosen_verbose
from kfit.training.stop_signals import StopSignals
from kfit.training.turns import Turns

Callbacks: TypeAlias = (
    keras.callbacks.CallbackList | Sequence[Any] | keras.callbacks.Callback | None
)

_BETWEEN_METRICS = {
    *("on_train_begin", "on_train_end", "on_epoch_end"),
    *("on_test_begin", "on_test_end", "on_predict_begin", "on_predict_end"),
}
"""Hooks after which metrics are reset, or which come when they have been read."""


class _Points(Protocol):
    """Interface of the save points of a `fit`, with the methods that the loops use.

    A save point is a place in training where callbacks may save or restore the state of the
    training. The class `SavePoints` implements the interface and documents the methods.
    """

    @property
    def has_failed(self) -> bool: ...
    @property
    def leaves_epoch(self) -> bool: ...

    def saved_in(self) -> str: ...
    def noting_failure(self) -> AbstractContextManager[None]: ...
    def note_usual(self, seconds: float) -> None: ...
    def due_on_this_task(self) -> tuple[int, int, bool]: ...
    def fail_if(self, failed: bool) -> None: ...
    def before_step(self, make_variables: Callable[[], None]) -> None: ...
    def visit(self, reason: Literal["step", "stop"], due: int = 0) -> None: ...


@dataclass
class Call:
    """One call of `fit`, `evaluate` or `predict`: the objects that its loops work with.

    Attributes:
        model: The model; its variables are on the strategy's devices.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        graphs: The cache of the executors, the objects that run the model's steps. A step runs in a
            TensorFlow graph; one call of such a graph (a graph call) takes one or more steps.
        callback_list: The callbacks, in the user's order.
        steps_per_execution: The number of steps in each graph call. If it is None, kfit chooses and
            adapts the number.
        heartbeat: The object that reports what this task is doing to the supervisor (`kfit run`),
            the process that watches the tasks.
        turns: The order in which threads use the model; hooks let other threads in.
        progress: The position in the training: epoch and step.
        account: The object that collects the figures for the report of a `fit`.
        points: The save points of the running `fit`, where callbacks may save the training; None
            outside of `fit`.
        signals: The object that records signals, such as SIGTERM, during `fit`; None outside of
            `fit`.
        naming: Returns the context of the steps of `fit`, in which an error that the data has
            caused names the data.
    """

    model: keras.Model
    strategy: Strategy
    graphs: Graphs
    callback_list: keras.callbacks.CallbackList
    steps_per_execution: int | None
    heartbeat: Heartbeat
    turns: Turns = field(default_factory=Turns)
    progress: Progress = field(default_factory=Progress)
    account: Account = field(default_factory=Account)
    points: _Points | None = None
    signals: StopSignals | None = None
    naming: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """The callbacks of this task, in the user's order."""
        return list(self.callback_list.callbacks)

    def hook(self, name: str, *arguments: Any) -> None:
        """Calls a hook of all callbacks, and reports to the supervisor that the hook runs.

        The supervisor (`kfit run`) is the process that watches the tasks. In a `fit` on several
        tasks, an error in a hook is not raised at once, but kept until all tasks next decide
        together how to continue (`decide`). Then all tasks stop. While an error is kept, this
        method calls no hooks.

        Args:
            name: The name of the hook, such as "on_epoch_end".
            *arguments: The arguments of the hook.
        """
        points = self.points
        if points is not None and points.has_failed:
            return
        noting = nullcontext() if points is None else points.noting_failure()
        began = time.monotonic()
        is_between = name in _BETWEEN_METRICS
        lent = self.turns.lent(to="all" if is_between else "predictions")
        with self.heartbeat.hook(name), noting, lent:
            try:
                getattr(self.callback_list, name)(*arguments)
            except TypeError as error:
                name_wrong_hook(error, self.callbacks)
                raise
            except ValueError as error:
                name_missing_monitor(error, arguments[-1] if arguments else None)
                raise
        if points is not None:
            points.note_usual(time.monotonic() - began)

    def pace(self, hooks: BatchHooks) -> Pace:
        """Returns the rule by which the number of steps in each graph call is chosen.

        If the user has given a number (`steps_per_execution`), this number is used. If not, but a
        callback must be called at every batch, the number is 1. In all other cases the number is
        adapted to the measured speed of the steps.

        Args:
            hooks: The batch hooks of the mode (training, evaluation or prediction).
        """
        return Pace(self.fixed_steps(hooks), self.strategy.seconds_per_execution)

    def fixed_steps(self, hooks: BatchHooks) -> int | None:
        """Returns the number of steps in each graph call, or None if it is to be adapted.

        Steps that run eagerly are taken one by one, since Python code in them may set
        `model.stop_training`, and several together would not be faster.

        Args:
            hooks: As for `pace`.
        """
        takes_one = bool(self.watching(hooks)) or runs_eagerly(self.model)
        return self.steps_per_execution or (1 if takes_one else None)

    def watching(self, hooks: BatchHooks) -> tuple[str, ...]:
        """Returns the classes of the callbacks for which each step is a graph call of its own.

        The result is empty if the user has given the number of steps in each graph call. A callback
        may get a batch hook while it is called, so the result may change.

        Args:
            hooks: As for `pace`.
        """
        if self.steps_per_execution is not None:
            return ()
        watching = (each for each in self.callbacks if watches_batches(each, hooks.mode))
        return tuple(type(each).__name__ for each in watching)


def callback_list(
    callbacks: Callbacks,
    model: keras.Model,
    strategy: Strategy,
    *,
    verbose: str | int = 0,
    epochs: int = 1,
    steps: int | None = None,
    add_history: bool = False,
    global_batch_size: Callable[[], int | None] = lambda: None,
) -> keras.callbacks.CallbackList:
    """Returns the callbacks of this task as a Keras `CallbackList`.

    Callbacks that only write or print are included on the chief only. A `CallbackList` of the
    user's is returned as it is.

    Args:
        callbacks: The callbacks that the user gave.
        model: The model that the callbacks get.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        verbose: As for `fit`.
        epochs: The number of epochs that the progress bar shows.
        steps: The number of steps in an epoch that the progress bar shows; None if it is not known.
        add_history: Whether to add a `keras.callbacks.History` if there is none.
        global_batch_size: As for `ProgressBar`.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    chosen = chosen_verbose(verbose)
    shown = chosen if strategy.is_chief else 0
    made = keras.callbacks.CallbackList(
        callbacks if strategy.is_chief else without_writers(callbacks),
        add_history=add_history,
        model=model,
        verbose=shown,
        epochs=epochs,
        steps=steps,
    )
    if shown and not any(isinstance(c, keras.callbacks.ProgbarLogger) for c in made.callbacks):
        bar = ProgressBar(global_batch_size)
        bar.set_params(made.params)
        bar.set_model(model)
        made.callbacks.append(bar)
    return made
