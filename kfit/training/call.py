"""One call of `fit`, `evaluate` or `predict`: what its loops work with, and how they call hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import keras

from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.steps.compiled_steps import Graphs
from kfit.steps.execution import Pace
from kfit.training.batch_hooks import BatchHooks, watches_batches
from kfit.training.chief_only import without_writers
from kfit.training.progress import Progress
from kfit.training.stop_signals import StopSignals

Callbacks: TypeAlias = (
    keras.callbacks.CallbackList | Sequence[Any] | keras.callbacks.Callback | None
)


class _Points(Protocol):
    """What a loop asks of the save points of its `fit`; `SavePoints` documents it."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def leaves_epoch(self) -> bool: ...

    def noting_failure(self) -> AbstractContextManager[None]: ...
    def note_usual(self, seconds: float) -> None: ...
    def due_on_this_task(self) -> tuple[int, int, bool]: ...
    def fail_if(self, failed: bool) -> None: ...
    def before_step(self, make_variables: Callable[[], None]) -> None: ...
    def visit(self, reason: Literal["step", "stop"], due: int = 0) -> None: ...


@dataclass
class Call:
    """What the loops of one call work with.

    Attributes:
        model: The model that the callbacks see, its variables being on the devices.
        strategy: The adapter.
        graphs: The executions of the model's steps.
        callback_list: The callbacks, in the user's order.
        steps_per_execution: Steps of every execution, or None to find them.
        heartbeat: Reports to the supervisor that this task makes progress.
        progress: How far training has come.
        points: The save points of the `fit` under way, None outside of one.
        signals: The signals that came during it.
    """

    model: keras.Model
    strategy: Strategy
    graphs: Graphs
    callback_list: keras.callbacks.CallbackList
    steps_per_execution: int | None
    heartbeat: Heartbeat
    progress: Progress = field(default_factory=Progress)
    points: _Points | None = None
    signals: StopSignals | None = None

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """The callbacks of this task, in the user's order."""
        return list(self.callback_list.callbacks)

    def hook(self, name: str, *arguments: Any) -> None:
        """Calls a hook of all callbacks, and reports to the supervisor that it runs.

        If a hook raises in a `fit` on several tasks, the error is kept until all tasks can stop
        together, at their next decision. Until then no other hook is called.
        """
        points = self.points
        if points is not None and points.has_failed:
            return
        noting = nullcontext() if points is None else points.noting_failure()
        began = time.monotonic()
        with self.heartbeat.hook(name), noting:
            getattr(self.callback_list, name)(*arguments)
        if points is not None:
            points.note_usual(time.monotonic() - began)

    def pace(self, hooks: BatchHooks) -> Pace:
        """The pace of a mode: one step an execution where a callback has hooks for batches."""
        watched = any(watches_batches(callback, hooks.mode) for callback in self.callbacks)
        steps = self.steps_per_execution or (1 if watched else None)
        return Pace(steps, self.strategy.seconds_per_execution)


def callback_list(
    callbacks: Callbacks,
    model: keras.Model,
    strategy: Strategy,
    *,
    verbose: str | int = 0,
    epochs: int = 1,
    steps: int | None = None,
    add_history: bool = False,
) -> keras.callbacks.CallbackList:
    """The callbacks of this task as a Keras `CallbackList`; one that the user made is returned.

    Args:
        callbacks: What the user gave.
        model: The model that they see.
        strategy: The adapter; callbacks that only write or print run on its chief alone.
        verbose: As for `fit`.
        epochs: Number of epochs that the progress bar shows.
        steps: Steps of an epoch that it shows; None where they are not known.
        add_history: Whether to add a `keras.callbacks.History` where there is none.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    shown = verbose if strategy.is_chief else 0
    return keras.callbacks.CallbackList(
        callbacks if strategy.is_chief else without_writers(callbacks),
        add_history=add_history,
        add_progbar=shown != 0,
        model=model,
        verbose=shown,
        epochs=epochs,
        steps=steps,
    )
