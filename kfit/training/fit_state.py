"""The state of one `fit`, which its loop and kfit's callbacks share."""

from __future__ import annotations

import os
import platform
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint import state
from kfit.checkpoint.callback_states import CallbackStates
from kfit.checkpoint.late_variables import (
    LateVariables,
    give_known_metrics,
    may_make_variables,
    pairs,
)
from kfit.checkpoint.model_attributes import ModelAttributes
from kfit.checkpoint.schema import each_value, is_a
from kfit.checkpoint.snapshot import Snapshot, split, with_scalars, without_others
from kfit.checkpoint.state import PARTS, Part, SnapshotMismatchError
from kfit.checkpoint.training_schema import check_training
from kfit.cluster.printable import printable
from kfit.distribute.owned import owned_optimizers
from kfit.distribute.same_model import require_same_variables
from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_values import value_here
from kfit.fault_sites import Site, reach
from kfit.heartbeat import Phase
from kfit.inputs import Batches
from kfit.objects.entries import check_entries
from kfit.objects.values import decode
from kfit.report import Account
from kfit.report.lost_steps import Attempt
from kfit.steps.frozen import TrainableFlags
from kfit.training.call import Call
from kfit.training.compilation import Compilation
from kfit.training.order_seeds import OrderSeeds
from kfit.training.progress import Progress
from kfit.training.share_snapshot import share_snapshot


class Resuming(NamedTuple):
    """The snapshot that training is about to resume from, and how.

    Attributes:
        snapshot: The snapshot.
        parts: The parts of the snapshot to restore, such as "model" or "progress".
        skip: How many batches to skip after the snapshot's position in the data.
        changes: What the user allows to differ from the training of the snapshot, such as "data" or
            "learning_rate".
    """

    snapshot: Snapshot
    parts: Sequence[Part]
    skip: int
    changes: frozenset[str]


