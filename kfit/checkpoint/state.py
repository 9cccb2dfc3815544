"""What training state is: one explicit list.

    variables    of the model (weights, statistics, seed generators), its optimizers (slots,
                 iterations, learning rate, loss scale) and its metrics (what they add up so far)
    progress     epoch, step, step in the epoch; the logs of the last step; whether to stop
    data         the seed of the order, and where in their streams training and validation data are
    callbacks    what each callback remembers
    random       Python's, NumPy's and Keras' global generators, of every task

Everything but the random generators is the chief's and goes to all tasks. Taking a state is a
collective: all tasks call it after the same step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint.loose_variables import loose_variables
from kfit.checkpoint.snapshot import Snapshot
from kfit.distribute import variable_values
from kfit.distribute.placement import owned_optimizers, owned_variables
from kfit.distribute.strategy import Strategy
from kfit.internals.randomness import existing_seed_generator, global_seed_generator
from kfit.objects import Generators
from kfit.objects.checksum import checksum

Part: TypeAlias = Literal["model", "optimizer", "metrics", "progress", "callbacks", "random"]
PARTS: tuple[Part, ...] = get_args(Part)
"""The parts of a state that can be taken by themselves; "progress" goes with the data."""


class SnapshotMismatchError(ValueError):
    """A snapshot is of another training than the one that is to go on from it."""


class Entry(NamedTuple):
    """One variable of the list: its part of the state, its name, and itself."""

    part: Part
    name: str
    variable: keras.Variable | tf.Variable


def entries(model: keras.Model) -> list[Entry]:
    """Every variable of a model, its optimizers and its metrics."""
    of_optimizers = _ids(v for o in owned_optimizers(model) for v in o.variables)
    of_metrics = _ids(v for m in model.metrics for v in m.variables)
    found = []
    for variable in owned_variables(model):
        part: Part = "model"
        if id(variable) in of_optimizers:
            part = "optimizer"
        elif id(variable) in of_metrics or variable_values.is_per_replica(variable):
            part = "metrics"
        found.append(Entry(part, stable_name(variable.path), variable))
    for name, variable in loose_variables(model, _ids(entry.variable for entry in found)):
        found.append(Entry("model", stable_name(name), variable))
    return found


def belongings(model: keras.Model) -> set[int]:
    """Identities of a model, its parts and their variables: its state, and nobody else's."""
    parts = [model, *model.layers, *model.metrics, *owned_optimizers(model)]
    return _ids(parts) | _ids(entry.variable for entry in entries(model))


def stable_name(path: str) -> str:
    """A variable's path without the numbers that Keras counts up for names it makes itself.

    The second model of a process has a `dense_1` where the first has a `dense`; the order of the
    variables tells them apart anyway.
    """
    return re.sub(r"_\d+(?=_|/|$)", "", path)


def key_of(name: str) -> str:
    """What a variable's name says in every model that is alike.

    The name of a model is in the names of what was built in it, and so in those of the optimizer's
    variables; a model that was loaded from its file has built its layers one by one.
    """
    *_, last = parts = name.split("/")[-2:]
    return "/".join([*parts[:-1], "_".join(last.split("_")[-3:])])


def take_variables(model: keras.Model, strategy: Strategy) -> list[Any]:
    """The variables as a tree for a snapshot; a collective."""
    listed = entries(model)
    values = variable_values.get_values([entry.variable for entry in listed], strategy)
    return [
        {
            "part": entry.part,
            "name": entry.name,
            "per_replica": variable_values.is_per_replica(entry.variable),
            "value": value,
        }
        for entry, value in zip(listed, values, strict=True)
    ]


def checksum_of_weights(model: keras.Model, strategy: Strategy) -> int | None:
    """The checksum of what a file of the model holds; None where it has no weights yet.

    No collective: what each replica has by itself is left out.
    """
    weights = [weight for weight in model.weights if not variable_values.is_per_replica(weight)]
    return checksum(variable_values.get_values(weights, strategy)) if weights else None


def give_variables(
    model: keras.Model, kept: Sequence[dict[str, Any]], parts: Sequence[Part], strategy: Strategy
) -> None:
    """Gives the variables of `parts` their values from a snapshot that fits (`differences`)."""
    listed = [entry for entry in entries(model) if entry.part in parts]
    values = [entry["value"] for entry in kept if entry["part"] in parts]
    variable_values.set_values([entry.variable for entry in listed], values, strategy)


