"""Variables that a model makes in its first step: slots of optimizers that its own step applies.

Nobody but the model's own `train_step` knows which variables an optimizer of it is for, so they are
not there yet when a snapshot is to be restored. What there is takes its values at once; the rest
takes them between the tracing of the first step, which makes it, and the step itself.
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
    """Whether a step of the model may make variables: something it holds is not built."""
    # Private: no public method lists the layers inside of layers.
    parts = [*owned_optimizers(model), *all_layers(model)]
    return not all(part.built for part in parts)


class LateVariables:
    """The variables of a snapshot, given to a model in two halves.

    Args:
        model: The model.
        kept: The variables of the snapshot.
        parts: What to take of it.
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
        """Gives their values to the variables that are there and can be told from the rest.

        Returns:
            Whether these were all.
        """
        found = pairs(entries(self._model), self._wanted())
        there = [(variable, kept) for kept, variable in found if variable is not None]
        self._give(there)
        return len(there) == len(found)

    def give_rest(self) -> None:
        """Gives their values to the variables that the model has made since.

        Raises:
            SnapshotMismatchError: If they are not those of the snapshot; each is named.
        """
        lines = differences(self._model, self._kept, self._parts)
        if lines:
            raise SnapshotMismatchError(
                "The first step of the model has made other variables than the snapshot holds:\n  "
                + "\n  ".join(lines)
                + "\nHave the model's `train_step` and its optimizers be those it was saved with."
            )
        own = [e.variable for e in entries(self._model) if e.part in self._parts]
        both = zip(own, self._wanted(), strict=True)
        self._give([(v, kept) for v, kept in both if id(v) not in self._given])

    def whole(self, taken: Kept) -> list[dict[str, Any]]:
        """What was taken of the model meanwhile, with what it has not made yet."""
        own = [(entry["part"], entry["name"], entry) for entry in taken]
        return [kept if entry is None else entry for kept, entry in pairs(own, self._kept)]

    def _wanted(self) -> list[dict[str, Any]]:
        return [entry for entry in self._kept if entry["part"] in self._parts]

    def _give(self, both: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        variables = [variable for variable, _ in both]
        variable_values.set_values(variables, [kept["value"] for _, kept in both], self._strategy)
        self._given.update(id(variable) for variable in variables)


def pairs(own: Sequence[tuple[Part, str, Any]], kept: Kept) -> list[tuple[dict[str, Any], Any]]:
    """Each variable of a snapshot with the model's own, or None where that is not known yet.

    Two optimizers of one class have slots of the same names, which their order tells apart when
    both have theirs.

    Args:
        own: Part, name and variable of what the model has.
        kept: The variables of the snapshot.
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