@dataclass
class FitState:
    """The state of one call of `fit`, for its loop and for callbacks that save or restore it.

    Attributes:
        call: The model, the callbacks and other objects that the loops of this `fit` work with.
        batches: The training data.
        validation: The validation data; None if there is none.
        own_evaluate: A function that validates by the `evaluate` that the model itself defines;
            None if the model uses that of Keras. It has two arguments: a function that evaluates
            `validation`, for the case that the model calls `super().evaluate`; and `callbacks`.
        should_validate: A function that gets the index of an epoch and returns whether a validation
            follows the epoch.
        memory: The object that saves and restores the states of the callbacks.
        epochs: The number of epochs after which training ends, including those before
            `initial_epoch`.
        logs: The logs of the last step or epoch.
        resuming: The snapshot that training is about to resume from; None if there is none.
        run: The ID of this run, which stays the same when `kfit run` restarts the tasks.
        interrupted: Whether training is to stop after this step, to resume in a later run. A
            callback sets it on all tasks after the same step.
        told_of_end: Whether the user has been told that the data has ended before the epochs.
        fingerprint: A function that returns the fingerprint, a description of the data, the model
            and its compilation, which is compared with that of a snapshot. Only the chief needs it.
        build_optimizer: A function that builds the optimizer, unless it is built already or the
            first step builds it. As in Keras, it is not built while hooks precede the first step.
        seeds: What the orders of the data come from, in this `fit` and in later ones; None if no
            snapshot is to contain it.
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
    told_of_end: bool = False
    own_evaluate: Callable[..., dict[str, Any]] | None = None
    fingerprint: Callable[[], dict[Any, Any]] = dict
    build_optimizer: Callable[[], None] = lambda: None
    seeds: OrderSeeds | None = None
    _frozen: Snapshot | None = None
    _late: LateVariables | None = None
    _early: list[Snapshot] = field(default_factory=list)
    _has_stepped: bool = False
    _goes_on: bool = False

    def __post_init__(self) -> None:
        self.compilation = Compilation(self.call.graphs, self.call.model)

    def note_beginning(self) -> None:
        """Records how the model is compiled, and what is frozen; called after `on_train_begin`."""
        self.compilation.note_beginning()
        self._flags = TrainableFlags(self.model)

    @cached_property
    def own_attributes(self) -> ModelAttributes:
        """The Python state of the model's steps, if these run eagerly."""
        return ModelAttributes(self.model)

    @cached_property
    def _flags(self) -> TrainableFlags:
        return TrainableFlags(self.model)

    @property
    def model(self) -> keras.Model:
        """The model; its variables are on the strategy's devices."""
        return self.call.model

    @property
    def strategy(self) -> Strategy:
        """The adapter: kfit's wrapper of the `tf.distribute` strategy."""
        return self.call.strategy

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """All callbacks of this task, in the user's order."""
        return self.call.callbacks

    @property
    def progress(self) -> Progress:
        """The position in the training: the numbers of epochs and steps that are done."""
        return self.call.progress

    @property
    def account(self) -> Account:
        """The object that collects the figures for the report of this `fit`."""
        return self.call.account

    @property
    def is_over(self) -> bool:
        """Whether all epochs are done, the data has ended, or `model.stop_training` is set."""
        has_ended = self.batches.has_ended
        return self.has_all_epochs or has_ended or bool(self.model.stop_training)

    @property
    def has_all_epochs(self) -> bool:
        """Whether all epochs of this `fit` are done."""
        return self.progress.epoch >= self.epochs

    @property
    def is_between_epochs(self) -> bool:
        """Whether no step of the current epoch has been taken yet, or all epochs are done."""
        return self.has_all_epochs or self.progress.step_in_epoch == 0

    @property
    def ends_here(self) -> bool:
        """Whether no epoch follows: all epochs are done, or `model.stop_training` is set.

        While a snapshot is waiting to be restored, `stop_training` is ignored, since the restore
        sets it to the value in the snapshot. As in Keras it is also ignored before the first step.
        """
        has_begun = self.resuming is None and self.progress.step > 0
        stops = bool(self.model.stop_training) and has_begun
        return self.has_all_epochs or stops

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, which prints and writes files for all tasks."""
        return self.strategy.is_chief

    @property
    def _inputs(self) -> tuple[Batches, Batches | None]:
        return self.batches, self.validation

    def belongings(self) -> set[int]:
        """Returns the ids (as of `id`) of objects that belong to the model or the data.

        If an attribute of a callback refers to such an object, the object is not saved as a part of
        the callback's state.
        """
        own = state.belongings(self.model) | self.batches.belongings()
        return own if self.validation is None else own | self.validation.belongings()

    @property
    def lacks_variables(self) -> bool:
        """Whether training has resumed, but lacks variables that only a training step creates.

        Examples are the slots of an optimizer that the model's own `train_step` builds. Their
        values in the snapshot can be restored only after a step was traced.
        """
        if self._late is not None:
            return True
        if self._has_stepped or not self._goes_on:
            return False
        return not all(each.built for each in owned_optimizers(self.model))

    @property
    def _epochs_done(self) -> float:
        """How many epochs are done, with the done part of the current one as far as it is known."""
        progress, steps = self.progress, self.batches.steps
        return progress.epoch + (progress.step_in_epoch / steps if steps else 0.0)

    def checksum_of_weights(self) -> int | None:
        """Returns the checksum of the weights that a file of the model would contain.

        By the checksum a later run recognizes a `fit`. The result is None if the model has no
        weights yet.
        """
        return state.checksum_of_weights(self.model, self.strategy)

    def steps_of_optimizers(self) -> int:
        """Returns how many steps the optimizers of the model have taken in total."""
        built = [each for each in owned_optimizers(self.model) if each.built]
        return sum(int(each.iterations) for each in built)

    def snapshot(self) -> Snapshot:
        """Returns a snapshot of the current state of training.

        It is a collective: all tasks must call it after the same step. The values of variables are
        not copied here, since TensorFlow copies a variable when training next writes to it. During
        a validation the method returns the state before the validation, since training that resumes
        repeats the validation.
        """
        if self._frozen is not None:
            return self._frozen
        with self.batches.held():
            taken = self._taken()
        if not self._has_stepped and self._late is None and may_make_variables(self.model):
            self._early.append(taken)
        return taken

    def _taken(self) -> Snapshot:
        """Makes a snapshot of the state as it is now; no batch may be drawn meanwhile.

        It is a collective: all tasks must call it.
        """
        # Collectives first: what only the chief does may fail, and the others would wait for it.
        variables = state.take_variables(self.model, self.strategy)
        random = state.take_random(self.strategy, self.batches.generators())
        if self.seeds is not None:
            random["seeding"] = self.seeds.state_dict()
        kept = {
            "variables": variables if self._late is None else self._late.whole(variables),
            "progress": self.progress.state_dict(),
            "logs": without_others(self.logs),
            "stop_training": bool(self.model.stop_training),
            "data": {
                **self.batches.state_dict(),
                "first_epoch": self.batches.first_epoch,
                "described": self.batches.describe(),
            },
            "validation_data": None if self.validation is None else self.validation.state_dict(),
            "learned": [None if each is None else each.learned for each in self._inputs],
            "callbacks": _copied(self.memory.state_dict(self.callbacks)) if self.is_chief else [],
            "trainable": self._flags.state_dict(),
            "random": random,
            "account": self.account.state_dict(self.call.heartbeat.fit_number),
        }
        if self.is_chief:
            self.own_attributes.warn_of_settings()
        if self.own_attributes.are_kept:
            kept["own_attributes"] = _copied(self.own_attributes.state_dict(warn=self.is_chief))
        return Snapshot(self._about(), kept)

    def before_step(self, make_variables: Callable[[], None]) -> None:
        """Creates the variables that only a training step creates, and restores their saved values.

        All tasks must call the method before each step. It builds an optimizer that is not built;
        only the first call does anything else. Further such variables are the slots of an optimizer
        that the model's own `train_step` builds. If training has resumed, the new variables get
        their values in the snapshot. The new variables are also added to snapshots that were taken
        before.

        Args:
            make_variables: A function that traces the step without taking it, which creates the
                variables.
        """
        self.build_optimizer()
        if self._has_stepped:
            return
        made = [v for each in owned_optimizers(self.model) for v in each.variables]
        require_same_variables(made, self.strategy.host_collectives)  # hooks decide on them, too
        lacks_variables, self._has_stepped = self.lacks_variables, True
        if not lacks_variables and not self._early:
            return
        if lacks_variables or may_make_variables(self.model):
            with self.own_attributes.unchanged():
                make_variables()
        (late, self._late), (early, self._early) = (self._late, None), (self._early, [])
        if late is not None:
            late.give_rest()
        if early:
            # Snapshots that were taken before these variables existed get their initial values.
            made = state.take_variables(self.model, self.strategy)
            for snapshot in early:
                listed = [(e["part"], e["name"], e) for e in snapshot.state["variables"]]
                snapshot.state["variables"] = [old or new for new, old in pairs(listed, made)]

    @contextmanager
    def frozen(self, logs: dict[str, Any]) -> Iterator[Snapshot]:
        """Context in which `snapshot` always returns the state at the beginning of the context.

        Used during a validation, which is repeated if training resumes from such a snapshot; the
        time to take it counts as that of the validation. It is a collective: all tasks must enter
        the context after the same step.

        Args:
            logs: The logs to store in the snapshot.

        Yields:
            The snapshot.
        """
        self.logs = logs
        with self.account.validating(), self.call.heartbeat.phase(Phase.WORK):
            self._frozen = self.snapshot()
        try:
            yield self._frozen
        finally:
            self._frozen = None

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Python, kfit, Keras and TensorFlow."""
        return dict(_versions())

    def check(self, snapshot: Snapshot, *, is_own: bool = False) -> None:
        """Checks that a snapshot which was read from files can be one of a training like this.

        A snapshot that cannot counts as damaged, and the one before is taken. Whether it is of this
        training is another question (`differing_variables`, `differing_data`).

        Args:
            snapshot: The snapshot.
            is_own: Whether this training has just made the snapshot, which is to be written. Then
                nothing is read from the data, which may be in use in another thread.

        Raises:
            Exception: If the snapshot has another form than it must have, or if one of its states
                cannot be that of a callback with the same name.
        """
        check_training(snapshot)
        kept = snapshot.state
        each_value(is_a(dict))(kept.get("fingerprint", {}), "state['fingerprint']")
        torch, own = kept["random"]["torch"], _bytes_of_torch()
        if torch is not None and own is not None and len(torch) != own:
            raise ValueError(f"state['random']['torch'] has {len(torch)} bytes, not {own}")
        self.memory.check(self.callbacks, kept["callbacks"])
        for entry in (*kept["callbacks"], *kept.get("own_attributes", [])):
            check_entries(entry["attributes"])
        for section, batches in zip(("data", "validation_data"), self._inputs, strict=True):
            position = kept[section] or {}
            if batches is not None and (is_own or _is_of_its_kind(batches, position)):
                for name, check in batches.checks.items():
                    if name in position:
                        check(position[name], f"state[{section!r}][{name!r}]")
            begun = position.get("begun")
            for part in (position, begun if isinstance(begun, dict) else {}):
                if isinstance(part.get("own"), list):
                    check_entries(part["own"])
                decode(part.get("said"))

    def differing_variables(
        self, snapshot: Snapshot, parts: Sequence[Part], *, changes: Collection[str] = ()
    ) -> list[str]:
        """Lists the differences between the model's variables and those of a snapshot.

        Args:
            snapshot: The snapshot.
            parts: The parts of the snapshot to restore, such as "model" or "progress".
            changes: What may differ from the training of the snapshot. With "metrics" the variables
                of metrics are not compared.

        Returns:
            A line for each difference; none if the parts can be restored. Of variables that an
            `on_train_begin` makes by `compile`, there is none before it was called.
        """
        if snapshot.about.get("compiled_at_begin") and not self.compilation.has_begun:
            parts = [part for part in parts if part == "model"]
        parts = [part for part in parts if part != "metrics" or part not in changes]
        may_lack = may_make_variables(self.model)
        return state.differences(self.model, snapshot.state["variables"], parts, may_lack=may_lack)

    def differing_data(self, snapshot: Snapshot, parts: Sequence[Part]) -> list[str]:
        """Lists the differences between the settings of the data and those of a snapshot.

        Args:
            snapshot: The snapshot.
            parts: The parts of the snapshot to restore, such as "model" or "progress".

        Returns:
            A line for each difference, such as another batch size; none if the progress, which
            counts the steps, is not restored.
        """
        if "progress" not in parts:
            return []
        own, other = self.batches.describe(), snapshot.state["data"]["described"]
        return [
            f"data: {name} is {own[name]}, in the snapshot {other[name]}"
            for name in own
            if name in other and None not in (own[name], other[name])
            if own[name] != other[name]
        ]

    def request_restore(
        self,
        snapshot: Snapshot,
        parts: Sequence[Part] = PARTS,
        *,
        skip: int = 0,
        changes: Collection[str] = (),
    ) -> None:
        """Checks that training can resume from a snapshot, and requests that it does.

        Two things are done at once. The model's variables and the data are compared with those of
        the snapshot, as far as `parts` needs them. And if `parts` contains "progress", the numbers
        of the epoch and the step are set to those of the snapshot, plus `skip` steps of the epoch.

        Everything else is restored later, when training calls `apply_restore`: before the next
        `on_epoch_begin` if training is to continue at the beginning of an epoch, and after it if
        training is to continue in the midst of an epoch.

        All tasks must call this method at the same place in the training. It does not wait for the
        other tasks.

        Args:
            snapshot: The snapshot, the same on every task.
            parts: The parts of the snapshot to restore; the others stay as they are.
            skip: How many batches of the epoch to skip after the snapshot's position in the data.
            changes: What may differ from the training of the snapshot. With "data" the data is not
                compared. The position in the data is then restored only if the present data is of
                the same kind as that of the snapshot, for example if both are arrays. If the epochs
                are now too short to contain this position, training continues with the next epoch.
                With "learning_rate" the program's learning rate is kept. With "metrics" a metric
                that the snapshot does not have begins anew.

        Raises:
            SnapshotMismatchError: If the model or the data is not that of the snapshot, as far as
                the restored parts need it. The message lists every difference.
        """
        lines = self.differing_variables(snapshot, parts, changes=changes)
        if "data" not in changes:
            lines += self.differing_data(snapshot, parts)
        _refuse(snapshot, lines)
        self.resuming = Resuming(snapshot, tuple(parts), skip, frozenset(changes))
        if "progress" in parts:
            self.progress.load_state_dict(snapshot.state["progress"])
            self.progress.step_in_epoch += skip
            steps = self.batches.steps
            if "data" in changes and steps and self.progress.step_in_epoch >= steps:
                self.progress.end_epoch()  # the epochs have become shorter

    def pass_over(self, snapshot: Snapshot) -> bool:
        """Makes this `fit` take no step, and requests that the model gets the state in a snapshot.

        Used if an earlier run has finished this `fit` and its final snapshot was deleted, so that
        only a snapshot of a later `fit` is left. If this snapshot does not fit the model, the model
        stays as it is.

        Args:
            snapshot: The snapshot of the later `fit`, the same on every task.

        Returns:
            Whether the snapshot fits the model.
        """
        parts: tuple[Part, ...] = ("model", "optimizer", "metrics")
        with self._flags.as_trained(snapshot.state.get("trainable")):
            self.build_optimizer()  # no step follows
        may_lack = may_make_variables(self.model)
        kept = snapshot.state["variables"]
        fits = not state.differences(self.model, kept, parts, may_lack=may_lack)
        if fits:
            self.resuming = Resuming(snapshot, parts, 0, frozenset())
        self.progress.epoch = max(self.progress.epoch, self.epochs)
        return fits

    @property
    def goes_on_here(self) -> bool:
        """Whether training has resumed from a snapshot, and has not taken a step since."""
        return self._goes_on and not self._has_stepped

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A context in which training moves to the position of a snapshot, without taking steps.

        That may take long, since batches may be read again. If this process has not taken a step
        yet, a signal stops training at once, since there is nothing to save.
        """
        signals = self.call.signals
        at_once = nullcontext() if signals is None or self._has_stepped else signals.at_once()
        with self.call.heartbeat.phase(Phase.SKIPPING), at_once:
            yield

    def apply_restore(self) -> None:
        """Restores the snapshot that `request_restore` or `pass_over` has requested.

        All tasks must call it at the same place in the training.

        Raises:
            SnapshotMismatchError: If an `on_train_begin` has compiled the model, in this run or in
                that of the snapshot, or the optimizer was not built before, and the model's
                variables are not those of the snapshot.
        """
        assert self.resuming is not None
        (snapshot, parts, skip, changes), self.resuming = self.resuming, None
        kept = snapshot.state
        makes_slots = "optimizer" in parts and self._has_fewer_slots(kept["variables"])
        if makes_slots:
            with self._flags.as_trained(kept.get("trainable")):
                self.build_optimizer()
        compiled = self.compilation.is_of_beginning or snapshot.about.get("compiled_at_begin")
        if makes_slots or compiled:
            _refuse(snapshot, self.differing_variables(snapshot, parts, changes=changes))
        rates = _learning_rates(self.model) if "learning_rate" in changes else []
        whole = parts
        if "metrics" in parts and "metrics" in changes:
            give_known_metrics(self.model, kept["variables"], self.strategy)
            whole = tuple(part for part in parts if part != "metrics")
        late = LateVariables(self.model, kept["variables"], whole, self.strategy)
        self._late = None if late.give() else late
        reach(Site.RESTORING)
        self._goes_on = kept["progress"]["step"] > 0
        for optimizer, rate in rates:
            optimizer.learning_rate = rate
        self._flags.load_state_dict(kept.get("trainable"))
        if "model" in parts and "own_attributes" in kept:
            self.own_attributes.load_state_dict(kept["own_attributes"])
        if "progress" in parts:
            about = snapshot.about
            complete = bool(about.get("finished") or about.get("stopped"))
            self.account.restored(kept.get("account"), about["step"], complete=complete)
            fit = Attempt.of_environment().fit_of(kept.get("account") or {})
            if fit is not None:
                self.call.heartbeat.set_fit_number(fit)
            self.logs = with_scalars(dict(kept["logs"]))
            self.model.stop_training = kept["stop_training"]
            self.batches.first_epoch = kept["data"].get("first_epoch", 0)
            sections = ("data", "validation_data")
            for section, each, steps in zip(sections, self._inputs, kept["learned"], strict=True):
                if each is not None and each.steps is None and steps and section not in changes:
                    each.learned_steps(steps)
            validation, place = self.validation, kept["validation_data"]
            if validation is not None and _is_of_its_kind(validation, place):
                validation.load_state_dict(place)
            # Last, since the validation data may draw from the same generators meanwhile.
            if _is_of_its_kind(self.batches, kept["data"]):
                self.batches.load_state_dict(kept["data"])
                self.batches.pass_over(skip)
        if "callbacks" in parts:
            epoch = kept["progress"]["epoch"]
            has_ended = self.batches.has_ended
            is_over = kept["stop_training"] or has_ended or epoch >= self.epochs
            states = self._callback_states(kept["callbacks"])
            self.memory.load_state_dict(
                self.callbacks,
                states,
                epoch=None if is_over else epoch,
                warn=self.is_chief,
            )
            if not self._has_stepped:  # otherwise a callback has rolled training back
                self.memory.note_resume(self.callbacks, self._epochs_done)
        if "random" in parts:
            if self.seeds is not None and "seeding" in kept["random"]:
                self.seeds.load_state_dict(kept["random"]["seeding"])
            ahead = self.batches.generators() is not None
            state.give_random(kept["random"], self.strategy, drawn_ahead=ahead)

    def _has_fewer_slots(self, kept: Sequence[dict[str, Any]]) -> bool:
        """Returns whether the model's optimizers have fewer variables than those of a snapshot.

        So it is if they are not built, and the snapshot was not taken before the first step.

        Args:
            kept: The variables of the snapshot.
        """
        own = sum(entry.part == "optimizer" for entry in state.entries(self.model))
        return own < sum(entry["part"] == "optimizer" for entry in kept)

    def _callback_states(self, states: list[Any]) -> list[Any]:
        """Returns the callbacks' states in a snapshot, on every task.

        If the tasks themselves have taken the snapshot, only the chief has these states, and sends
        them. If the chief has read it from a file, all tasks have got the whole snapshot already.
        """
        if self.strategy.num_workers == 1:
            return states
        if not self.strategy.host_collectives.any_true(not states):
            return states
        own = Snapshot({}, {"callbacks": states}) if self.is_chief else None
        shared = share_snapshot(own, self.strategy)
        assert shared is not None
        sent: list[Any] = shared.state["callbacks"]
        return sent

    def finalize(self) -> None:
        """Lets the optimizer change the weights when training ends, for example to averages."""
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer) and optimizer.built:
            with self.strategy.scope():
                optimizer.finalize_variable_values(self.model.trainable_weights)

    def settle(self) -> None:
        """Moves the data to where the next `fit` begins, if this `fit` takes no more steps.

        Usually the next step applies a restored position in the data. But if training has resumed
        at its end, no step follows.
        """
        self.batches.settle()
        if self.validation is not None:
            self.validation.settle()

    def _about(self) -> dict[str, Any]:
        return {
            **self.compilation.described(),
            **self.progress.state_dict(),
            "created": time.time(),
            "run": self.run,
            "strategy": self.strategy.name,
            "num_replicas": self.strategy.num_replicas,
            "num_workers": self.strategy.num_workers,
            "data": self.batches.describe(),
            "data_position": split(self.batches.state_dict())[0],
            "model": self.model.name,
            "versions": self.versions,
        }


def _refuse(snapshot: Snapshot, lines: Sequence[str]) -> None:
    """Raises an error with the differences between a training and that of a snapshot, if any."""
    if lines:
        raise SnapshotMismatchError(
            f"The snapshot of {snapshot.described} is of another training:\n  "
            + "\n  ".join(map(printable, lines))
        )


def _is_of_its_kind(batches: Batches, kept: Mapping[str, Any] | None) -> bool:
    """Returns whether a snapshot's position in the data can be restored in `batches`.

    It cannot if the snapshot was taken with data of a different kind, such as arrays instead of a
    generator.

    Args:
        batches: The data of this training.
        kept: The position in the snapshot; None if there is none.
    """
    return kept is not None and set(batches.state_dict()) <= set(kept)


def _bytes_of_torch() -> int | None:
    """Returns the size of the state of torch's generator; None if torch is not imported."""
    torch = sys.modules.get("torch")
    return None if torch is None else len(torch.get_rng_state())


def _learning_rates(model: keras.Model) -> list[tuple[Any, float]]:
    """Returns the optimizers whose learning rate is a variable, each with its learning rate.

    Used to keep these rates when a snapshot with different learning rates is restored.
    """
    return [
        (optimizer, float(value_here(optimizer.learning_rate)))
        for optimizer in owned_optimizers(model)
        if any(variable is optimizer.learning_rate for variable in optimizer.variables)
    ]


def _copied(value: Any) -> Any:
    """Copies a tree of lists, dicts, arrays and variables, of which it takes the present values."""
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(part) for part in value]
    if isinstance(value, keras.Variable | tf.Variable):
        return value_here(value).copy()
    return value.copy() if isinstance(value, np.ndarray) else value


@cache
def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "kfit": version("kfit"),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
    }
