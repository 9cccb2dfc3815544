"""Restores variables that a model creates only in its first step, such as an optimizer's slots.

If a model with its own `train_step` has several optimizers, only this method determines the
variables that each of them updates. So the slots do not exist yet when a snapshot is restored. The
existing variables are restored at once. The others are restored after the first step has been
traced, which creates them, and before it is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from kfit.checkpoint.state import Part, SnapshotMismatchError, differences, entries, key_of
from kfit.distribute import variable_values
from kfit.distribute.placement import owned_optimizers
from kfit.distribute.strategy import Strategy
from kfit.internals.layers import all_layers

Kept = Sequence[dict[str, Any]]


def may_make_variables(model: keras.Model) -> bool:
    """Returns whether a step may create variables.

    It may if the model has a layer or optimizer that is not built.
    """
    # Private: no public method lists the layers inside of layers.
    parts = [*owned_optimizers(model), *all_layers(model)]
    return not all(part.built for part in parts)


class LateVariables:
    """The variables of a snapshot, restored in two stages: before and after the first trace.

    Args:
        model: The model.
        kept: The variables of the snapshot.
        parts: The parts of the snapshot to restore.
        strategy: The adapter.
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
        """Restores the variables that the model already has, and that `pairs` can identify.

        Returns:
            Whether these are all the variables to restore.
        """
        found = pairs(entries(self._model), self._wanted())
        there = [(variable, kept) for kept, variable in found if variable is not None]
        self._give(there)
        return len(there) == len(found)

    def give_rest(self) -> None:
        """Restores the variables that `give` could not restore, after the first step was traced.

        Raises:
            SnapshotMismatchError: If the variables differ from those of the snapshot; the message
                has every difference.
        """
        lines = differences(self._model, self._kept, self._parts)
        if lines:
            raise SnapshotMismatchError(
                "The first step of the model has made other variables than the snapshot holds:\n  "
                + "\n  ".join(lines)
                + "\nUse the `train_step` and the optimizers that the model was saved with."
            )
        own = [e.variable for e in entries(self._model) if e.part in self._parts]
        both = zip(own, self._wanted(), strict=True)
        self._give([(v, kept) for v, kept in both if id(v) not in self._given])

    def whole(self, taken: Kept) -> list[dict[str, Any]]:
        """Adds the variables that the model has not created yet, with their values in the snapshot.

        Args:
            taken: The model's current variables, from `take_variables`.

        Returns:
            The current and the added variables, in the order of the snapshot.
        """
        own = [(entry["part"], entry["name"], entry) for entry in taken]
        return [kept if entry is None else entry for kept, entry in pairs(own, self._kept)]

    def _wanted(self) -> list[dict[str, Any]]:
        return [entry for entry in self._kept if entry["part"] in self._parts]

    def _give(self, both: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        variables = [variable for variable, _ in both]
        variable_values.set_values(variables, [kept["value"] for _, kept in both], self._strategy)
        self._given.update(id(variable) for variable in variables)


def pairs(own: Sequence[tuple[Part, str, Any]], kept: Kept) -> list[tuple[dict[str, Any], Any]]:
    """Pairs each variable of a snapshot with the same variable of the model.

    It is None if the model does not have the variable, or if it cannot be identified: two
    optimizers of one class have slots with equal names, which are identified by their order, and so
    only when the model has all of them.

    Args:
        own: The part, the name and the variable, for each variable of the model.
        kept: The variables of the snapshot.

    Returns:
        A pair for each variable of the snapshot, in their order.
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