def restore(
    model: keras.Model, snapshot: Snapshot, parts: Sequence[Part], strategy: Strategy
) -> None:
    """Gives a built model what a snapshot holds of it, outside of a training.

    Args:
        model: The model, its variables being on the devices.
        snapshot: The snapshot.
        parts: What to take: "model", "optimizer" and "metrics"; the rest is of a training.
        strategy: The adapter.

    Raises:
        SnapshotMismatchError: If it is of another model; every difference is named.
    """
    lines = differences(model, snapshot.state["variables"], parts)
    if lines:
        raise SnapshotMismatchError(
            f"`snapshot`, of step {snapshot.about['step']}, must be of this model; it differs:\n  "
            + "\n  ".join(lines)
            + "\nMake the model as the program did that saved it."
        )
    give_variables(model, snapshot.state["variables"], parts, strategy)


def differences(
    model: keras.Model,
    kept: Sequence[dict[str, Any]],
    parts: Sequence[Part],
    *,
    may_lack: bool = False,
) -> list[str]:
    """Every difference between a model's variables and those of a snapshot, a line each.

    Args:
        model: The model.
        kept: The variables of the snapshot.
        parts: Which to compare.
        may_lack: Whether the model may have fewer of them: it makes the rest in its first step.
    """
    lines = []
    for part in ("model", "optimizer", "metrics"):
        if part not in parts:
            continue
        own = [(e.name, _form_of(e.variable)) for e in entries(model) if e.part == part]
        other = [(e["name"], _form(e)) for e in kept if e["part"] == part]
        lines += [f"{part}: {line}" for line in _compare(own, other, may_lack)]
    return lines


def take_random(strategy: Strategy, generators: Generators | None = None) -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's and Keras' global generators; a collective.

    Args:
        strategy: The adapter.
        generators: What Python's, NumPy's and torch's are taken for, if not for what they are now.
    """
    own = generators or Generators.now()
    tasks = strategy.host_collectives.all_gather(own.row())
    # What `keras.random` draws from where no seed is given belongs to no model.
    generator = existing_seed_generator()
    return {
        "tasks": tasks,
        "torch": own.state_dict()["torch"],
        "keras": None if generator is None else generator.state.numpy(),
    }


def give_random(kept: dict[str, Any], strategy: Strategy, *, drawn_ahead: bool = False) -> None:
    """Gives this task's generators their states; a task that is new takes the chief's.

    Where data that draw from them have `drawn_ahead`, they are where the data need them already.
    """
    tasks = np.asarray(kept["tasks"])
    row = tasks[strategy.worker_index if strategy.worker_index < len(tasks) else 0]
    if not drawn_ahead:
        Generators.of_row(row, kept["torch"]).give()
    if kept["keras"] is not None:
        global_seed_generator().state.assign(kept["keras"])


def is_finite(kept: Sequence[dict[str, Any]]) -> bool:
    """Whether the model's and the optimizer's values are all numbers."""
    for entry in kept:
        value = np.asarray(entry["value"]).ravel()
        if entry["part"] in ("model", "optimizer") and value.dtype.kind not in "biu":
            value = value if value.dtype.kind in "fc" else value.astype("float32")
            # One pass at the speed of memory tells, unless the sum grows too large.
            with np.errstate(over="ignore", invalid="ignore"):
                total = value.sum()
            if not np.isfinite(total) and not np.isfinite(value).all():
                return False
    return True


def _ids(variables: Iterable[Any]) -> set[int]:
    return {id(variable) for variable in variables}


def _form_of(variable: keras.Variable | tf.Variable) -> str:
    return f"{tuple(variable.shape)} {tf.as_dtype(variable.dtype).name}"


def _form(entry: dict[str, Any]) -> str:
    value = np.asarray(entry["value"])
    shape = value.shape[1:] if entry["per_replica"] else value.shape
    return f"{tuple(shape)} {value.dtype.name}"


def _compare(
    own: Sequence[tuple[str, str]], other: Sequence[tuple[str, str]], may_lack: bool
) -> list[str]:
    """Lines for variables that only one side has, or that have another form there."""
    if _keys(own) == _keys(other):
        return []
    lines = []
    left = list(other)
    for name, form in own:
        keys = [key_of(known) for known, _ in left]
        index = keys.index(key_of(name)) if key_of(name) in keys else None
        if index is None:
            lines.append(f"{name} {form} is not in the snapshot")
            continue
        _, kept = left.pop(index)
        if kept != form:
            lines.append(f"{name} is {form}, in the snapshot {kept}")
    if may_lack:
        return lines
    lines += [f"{name} {form} is only in the snapshot" for name, form in left]
    return lines or ["the variables are in another order"]


def _keys(listed: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key_of(name), form) for name, form in listed]
