"""The complete list of what belongs to the training state.

    variables    of the model (weights, statistics, seed generators), its optimizers (slots,
                 iterations, learning rate, loss scale) and its metrics (accumulated values)
    progress     epoch, step, step in the epoch; the logs of the last step; whether to stop
    data         the seed of the order, and the positions in the training and validation data
    callbacks    the state of each callback
    random       the global generators: Python's, NumPy's and TensorFlow's of every task, torch's
                 and Keras' of the chief

The chief saves the whole state, and all tasks restore it. Reading the state is a collective: all
tasks must do so after the same step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint.loose_variables import loose_variables
from kfit.checkpoint.snapshot import Snapshot
from kfit.cluster.printable import printable
from kfit.distribute import variable_values
from kfit.distribute.owned import owned_optimizers, owned_variables
from kfit.distribute.python_random import seed_generator_apart
from kfit.distribute.strategy import Strategy
from kfit.objects import Generators
from kfit.objects.checksum import checksum
from kfit.objects.eager_generators import EagerGenerators

Part: TypeAlias = Literal["model", "optimizer", "metrics", "progress", "callbacks", "random"]
PARTS: tuple[Part, ...] = get_args(Part)
"""The parts of a state that can be restored separately; "progress" includes the data."""


class SnapshotMismatchError(ValueError):
    """An error that is raised if a snapshot cannot be restored, since it is of another training."""


class Entry(NamedTuple):
    """A variable, with its name and the part of the state that it belongs to.

    Attributes:
        part: "model", "optimizer" or "metrics".
        name: The path of the variable without the numbers that Keras appends to names.
        variable: The variable itself.
    """

    part: Part
    name: str
    variable: keras.Variable | tf.Variable


def entries(model: keras.Model) -> list[Entry]:
    """Returns an entry for every variable of a model, its optimizers and its metrics.

    Variables that the model uses but Keras does not list (`loose_variables`) are included.
    """
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
    """Returns the ids (as of `id`) of a model and of the objects that belong to it.

    These objects are the layers in `model.layers`, the metrics and optimizers, and all variables,
    also those of layers inside of layers. They are left out when attributes of callbacks or of the
    data are saved, since they are saved already.
    """
    parts = [model, *model.layers, *model.metrics, *owned_optimizers(model)]
    return _ids(parts) | _ids(entry.variable for entry in entries(model))


def stable_name(path: str) -> str:
    """Returns a variable's path without the numbers that Keras appends to make names unique.

    Keras calls a layer `dense` in the first model of a process, and `dense_1` in the second one.
    Without the numbers, a snapshot's names are the same in every process. Variables whose names
    become equal are told apart by their order.
    """
    return re.sub(r"_\d+(?=_|/|$)", "", path)


def key_of(name: str) -> str:
    """Returns the part of a variable's name that is equal in all models with the same layers.

    For example, it is "dense/kernel" for the name "sequential/dense/kernel". By this part the
    variables of a snapshot are matched with those of the model. The rest of the name may differ: it
    contains the model's name if the model was built as a whole, but not if the model was loaded
    from a file, since then its layers were built one by one.
    """
    *_, last = parts = name.split("/")[-2:]
    return "/".join([*parts[:-1], "_".join(last.split("_")[-3:])])


def take_variables(model: keras.Model, strategy: Strategy) -> list[Any]:
    """Reads all variables of a model, its optimizers and its metrics, for a snapshot.

    It is a collective: all tasks must call it.

    Returns:
        A dict for each variable, in the order of `entries`: its part of the state, its name, its
        value, and whether the value has an additional first axis with an item for each replica.
    """
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
    """Returns a checksum of a model's weights, by which a later run of the program knows a `fit`.

    The marks in the lock file (`marks.py`) contain such checksums. The weights are `model.weights`,
    which a saved model contains, too. Weights with a separate value on each replica are left out,
    so a task can compute the checksum without the other tasks.

    Returns:
        The checksum; None if the model has no weights yet.
    """
    weights = [weight for weight in model.weights if not variable_values.is_per_replica(weight)]
    return checksum(variable_values.get_values(weights, strategy)) if weights else None


def give_variables(
    model: keras.Model, kept: Sequence[dict[str, Any]], parts: Sequence[Part], strategy: Strategy
) -> None:
    """Sets the variables of a model to the values in a snapshot.

    Args:
        model: The model.
        kept: The variables of the snapshot, as `take_variables` returned them. They must match
            those of the model: `differences` finds no difference.
        parts: The parts of the state to restore: any of "model", "optimizer" and "metrics".
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
    """
    listed = [entry for entry in entries(model) if entry.part in parts]
    values = [entry["value"] for entry in kept if entry["part"] in parts]
    variable_values.set_values([entry.variable for entry in listed], values, strategy)


def restore(
    model: keras.Model, snapshot: Snapshot, parts: Sequence[Part], strategy: Strategy
) -> None:
    """Restores the variables of a built model from a snapshot, outside of `fit`.

    Args:
        model: The model. Its variables must be on the strategy's devices already.
        snapshot: The snapshot.
        parts: The parts to restore: any of "model", "optimizer" and "metrics".
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.

    Raises:
        SnapshotMismatchError: If the snapshot is of another model. The message lists every
            difference.
    """
    lines = differences(model, snapshot.state["variables"], parts)
    if lines:
        raise SnapshotMismatchError(
            f"`snapshot`, of {snapshot.described}, must be of this model; it differs:\n  "
            + "\n  ".join(map(printable, lines))
            + "\nBuild the model in the same way as the program that saved the snapshot."
        )
    give_variables(model, snapshot.state["variables"], parts, strategy)


def differences(
    model: keras.Model,
    kept: Sequence[dict[str, Any]],
    parts: Sequence[Part],
    *,
    may_lack: bool = False,
) -> list[str]:
    """Compares a model's variables with those of a snapshot by name, shape and dtype.

    Args:
        model: The model.
        kept: The variables of the snapshot, as `take_variables` returned them.
        parts: The parts of the state to compare: any of "model", "optimizer" and "metrics".
        may_lack: Whether the model may lack variables of the snapshot, since it creates them only
            in its first step.

    Returns:
        A line for each difference in the first part that differs; none if the variables match.
    """
    lines: list[str] = []
    for part in ("model", "optimizer", "metrics"):
        if part not in parts:
            continue
        listed = [entry for entry in entries(model) if entry.part == part]
        own = [(entry.name, form_of(entry.variable)) for entry in listed]
        paths = [getattr(entry.variable, "path", entry.name) for entry in listed]
        other = [(e["name"], form_in(e)) for e in kept if e["part"] == part]
        lines += [f"{part}: {line}" for line in _compare(own, paths, other, may_lack)]
        if lines:
            break  # what an optimizer holds follows from the model
    return lines


def take_random(strategy: Strategy, generators: Generators | None = None) -> dict[str, Any]:
    """Reads the states of the global random generators of Python and of libraries.

    It is a collective: all tasks must call it.

    Args:
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        generators: The states of the generators to use in place of the current states. They are
            given if batches are drawn ahead of training, since drawing them may have changed the
            generators already. States of TensorFlow's and Keras' generators that are None are the
            current ones.

    Returns:
        The states of Python's, NumPy's and TensorFlow's generators on all tasks, and of torch's and
        Keras' generators on this task.
    """
    own = generators or Generators.now()
    now = own.eager if generators is None else EagerGenerators.now()
    # `keras.random` uses this generator if no seed is given; it does not belong to a model.
    keras_state = own.eager.keras or now.keras
    eager = EagerGenerators(own.eager.seeds, own.eager.tensorflow or now.tensorflow)
    gather = strategy.host_collectives.all_gather
    return {
        "tasks": gather(own.row()),
        "eager": gather(eager.row()),
        "torch": own.state_dict()["torch"],
        "keras": None if keras_state is None else np.asarray(keras_state, "int64"),
    }


def give_random(kept: dict[str, Any], strategy: Strategy, *, drawn_ahead: bool = False) -> None:
    """Sets the global random generators of this task to the states in a snapshot.

    A task that did not exist when the snapshot was saved gets the states of the chief.

    Args:
        kept: The states that `take_random` returned.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        drawn_ahead: Whether the generators of Python, NumPy and torch have been set already, when
            the position in the data was restored. Then only Keras' generator is set here.
    """
    tasks, eager = np.asarray(kept["tasks"]), kept.get("eager")
    task = strategy.worker_index if strategy.worker_index < len(tasks) else 0
    if not drawn_ahead:
        # Snapshots of earlier versions of kfit have no states of TensorFlow's generators.
        of_task = None if eager is None else np.asarray(eager)[task]
        Generators.of_row(tasks[task], kept["torch"], of_task).give()
    if kept["keras"] is not None:
        seed_generator_apart().state.assign(kept["keras"])


def is_finite(model: keras.Model, kept: Sequence[dict[str, Any]]) -> bool:
    """Returns whether a snapshot's weights and optimizer variables have no NaN or infinity.

    Weights that are not trained may be infinite, as a running minimum is at first, or a mask.

    Args:
        model: The model of the snapshot.
        kept: The variables of the snapshot, as `take_variables` returned them.
    """
    bad = [index for index, entry in enumerate(kept) if _has_other(entry, np.isfinite)]
    if not bad:
        return True
    listed = entries(model)
    return len(listed) == len(kept) and all(
        listed[index].part == "model"
        and not getattr(listed[index].variable, "trainable", True)
        and not _has_other(kept[index], _is_number)
        for index in bad
    )


def _has_other(entry: dict[str, Any], is_good: Callable[[Any], Any]) -> bool:
    """Returns whether a weight or a variable of an optimizer has values that are not good."""
    value = np.asarray(entry["value"]).ravel()
    if entry["part"] not in ("model", "optimizer") or value.dtype.kind in "biu":
        return False
    value = value if value.dtype.kind in "fc" else value.astype("float32")
    # A finite sum shows in one fast pass that all values are finite. If it is not finite, it may
    # have overflowed, so each value is checked.
    with np.errstate(over="ignore", invalid="ignore"):
        total = value.sum()
    return not np.isfinite(total) and not is_good(value).all()


def _is_number(value: Any) -> Any:
    return ~np.isnan(value)


def _ids(variables: Iterable[Any]) -> set[int]:
    return {id(variable) for variable in variables}


def form_of(variable: keras.Variable | tf.Variable) -> str:
    """Returns the shape and the dtype of a variable as text."""
    return f"{tuple(variable.shape)} {tf.as_dtype(variable.dtype).name}"


def form_in(entry: dict[str, Any]) -> str:
    """Returns the shape and the dtype of a variable of a snapshot as `form_of` does."""
    value = np.asarray(entry["value"])
    shape = value.shape[1:] if entry["per_replica"] else value.shape
    return f"{tuple(shape)} {value.dtype.name}"


def _compare(
    own: Sequence[tuple[str, str]],
    paths: Sequence[str],
    other: Sequence[tuple[str, str]],
    may_lack: bool,
) -> list[str]:
    """Compares the variables of a model with those of a snapshot, and describes each difference.

    Args:
        own: The model's variables: for each its name, and its shape and dtype as text.
        paths: The paths of the model's variables, by which those of the same name are told apart.
        other: The snapshot's variables, likewise.
        may_lack: Whether the model may lack variables of the snapshot.

    Returns:
        A line for each variable that only one side has, or whose shape or dtype differs. If only
        the order of the variables differs, one line says so.
    """
    if _keys(own) == _keys(other):
        return []
    lines = []
    names = [name for name, _ in other]
    left = list(zip(_told_apart(names, names), other, strict=True))
    shown_paths = _told_apart([name for name, _ in own], paths)
    for shown, (name, form) in zip(shown_paths, own, strict=True):
        keys = [key_of(known) for _, (known, _) in left]
        index = keys.index(key_of(name)) if key_of(name) in keys else None
        if index is None:
            lines.append(f"{shown} {form} is not in the snapshot")
            continue
        _, (_, kept) = left.pop(index)
        if kept != form:
            lines.append(f"{shown} is {form}, in the snapshot {kept}")
    if may_lack:
        return lines
    lines += [f"{shown} {form} is only in the snapshot" for shown, (_, form) in left]
    return lines or ["the variables are in another order"]


def _told_apart(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Returns names of variables to show: the paths of those that share a name with others.

    Args:
        names: The names, without the numbers that Keras appends.
        paths: The paths. Those that are equal, too, get a number.
    """
    count, count_of_paths = Counter(names), Counter(paths)
    seen: Counter[str] = Counter()
    shown = []
    for name, path in zip(names, paths, strict=True):
        seen[path] += 1
        told = f"{path} (no. {seen[path]})" if count_of_paths[path] > 1 else path
        shown.append(told if count[name] > 1 else name)
    return shown


def _keys(listed: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key_of(name), form) for name, form in listed]
