"""The state of one `fit`, which its loop and kfit's callbacks share."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint import state
from kfit.checkpoint.callback_states import CallbackStates
from kfit.checkpoint.late_variables import LateVariables, may_make_variables, pairs
from kfit.checkpoint.snapshot import Snapshot, split
from kfit.checkpoint.state import PARTS, Part, SnapshotMismatchError
from kfit.distribute.placement import owned_optimizers
from kfit.distribute.strategy import Strategy
from kfit.inputs import Batches
from kfit.training.call import Call
from kfit.training.progress import Progress


class Resuming(NamedTuple):
    """The snapshot that training is about to resume from.

    Attributes:
        snapshot: The snapshot.
        parts: The parts of it to restore.
        skip: How many batches to skip after its place in the data.
        changes: The sections of the fingerprint that the user allows to differ.
    """

    snapshot: Snapshot
    parts: Sequence[Part]
    skip: int
    changes: frozenset[str]


@dataclass
class FitState:
    """What one call of `fit` works with, and shares with the callbacks that save and restore it.

    Attributes:
        call: What its loops work with.
        batches: The training data.
        validation: The validation data; None without.
        should_validate: Whether to validate after an epoch, by its index.
        memory: What the callbacks remember.
        epochs: The epoch to stop after, from 0.
        logs: The logs of the last step or epoch.
        resuming: The snapshot that training is about to resume from.
        run: Names this run, its restarts by `kfit run` included.
        interrupted: Whether training is to stop after this step, to resume in a later run; set on
            all tasks after the same step.
        fingerprint: Describes data, model and how it is compiled; of use on the chief.
    """

    call: Call
    batches: Batches
    validation: Batches | None
    should_validate: Callable[[int], bool]
    memory: CallbackStates
    epochs: int
    logs: dict[str, Any] = field(default_factory=dict)
    resuming: Resuming | None = None
    run: str = field(default_factory=lambda: os.environ.get("KFIT_RUN") or uuid.uuid4().hex)
    interrupted: bool = False
    fingerprint: Callable[[], dict[Any, Any]] = dict
    _frozen: Snapshot | None = None
    _late: LateVariables | None = None
    _early: list[Snapshot] = field(default_factory=list)
    _has_stepped: bool = False
    _goes_on: bool = False

    @property
    def model(self) -> keras.Model:
        """The model, its variables being on the devices."""
        return self.call.model

    @property
    def strategy(self) -> Strategy:
        """The adapter."""
        return self.call.strategy

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """All callbacks of this task, in order."""
        return self.call.callbacks

    @property
    def progress(self) -> Progress:
        """How far training has come."""
        return self.call.progress

    @property
    def is_over(self) -> bool:
        """Whether the last epoch is done, or training was stopped."""
        return self.has_all_epochs or bool(self.model.stop_training)

    @property
    def has_all_epochs(self) -> bool:
        """Whether the last epoch is done."""
        return self.progress.epoch >= self.epochs

    @property
    def is_between_epochs(self) -> bool:
        """Whether no step of the current epoch is taken yet, or all epochs are done."""
        return self.has_all_epochs or self.progress.step_in_epoch == 0

    @property
    def ends_here(self) -> bool:
        """Whether no epoch follows; `stop_training` counts once the snapshot has been restored."""
        stops = bool(self.model.stop_training) and self.resuming is None
        return self.has_all_epochs or stops

    @property
    def is_chief(self) -> bool:
        """Whether this task prints and writes for all."""
        return self.strategy.is_chief

    @property
    def _inputs(self) -> tuple[Batches, Batches | None]:
        return self.batches, self.validation

    def belongings(self) -> set[int]:
        """Identities of the model's and the data's objects, which are no callback's state."""
        own = state.belongings(self.model) | self.batches.belongings()
        return own if self.validation is None else own | self.validation.belongings()

    @property
    def lacks_variables(self) -> bool:
        """Whether the restored snapshot has variables that only a training step makes.

        Such as the slots of an optimizer that the model's own `train_step` builds.
        """
        if self._late is not None:
            return True
        if self._has_stepped or not self._goes_on:
            return False
        return not all(each.built for each in owned_optimizers(self.model))

    def checksum_of_weights(self) -> int | None:
        """The checksum of the weights that a file of the model would hold; None without any."""
        return state.checksum_of_weights(self.model, self.strategy)

    def snapshot(self) -> Snapshot:
        """The state of training now; all tasks call it after the same step.

        It only takes references: TensorFlow copies a variable when training next writes to it.
        During a validation it is the state before the validation, which is then done again.
        """
        if self._frozen is not None:
            return self._frozen
        with self.batches.held():
            taken = self._taken()
        if not self._has_stepped and self._late is None and may_make_variables(self.model):
            self._early.append(taken)
        return taken

    def _taken(self) -> Snapshot:
        """The state as it is now, with that of the data."""
        # Collectives first: what only the chief does may fail, and the others would wait for it.
        variables = state.take_variables(self.model, self.strategy)
        random = state.take_random(self.strategy, self.batches.generators())
        kept = {
            "variables": variables if self._late is None else self._late.whole(variables),
            "progress": self.progress.state_dict(),
            "logs": self.logs,
            "stop_training": bool(self.model.stop_training),
            "data": {**self.batches.state_dict(), "described": self.batches.describe()},
            "validation_data": None if self.validation is None else self.validation.state_dict(),
            "learned": [None if each is None else each.learned for each in self._inputs],
            "callbacks": _copied(self.memory.state_dict(self.callbacks)) if self.is_chief else [],
            "random": random,
        }
        return Snapshot(self._about(), kept)

    def before_step(self, make_variables: Callable[[], None]) -> None:
        """Makes the variables that only a first step makes, and restores their values.

        All tasks call it before each step.

        Args:
            make_variables: Traces the step, without taking it.
        """
        if self._has_stepped:
            return
        lacks_variables, self._has_stepped = self.lacks_variables, True
        if not lacks_variables and not self._early:
            return
        make_variables()
        (late, self._late), (early, self._early) = (self._late, None), (self._early, [])
        if late is not None:
            late.give_rest()
        if early:
            # Snapshots from before there were such variables get them with their initial values.
            made = state.take_variables(self.model, self.strategy)
            for snapshot in early:
                listed = [(e["part"], e["name"], e) for e in snapshot.state["variables"]]
                snapshot.state["variables"] = [old or new for new, old in pairs(listed, made)]

    @contextmanager
    def frozen(self, logs: dict[str, Any]) -> Iterator[Snapshot]:
        """Within it `snapshot()` returns the state from before it, which it yields.

        Args:
            logs: The logs that the snapshot is to hold.
        """
        self.logs = logs
        self._frozen = self.snapshot()
        try:
            yield self._frozen
        finally:
            self._frozen = None

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Python, kfit, Keras and TensorFlow."""
        return _versions()

    def differences(
        self, snapshot: Snapshot, parts: Sequence[Part], *, changes: Collection[str] = ()
    ) -> list[str]:
        """Why training cannot resume from a snapshot: a line for each reason, none if it can."""
        may_lack = may_make_variables(self.model)
        kept = snapshot.state
        lines = state.differences(self.model, kept["variables"], parts, may_lack=may_lack)
        if "progress" in parts and "data" not in changes:
            own, other = self.batches.describe(), kept["data"]["described"]
            lines += [
                f"data: {name} is {own[name]}, in the snapshot {other[name]}"
                for name in own
                if name in other and None not in (own[name], other[name])
                if own[name] != other[name]
            ]
        return lines

    def request_restore(
        self,
        snapshot: Snapshot,
        parts: Sequence[Part] = PARTS,
        *,
        skip: int = 0,
        changes: Collection[str] = (),
    ) -> None:
        """Has training resume from a snapshot at the next save point; all tasks call it.

        Args:
            snapshot: The snapshot, the same on every task.
            parts: The parts of it to restore; the others stay as they are.
            skip: How many batches of the epoch to skip after its place.
            changes: What may differ from the snapshot: with "data" the place in the data is
                restored as far as it exists; with "learning_rate" the program's is kept.

        Raises:
            SnapshotMismatchError: If it is of another training; every difference is named.
        """
        lines = self.differences(snapshot, parts, changes=changes)
        if lines:
            raise SnapshotMismatchError(
                f"The snapshot of step {snapshot.about['step']} is of another training:\n  "
                + "\n  ".join(lines)
            )
        self.resuming = Resuming(snapshot, tuple(parts), skip, frozenset(changes))
        if "progress" in parts:
            self.progress.load_state_dict(snapshot.state["progress"])
            self.progress.step_in_epoch += skip
            steps = self.batches.steps
            if "data" in changes and steps and self.progress.step_in_epoch >= steps:
                self.progress.end_epoch()  # the epochs have become shorter

    def pass_over(self, snapshot: Snapshot) -> bool:
        """Has this `fit` take no step, and restores the model from a snapshot if it fits.

        Args:
            snapshot: The snapshot, the same on every task.

        Returns:
            Whether the snapshot fits the model.
        """
        parts: tuple[Part, ...] = ("model", "optimizer", "metrics")
        may_lack = may_make_variables(self.model)
        kept = snapshot.state["variables"]
        fits = not state.differences(self.model, kept, parts, may_lack=may_lack)
        if fits:
            self.resuming = Resuming(snapshot, parts, 0, frozenset())
        self.progress.epoch = max(self.progress.epoch, self.epochs)
        return fits

    def apply_restore(self) -> None:
        """Restores the snapshot that `request_restore` was called with."""
        assert self.resuming is not None
        (snapshot, parts, skip, changes), self.resuming = self.resuming, None
        kept = snapshot.state
        rates = _learning_rates(self.model) if "learning_rate" in changes else []
        late = LateVariables(self.model, kept["variables"], parts, self.strategy)
        self._late = None if late.give() else late
        self._goes_on = kept["progress"]["step"] > 0
        for optimizer, rate in rates:
            optimizer.learning_rate = rate
        if "progress" in parts:
            self.logs = dict(kept["logs"])
            self.model.stop_training = kept["stop_training"]
            sections = ("data", "validation_data")
            for section, each, steps in zip(sections, self._inputs, kept["learned"], strict=True):
                if each is not None and each.steps is None and steps and section not in changes:
                    each.learned_steps(steps)
            if _is_of_its_kind(self.batches, kept["data"]):
                self.batches.load_state_dict(kept["data"])
                self.batches.pass_over(skip)
            validation, place = self.validation, kept["validation_data"]
            if validation is not None and _is_of_its_kind(validation, place):
                validation.load_state_dict(place)
        if "callbacks" in parts:
            self.memory.load_state_dict(
                self.callbacks,
                kept["callbacks"],
                epoch=kept["progress"]["epoch"],
                warn=self.is_chief,
            )
        if "random" in parts:
            ahead = self.batches.generators() is not None
            state.give_random(kept["random"], self.strategy, drawn_ahead=ahead)

    def finalize(self) -> None:
        """Calls what the optimizer does to the variables at the end, such as averaging them."""
        if isinstance(self.model.optimizer, keras.optimizers.Optimizer):
            with self.strategy.scope():
                self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    def settle(self) -> None:
        """Moves the data to where the next `fit` begins, since no step of this one follows."""
        self.batches.settle()
        if self.validation is not None:
            self.validation.settle()

    def _about(self) -> dict[str, Any]:
        return {
            **self.progress.state_dict(),
            "created": time.time(),
            "run": self.run,
            "strategy": self.strategy.name,
            "num_replicas": self.strategy.num_replicas,
            "num_workers": self.strategy.num_workers,
            "data": self.batches.describe(),
            "data_position": split(self.batches.state_dict())[0],
            "model": self.model.name,
            "versions": _versions(),
        }


def _is_of_its_kind(batches: Batches, kept: Mapping[str, Any] | None) -> bool:
    """Whether the place in the data that a snapshot holds is one of these batches' kind."""
    return kept is not None and set(batches.state_dict()) <= set(kept)


def _learning_rates(model: keras.Model) -> list[tuple[Any, float]]:
    """The optimizers whose learning rate is a variable, and its value."""
    return [
        (optimizer, float(optimizer.learning_rate.numpy()))
        for optimizer in owned_optimizers(model)
        if any(variable is optimizer.learning_rate for variable in optimizer.variables)
    ]


def _copied(value: Any) -> Any:
    """A copy of a tree of lists, dicts and arrays."""
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_copied(part) for part in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "kfit": version("kfit"),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
    }
