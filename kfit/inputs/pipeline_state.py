"""Finds, saves and restores the state that a tf.data pipeline keeps longer than one iterator.

Not all state of a pipeline has to be saved: in a new iterator, TensorFlow's random operations start
from their seeds again, and `shuffle` draws a new seed. Other state is kept from one iterator to the
next: variables that the pipeline writes to (those of `tf.random.Generator`s, and of Keras' seed
generators and layers), the state of Python code that the pipeline calls, caches, and the seeds of
shuffles that draw them while data is read (`late_shuffles.py`).
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
from kfit.internals.graphs import changed_captures
from kfit.internals.runtime import drawn_seed
from kfit.internals.tf_data import functions_of, is_told_deterministic, seeds_of
from kfit.objects import Generators
from kfit.objects.hidden_state import DRAWS, changed_objects, nodes_of
from kfit.objects.values import from_bytes, to_bytes

_WRITES = (
    *("Assign", "ResourceScatter", "ResourceStridedSliceAssign"),
    *("RngReadAndSkip", "RngSkip", "StatefulUniform", "StatefulStandardNormal"),
)
_SEEDED = {
    "_ShuffleDataset": "shuffle",
    "_ShuffleAndRepeatDataset": "shuffle",
    "_RandomDataset": "random",
}
_PYTHON = ("PyFunc", "EagerPyFunc")


@dataclass(frozen=True)
class PipelineState:
    """A description of the state that a tf.data pipeline keeps from one iterator to the next.

    Attributes:
        variables: The variables of those functions of the pipeline that write to some.
        written: Those of them that the functions write to; the others are only read.
        calls_python: Whether the pipeline calls Python code, which may draw from global random
            generators.
        is_remembered: Whether Python code that the pipeline calls may have state, such as a
            counter, that a new iterator does not reset. It is True if the pipeline calls Python
            code, unless the data set's option `experimental_external_state_policy` is IGNORE.
        caches: Whether a `cache` keeps elements that would be different if they were made again, so
            that later iterators yield those that the first iterator has made.
        late: The shuffles of the pipeline that draw their seeds only while data is read, and not
            when an iterator is created.
        unordered: Reasons why the pipeline's batches can't be reproduced, for a warning.
    """

    variables: tuple[tf.Variable, ...]
    written: tuple[tf.Variable, ...]
    calls_python: bool
    is_remembered: bool
    caches: bool
    late: LateShuffles
    unordered: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.variables) or self.calls_python or self.caches or bool(self.late)


def state_of(dataset: tf.data.Dataset) -> PipelineState:
    """Finds out what state a data set keeps from one iterator to the next, without reading it.

    The data sets that the pipeline is made of, and the graphs of their functions, are inspected.
    """
    variables: dict[int, tf.Variable] = {}
    written: dict[int, tf.Variable] = {}
    unordered: dict[str, None] = {}
    calls_python = caches = False
    # The global seed, if a restart will choose another one. `kfit run` passes a seed that it has
    # chosen to the tasks again when it restarts them.
    lost = None if "KFIT_SEED" in os.environ else drawn_seed()
    is_free = dataset.options().deterministic is False
    for part in parts_of(dataset):
        kind = type(part).__name__
        caches |= kind == "CacheDataset" and any(map(_draws, parts_of(part)))
        if kind.startswith("_DataServiceDataset"):
            unordered["`tf.data.experimental.service.distribute`"] = None
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
                changed = {id(handle) for handle, _ in changed_captures(graph, _WRITES)}
                written.update((id(v), v) for v in graph.variables if id(v.handle) in changed)
            for _, operation in changed_objects(graph):
                unordered[f"a function that changes what is no variable (by {operation})"] = None
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
        written=tuple(written.values()),
        calls_python=calls_python,
        is_remembered=is_remembered,
        caches=caches,
        late=LateShuffles.of(dataset),
        unordered=tuple(unordered),
    )


def _draws(part: Any) -> bool:
    """Returns whether one data set of a pipeline may make each reading yield other elements.

    This is so if the data set shuffles, draws random numbers, calls Python or writes to variables.
    The data sets that it reads from are not inspected.

    Args:
        part: A data set of the pipeline, as yielded by `parts_of`.
    """
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
    """Returns whether a data set was made with `deterministic=False`, so that its order may vary.

    For `interleave`, only the operation in the graph shows this; the Python object does not.
    """
    if type(part).__name__ == "_ParallelInterleaveDataset":
        return any(map(keeps_no_order, operations_of(tf.data.experimental.to_variant(part))))
    return is_told_deterministic(part) == "false"


def _is_unseeded(part: Any) -> bool:
    return all(seed is not None and int(seed) == 0 for seed in seeds_of(part))


class HeldState:
    """The values of the state that a tf.data pipeline keeps from one iterator to the next.

    These are the values of the variables that the pipeline writes to, and the states of the global
    random generators, from which the pipeline's Python code may draw. Snapshots of the training
    contain both. Other state, such as that of a cache, is restored by reading the data again.

    Args:
        held: The description of the pipeline's state.

    Attributes:
        has_drawn: Whether reading the data again, to restore a snapshot, has changed the global
            random generators.
    """

    def __init__(self, held: PipelineState) -> None:
        self._held = held
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._given: Generators | None = None
        self.has_drawn = False

    def begin(self) -> None:
        """Records the present state; called before an iterator is created."""
        self._last = self._now()
        self._first = self._first or self._last

    def state_dict(self, is_open: bool) -> dict[str, Any]:
        """Returns the states from which passes (readings of all the data) can be read again.

        Args:
            is_open: Whether a pass has begun and batches were taken from it.

        Returns:
            "held", the state before the first pass, or None if there was no pass; and "pass", the
            state before the open pass, or the present state if no pass is open.
        """
        return {"held": self._first, "pass": self._last if is_open else self._now()}

    def share(self, host_collectives: HostCollectives) -> None:
        """Copies the state of the chief's pipeline to all workers, so that all read equal batches.

        The chief is the first worker. The method is a collective: all tasks must call it.
        """
        if self._held.calls_python:
            Generators.now().share(host_collectives)
        if self._held.variables:
            own = to_bytes([variable.numpy() for variable in self._held.variables])
            for variable, value in zip(
                self._held.variables, from_bytes(host_collectives.content(own)), strict=True
            ):
                variable.assign(value)

    @property
    def written(self) -> tuple[tf.Variable, ...]:
        """The variables that the pipeline writes to."""
        return self._held.written

    @property
    def has_only_variables(self) -> bool:
        """Whether the pipeline keeps nothing but values of variables from pass to pass."""
        return not (self._held.calls_python or self._held.caches or self._held.late)

    @property
    def is_remembered(self) -> bool:
        """Whether the pipeline's Python code may have state that a new iterator does not reset."""
        return self._held.is_remembered

    def is_read(self, number: int) -> bool:
        """Returns whether an earlier pass must be read again when training resumes.

        A pass is one reading of all the data. Usually it is enough to create an iterator for each
        earlier pass, and to draw the seeds that the pass's first batch would draw.

        Args:
            number: The number of the pass; 0 is the first pass.
        """
        again = self.is_remembered or self._held.late.draws_within
        return again or (self._held.caches and number == 0)

    @property
    def reads_for_shuffles(self) -> bool:
        """Whether the pipeline's shuffles are the only reason to read all earlier passes again.

        A pass is one reading of all the data. A warning then tells the user how to avoid the
        reading.
        """
        return self._held.late.draws_within and not self.is_remembered

    def begin_shuffles(self) -> None:
        """Draws the seeds that are usually drawn when the first batch is read, but reads no batch.

        Used when training resumes, for earlier passes over the data that need not be read again.
        """
        self._held.late.begin()

    def begin_last(self, state: dict[str, Any]) -> None:
        """Restores the state that the pipeline had before the pass in which the snapshot was taken.

        A pass is one reading of all the data. If the snapshot was taken between two passes, or
        before the first one, the state at the snapshot is restored. Nothing is done if earlier
        passes were read again because of hidden state of Python code (`is_remembered`), since
        reading has restored the state already.

        Args:
            state: What `state_dict` returned.
        """
        self._first = state["held"]
        if not self.is_remembered or state["held"] is None:
            self._give(state["pass"])

    @contextmanager
    def again(self, state: dict[str, Any]) -> Iterator[None]:
        """A context in which the data is read again from its first pass, to restore a snapshot.

        A pass is one reading of all the data. On entry, the pipeline's state from before the first
        pass is restored. This may set the global random generators. On exit, they get back the
        states that they had just before the entry, unless the pipeline's Python code has drawn from
        them within the context (`has_drawn`).

        Args:
            state: What `state_dict` returned. If its "held" is None, there was no pass, and the
                context does nothing.
        """
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
