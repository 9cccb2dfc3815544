"""One `fit` under way: its state, and what kfit's callbacks may ask of it."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from io import BytesIO
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint import state
from kfit.checkpoint.arrays import hdf5_bytes, read_hdf5
from kfit.checkpoint.callback_states import CallbackStates
from kfit.checkpoint.late_variables import LateVariables, may_make_variables, pairs
from kfit.checkpoint.manifest import parse_json
from kfit.checkpoint.snapshot import Snapshot, join, split, to_json
from kfit.checkpoint.state import PARTS, Part, SnapshotMismatchError
from kfit.distribute.host_collectives import HostCollectives
from kfit.distribute.placement import owned_optimizers
from kfit.distribute.strategy import Strategy
from kfit.inputs import Batches
from kfit.training.progress import Progress


class Resuming(NamedTuple):
    """What training is about to go on from.

    Attributes:
        snapshot: The state.
        parts: What to take of it.
        skip: How many batches to pass over.
        changes: What has changed since and may.
    """

    snapshot: Snapshot
    parts: Sequence[Part]
    skip: int
    changes: frozenset[str]


@dataclass
class Training:
    """What one call of `fit` shares with the callbacks that save, restore and stop it.

    Attributes:
        model: The model, its variables being on the devices.
        strategy: The adapter.
        host_collectives: How the tasks ask each other; a collective, to be called by all.
        progress: How far training has come.
        batches: The training data.
        validation: The validation data; None without.
        callbacks: All callbacks of this task, in order.
        memory: What they remember.
        logs: The logs of the last step or epoch.
        resuming: What training is about to go on from.
        epochs: The epoch to stop after, from 0.
        evaluate: Evaluates data with the weights as they are; see `evaluate_aside`.
        run: Names this run, its restarts by `kfit run` included.
        interrupted: Whether training is to stop after this step, to go on in a later run; set on
            all tasks at the same step.
        fingerprint: Describes data, model and how it is compiled; of use on the chief.
    """

    model: keras.Model
    strategy: Strategy
    host_collectives: HostCollectives
    progress: Progress
    batches: Batches
    validation: Batches | None
    callbacks: Sequence[keras.callbacks.Callback]
    memory: CallbackStates
    logs: dict[str, Any] = field(default_factory=dict)
    resuming: Resuming | None = None
    epochs: int = 0
    evaluate: Callable[..., dict[str, Any]] | None = None
    run: str = field(default_factory=lambda: os.environ.get("KFIT_RUN") or uuid.uuid4().hex)
    interrupted: bool = False
    fingerprint: Callable[[], dict[Any, Any]] = dict
    _frozen: Snapshot | None = None
    _late: LateVariables | None = None
    _early: list[Snapshot] = field(default_factory=list)
    _has_stepped: bool = False
    _goes_on: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the last epoch is done, or training was stopped."""
        return self.progress.epoch >= self.epochs or bool(self.model.stop_training)

    @property
    def is_chief(self) -> bool:
        """Whether this task prints and writes for all."""
        return self.strategy.is_chief

    def belongings(self) -> set[int]:
        """Identities of the model's and the data's objects, which are no callback's state."""
        own = state.belongings(self.model) | self.batches.belongings()
        return own if self.validation is None else own | self.validation.belongings()

    @property
    def lacks_variables(self) -> bool:
        """Whether only a step makes what there was when the snapshot that was loaded was taken.

        These are variables of the snapshot, or that an optimizer without any of its own is built.
        """
        if self._late is not None:
            return True
        if self._has_stepped or not self._goes_on:
            return False
        return not all(each.built for each in owned_optimizers(self.model))

    def checksum_of_weights(self) -> int | None:
        """Of what a file of the model would hold now; None where it has no weights yet."""
        return state.checksum_of_weights(self.model, self.strategy, self.host_collectives)

    def snapshot(self) -> Snapshot:
        """The state of training now; all tasks call it after the same step.

        It takes the time of taking references: no array is copied until training writes to it.
        During a validation it is the state before that, from which it can be done again.
        """
        if self._frozen is not None:
            return self._frozen
        with self.batches.held():
            taken = self._taken()
        if not self._has_stepped and self._late is None and may_make_variables(self.model):
            self._early.append(taken)
        return taken

    def _taken(self) -> Snapshot:
        """The state as it is, of the data as well."""
        # First what all tasks take together: what only one of them is asked for may fail there.
        variables = state.take_variables(self.model, self.strategy, self.host_collectives)
        random = state.take_random(self.strategy, self.host_collectives, self.batches.generators())
        kept = {
            "variables": variables if self._late is None else self._late.whole(variables),
            "progress": self.progress.state_dict(),
            "logs": self.logs,
            "stop_training": bool(self.model.stop_training),
            "data": {**self.batches.state_dict(), "described": self.batches.describe()},
            "validation_data": None if self.validation is None else self.validation.state_dict(),
            "callbacks": _copied(self.memory.state_dict(self.callbacks)) if self.is_chief else [],
            "random": random,
        }
        return Snapshot(self._about(), kept)

    def before_step(self, make_variables: Callable[[], None]) -> None:
        """Has the variables that only a first step makes be there, with the values they must have.

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
            # What was taken before there were any has them as they are made.
            made = state.take_variables(self.model, self.strategy, self.host_collectives)
            for snapshot in early:
                listed = [(e["part"], e["name"], e) for e in snapshot.state["variables"]]
                snapshot.state["variables"] = [old or new for new, old in pairs(listed, made)]

    @contextmanager
    def frozen(self, logs: dict[str, Any]) -> Iterator[None]:
        """Within it `snapshot` is that of before it; `logs` are those of the epoch's steps."""
        self.logs = logs
        self._frozen = self.snapshot()
        try:
            yield
        finally:
            self._frozen = None

    def evaluate_aside(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Evaluates other data at a save point, and goes on as if that had not been.

        All tasks call it at the same save point. A signal that comes meanwhile stops training
        there.

        Args:
            *args: `x`, `y` and `sample_weight`, as for `kfit.Trainer.evaluate`.
            **kwargs: `batch_size`, `steps` and `callbacks`, as there.

        Returns:
            The loss and the metrics.
        """
        assert self.evaluate is not None
        with self.frozen(self.logs):
            logs = self.evaluate(*args, **kwargs)
            assert self._frozen is not None
            before = self._frozen.state
        # The metrics have added up something else.
        state.give_variables(self.model, before["variables"], ("metrics",), self.strategy)
        return logs

    def share(self, snapshot: Snapshot | None) -> Snapshot | None:
        """The chief's snapshot, or None, on every task; needs no shared file system."""
        found = self.strategy.is_chief and snapshot is not None
        if self.strategy.num_workers == 1 or not self.host_collectives.any_true(found):
            return snapshot
        content = [b"", b""]
        if self.strategy.is_chief and snapshot is not None:
            values, arrays = split(snapshot.state)
            content = [to_json([snapshot.about, values]), b"".join(hdf5_bytes(arrays))]
        text, packed = (self.host_collectives.content(part) for part in content)
        about, values = parse_json("the chief's snapshot", text)
        return Snapshot(about, join(values, read_hdf5(BytesIO(packed), len(packed))))

    @property
    def versions(self) -> dict[str, str]:
        """Of Python and of the libraries that train."""
        return _versions()

    def differences(
        self, snapshot: Snapshot, parts: Sequence[Part], *, changes: Collection[str] = ()
    ) -> list[str]:
        """Why training cannot go on from a snapshot, a line each."""
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
        """Has training go on from a snapshot, on all tasks.

        Args:
            snapshot: The snapshot, the same on every task.
            parts: What to take of it; the rest stays as it is.
            skip: How many batches to pass over, from there on, within the epoch.
            changes: What has changed since, and may: with "data" the place in them is taken as far
                as there is one; with "learning_rate" the program's is kept.

        Raises:
            SnapshotMismatchError: If it does not fit; every difference is named.
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
        """Has training take no step, and the model be that of a snapshot if it is one of it.

        Args:
            snapshot: The snapshot, the same on every task.

        Returns:
            Whether it is.
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
        """Applies the snapshot that was asked for, after the hooks before the save point."""
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

    def settle(self) -> None:
        """No step follows: the data stand where those of the next `fit` begin."""
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
    """Whether a snapshot has a place for these batches, and not one in data of another kind."""
    return kept is not None and set(batches.state_dict()) <= set(kept)


def _learning_rates(model: keras.Model) -> list[tuple[Any, float]]:
    """The optimizers whose learning rate is a variable, and its value."""
    return [
        (optimizer, float(optimizer.learning_rate.numpy()))
        for optimizer in owned_optimizers(model)
        if any(variable is optimizer.learning_rate for variable in optimizer.variables)
    ]


def _copied(value: Any) -> Any:
    """A tree that stays as it is while callbacks go on with theirs."""
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
