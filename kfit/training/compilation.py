"""Notices that a hook compiles the model, or gives an optimizer another schedule, during `fit`."""

from __future__ import annotations

from typing import Any

import keras

from kfit.distribute.owned import owned_optimizers
from kfit.internals.optimizers import schedule_of
from kfit.steps.compiled_steps import Graphs


class Compilation:
    """How the model is compiled during a `fit`, compared with how the program compiles it.

    What hooks do in `on_train_begin`, they do again in each run of the program. So a `compile`
    there is none in the middle of training.

    Args:
        graphs: The cache of the model's executors, which knows how the model is compiled.
        model: The model.

    Attributes:
        has_begun: Whether all `on_train_begin` have been called.
    """

    def __init__(self, graphs: Graphs, model: keras.Model) -> None:
        self._graphs = graphs
        self._model = model
        self._made_as = self._begun_as = graphs.compiled
        self._made_with = self._begun_with = _schedules(model)
        self.has_begun = False

    def note_beginning(self) -> None:
        """Records how the model is compiled; called after all `on_train_begin`."""
        self.has_begun = True
        self._begun_as, self._begun_with = self._graphs.compiled, _schedules(self._model)

    @property
    def is_anew(self) -> bool:
        """Whether a hook has compiled the model after all `on_train_begin`."""
        return self._graphs.compiled.differs_from(self._begun_as)

    @property
    def has_another_schedule(self) -> bool:
        """Whether a hook has set a schedule as a learning rate after all `on_train_begin`."""
        return _differ(_schedules(self._model), self._begun_with)

    @property
    def is_of_beginning(self) -> bool:
        """Whether an `on_train_begin` has compiled the model or set a schedule."""
        has_another = _differ(self._begun_with, self._made_with)
        return has_another or self._begun_as.differs_from(self._made_as)

    def described(self) -> dict[str, bool]:
        """Returns what a snapshot tells of it; a later run starts with the program's compilation.

        The entries are "compiled_anew", for changes after all `on_train_begin`, and
        "compiled_at_begin", for those of `on_train_begin`; one that is false is left out.
        """
        changes = {
            "compiled_anew": self.is_anew or self.has_another_schedule,
            "compiled_at_begin": self.is_of_beginning,
        }
        return {name: True for name, is_changed in changes.items() if is_changed}


def _schedules(model: keras.Model) -> list[tuple[Any, Any]]:
    """Returns the optimizers, each with the schedule of its learning rate; None for a variable."""
    return [(optimizer, schedule_of(optimizer)) for optimizer in owned_optimizers(model)]


def _differ(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    """Returns whether one of the optimizers has another schedule than before."""
    return any(
        optimizer is other and schedule is not old
        for optimizer, schedule in now
        for other, old in before
    )
