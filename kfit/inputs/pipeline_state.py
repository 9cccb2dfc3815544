"""What a tf.data pipeline holds that no iterator of it begins anew with.

TensorFlow's random operations draw from seeds, which each iterator begins with again, and `shuffle`
draws a seed for each pass. Variables that a pipeline writes to (those of `tf.random.Generator`s, of
Keras' seed generators and layers), Python that it calls, caches of what was drawn, and the seeds of
shuffles that begin late (`late_shuffles.py`) go on from one iterator to the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kfit.distribute.host_collectives import HostCollectives
from kfit.distribute.pipeline_parts import parts_of
from kfit.distribute.pipeline_seeds import keeps_no_order, scopes_of, seeds_in
from kfit.inputs.late_shuffles import LateShuffles, operations_of
from kfit.internals.runtime import drawn_seed
from kfit.internals.tf_data import functions_of, is_told_deterministic, seeds_of
from kfit.objects import Generators
from kfit.objects.hidden_state import DRAWS, nodes_of
from kfit.objects.values import from_bytes, to_bytes

_WRITES = ("Assign", "RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulStandardNormal")
_SEEDED = {
    "_ShuffleDataset": "shuffle",
    "_ShuffleAndRepeatDataset": "shuffle",
    "_RandomDataset": "random",
}
_PYTHON = ("PyFunc", "EagerPyFunc")


@dataclass(frozen=True)
class PipelineState:
    """What goes on from iterator to iterator of a pipeline.

    Attributes:
        variables: What it writes to, in order.
        calls_python: Whether it calls Python, which may draw from global generators.
        is_remembered: Whether that Python may go on, in another pass, from what no one can see.
        caches: Whether its first pass is kept in a cache, and another one would be another.
        late: Its shuffles that draw when a pass is read, and not when it is begun.
        unordered: What makes it draw other numbers each time it runs, in users' words.
    """

    variables: tuple[tf.Variable, ...]
    calls_python: bool
    is_remembered: bool
    caches: bool
    late: LateShuffles
    unordered: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.variables) or self.calls_python or self.caches or bool(self.late)


def state_of(dataset: tf.data.Dataset) -> PipelineState:
    """Looks at every function of a pipeline."""
    variables: dict[int, tf.Variable] = {}
    unordered: dict[str, None] = {}
    calls_python = caches = False
    # What `kfit run` has drawn the tasks get again when it restarts them.
    lost = None if "KFIT_SEED" in os.environ else drawn_seed()
    is_free = dataset.options().deterministic is False
    for part in parts_of(dataset):
        kind = type(part).__name__
        caches |= kind == "CacheDataset" and any(map(_draws, parts_of(part)))
        if kind in _SEEDED and _is_unseeded(part):
            unordered[f"`{_SEEDED[kind]}` without a seed"] = None
        elif kind in _SEEDED and lost is not None and int(seeds_of(part)[0]) == lost:
            unordered[f"`{_SEEDED[kind]}` without a global seed"] = None
        if "Parallel" in kind and (_keeps_no_order(part) or is_free):
            unordered["`deterministic=False`"] = None
        for function in functions_of(part):
            graph = function.graph
            nodes = nodes_of(graph)
            ops = {node.op for node in nodes}
            calls_python |= bool(ops & set(_PYTHON))
            writes = any(op.startswith(_WRITES) for op in ops)
            if writes:
                variables.update((id(variable), variable) for variable in graph.variables)
            drawing = [node for node in nodes if node.op in DRAWS]
            if any(node.attr["seed"].i == node.attr["seed2"].i == 0 for node in drawing):
                unordered["a random operation without a seed"] = None
            elif any(node.attr["seed"].i == lost for node in drawing):
                unordered["a random operation without a global seed"] = None
            for scope in scopes_of(graph.as_graph_def()):
                for name, seeds in seeds_in(scope):
                    if seeds == (0, 0):
                        unordered[f"`{name}` without a seed"] = None
                    elif lost in seeds:
                        unordered[f"`{name}` without a global seed"] = None
            if any(map(keeps_no_order, nodes)):
                unordered["`deterministic=False`"] = None
            if kind.startswith("_Parallel") and (writes or drawing):
                unordered["random numbers drawn in `map(num_parallel_calls=...)`"] = None
    policy = dataset.options().experimental_external_state_policy
    is_remembered = calls_python and policy != tf.data.experimental.ExternalStatePolicy.IGNORE
    return PipelineState(
        variables=tuple(variables.values()),
        calls_python=calls_python,
        is_remembered=is_remembered,
        caches=caches,
        late=LateShuffles.of(dataset),
        unordered=tuple(unordered),
    )


def _draws(part: Any) -> bool:
    """Whether a part of a pipeline makes other elements in another pass, as far as can be seen."""
    names = [type(part).__name__]
    names += [node.op for function in functions_of(part) for node in nodes_of(function.graph)]
    return any(
        name in (*DRAWS, *_PYTHON)
        or name.startswith(_WRITES)
        or "Shuffle" in name
        or "RandomDataset" in name
        for name in names
    )


def _keeps_no_order(part: Any) -> bool:
    """Whether a part was told `deterministic=False`; of `interleave` its operation alone tells."""
    if type(part).__name__ == "_ParallelInterleaveDataset":
        return any(map(keeps_no_order, operations_of(tf.data.experimental.to_variant(part))))
    return is_told_deterministic(part) == "false"


def _is_unseeded(part: Any) -> bool:
    return all(seed is not None and int(seed) == 0 for seed in seeds_of(part))


class HeldState:
    """What a pipeline holds when an iterator of it is begun.

    Attributes:
        has_drawn: Whether reading it again has moved the global random generators.
    """

    def __init__(self, held: PipelineState) -> None:
        self._held = held
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._given: Generators | None = None
        self.has_drawn = False

    def begin(self) -> None:
        """An iterator is about to be begun."""
        self._last = self._now()
        self._first = self._first or self._last

    def state_dict(self, is_open: bool) -> dict[str, Any]:
        """What there was at first, None before, and when the pass began that is open, or will."""
        return {"held": self._first, "pass": self._last if is_open else self._now()}

    def share(self, host_collectives: HostCollectives) -> None:
        """All workers begin with what the pipeline of the chief holds; all call it."""
        if self._held.calls_python:
            row = host_collectives.all_gather(Generators.now().row())[0]
            Generators.of_row(row, Generators.now().torch).give()
        if self._held.variables:
            own = to_bytes([variable.numpy() for variable in self._held.variables])
            for variable, value in zip(
                self._held.variables, from_bytes(host_collectives.content(own)), strict=True
            ):
                variable.assign(value)

    @property
    def is_remembered(self) -> bool:
        """See `PipelineState.is_remembered`."""
        return self._held.is_remembered

    def is_read(self, number: int) -> bool:
        """Whether a pass that was over must be read again, and not only be begun."""
        again = self.is_remembered or self._held.late.draws_within
        return again or (self._held.caches and number == 0)

    @property
    def reads_for_shuffles(self) -> bool:
        """Whether only its shuffles make it necessary to read earlier passes again."""
        return self._held.late.draws_within and not self.is_remembered

    def begin_shuffles(self) -> None:
        """Draws what a pass that was begun would have drawn with its first batch."""
        self._held.late.begin()

    def begin_last(self, state: dict[str, Any]) -> None:
        """The pass that was open, or the next one, begins with what it began with then."""
        if not self.is_remembered:
            self._give(state["pass"])

    @contextmanager
    def again(self, state: dict[str, Any]) -> Iterator[None]:
        """Within it passes are read again, the first one with what there was at first."""
        if state["held"] is None:
            yield
            return
        here, self._first = Generators.now(), state["held"]
        self._give(state["held"])
        yield
        self.has_drawn = self._held.calls_python and Generators.now() != self._given
        if not self.has_drawn:
            here.give()

    def _now(self) -> dict[str, Any]:
        values = [variable.numpy() for variable in self._held.variables]
        return {"variables": values, "generators": Generators.now().state_dict()}

    def _give(self, values: dict[str, Any]) -> None:
        for variable, value in zip(self._held.variables, values["variables"], strict=True):
            variable.assign(value)
        self._given = Generators.of_state_dict(values["generators"])
        if self._held.calls_python:
            self._given.give()
