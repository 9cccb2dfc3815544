"""Restores variables that a model creates only in its first step, such as an optimizer's slots.

If a model with its own `train_step` has several optimizers, only the `train_step` determines which
variables each optimizer updates. So the slots (such as momentums) do not exist yet when a snapshot
is restored. The existing variables are restored at once. The other variables are created when the
first step is traced, and restored before that step is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from kfit.checkpoint.state import (
    Part,
    SnapshotMismatchError,
    differences,
    entries,
    form_in,
    form_of,
    key_of,
)
from kfit.cluster.printable import printable
from kfit.distribute import variable_values
from kfit.distribute.owned import owned_optimizers
from kfit.distribute.strategy import Strategy
from kfit.internals.layers import all_layers

Kept = Sequence[dict[str, Any]]


def may_make_variables(model: keras.Model) -> bool:
    """Returns whether a training step may create variables of the model or its optimizers.

    A step may do so if the model has a layer or an optimizer that is not built.
    """
    # Private: no public method lists the layers inside of layers.
    parts = [*owned_optimizers(model), *all_layers(model)]
    return not all(part.built for part in parts)


class LateVariables:
    """The variables of a snapshot, restored in two stages: before and after the first tracing.

    `give` restores the variables that the model has already. Other variables, such as the slots of
    some optimizers, are created only when the first step is traced. `give_rest` then restores them.

    Args:
        model: The model.
        kept: The variables of the snapshot, as `take_variables` returned them.
        parts: The parts of the snapshot to restore: any of "model", "optimizer" and "metrics".
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
    """

    def __init__(
        self, model: keras.Model, kept: Kept, parts: Sequence[Part], strategy: Strategy
    ) -> None:
        self._model = model
        self._kept = kept
        self._parts = parts
        self._strategy = strategy
        self._given: set[int] = set()

    def give(self) -> bool:
        """Restores the variables that the model already has, as far as they can be identified.

        Variables with equal names, such as the slots of two optimizers, can be identified only when
        all of them exist.

        Returns:
            Whether all variables were restored, so that `give_rest` is not needed.
        """
        found = pairs(entries(self._model), self._wanted())
        there = [(variable, kept) for kept, variable in found if variable is not None]
        self._give(there)
        return len(there) == len(found)

    def give_rest(self) -> None:
        """Restores what `give` could not restore; called after the first step was traced.

        Raises:
            SnapshotMismatchError: If the variables of the model differ from those of the snapshot.
                The message lists every difference.
        """
        lines = differences(self._model, self._kept, self._parts)
        if lines:
            raise SnapshotMismatchError(
                "The first step of the model has made other variables than the snapshot holds:\n  "
                + "\n  ".join(map(printable, lines))
                + "\nUse the `train_step` and the optimizers that the model was saved with."
            )
        own = [e.variable for e in entries(self._model) if e.part in self._parts]
        both = zip(own, self._wanted(), strict=True)
        self._give([(v, kept) for v, kept in both if id(v) not in self._given])

    def whole(self, taken: Kept) -> list[dict[str, Any]]:
        """Completes the variables of a new snapshot, taken between a restore and the first step.

        Variables that the model has not created yet are added with their values in the restored
        snapshot.

        Args:
            taken: The model's current variables, from `take_variables`.

        Returns:
            The current and the added variables, in the order of the restored snapshot.
        """
        own = [(entry["part"], entry["name"], entry) for entry in taken]
        return [kept if entry is None else entry for kept, entry in pairs(own, self._kept)]

    def _wanted(self) -> list[dict[str, Any]]:
        return [entry for entry in self._kept if entry["part"] in self._parts]

    def _give(self, both: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        variables = [variable for variable, _ in both]
        variable_values.set_values(variables, [kept["value"] for _, kept in both], self._strategy)
        self._given.update(id(variable) for variable in variables)


def give_known_metrics(model: keras.Model, kept: Kept, strategy: Strategy) -> None:
    """Restores the metrics that are both in a model and in a snapshot.

    Those that only the model has stay as they are, and those that only the snapshot has are left
    out. So are metrics of the same name whose number or shape is another one.

    Args:
        model: The model, whose metrics may be others than when the snapshot was saved.
        kept: The variables of the snapshot, as `take_variables` returned them.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
    """
    own = [entry for entry in entries(model) if entry.part == "metrics"]
    found = pairs(own, [entry for entry in kept if entry["part"] == "metrics"])
    both = [(v, entry) for entry, v in found if v is not None and form_of(v) == form_in(entry)]
    values = [entry["value"] for _, entry in both]
    variable_values.set_values([variable for variable, _ in both], values, strategy)


def pairs(own: Sequence[tuple[Part, str, Any]], kept: Kept) -> list[tuple[dict[str, Any], Any]]:
    """Finds for each variable of a snapshot the corresponding variable of the model.

    Usually this is the variable with the same name in the same part of the state. Two optimizers of
    one class have variables with equal names. Such variables are paired by their order, but only if
    the model has as many of them as the snapshot.

    Args:
        own: The variables of the model: for each its part of the state ("model", "optimizer" or
            "metrics"), its name, and the variable itself or its entry in another snapshot.
        kept: The variables of the snapshot, as `take_variables` returned them.

    Returns:
        A pair for each variable of the snapshot, in the order of the snapshot: its entry in the
        snapshot, and the corresponding variable or entry from `own`. The latter is None if the
        model does not have the variable yet, or if the variable cannot be identified.
    """
    of_name: dict[tuple[str, str], list[Any]] = {}
    for part, name, variable in own:
        of_name.setdefault((part, key_of(name)), []).append(variable)
    keys = [(entry["part"], key_of(entry["name"])) for entry in kept]
    counts = Counter(keys)
    known = {key: iter(found) for key, found in of_name.items() if len(found) == counts[key]}
    nothing: Iterator[Any] = iter(())
    found = (next(known.get(key, nothing), None) for key in keys)
    return list(zip(kept, found, strict=True))
