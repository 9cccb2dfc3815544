"""Finds out from the graph whether a tensor is equal on all replicas or one replica's own.

A replica computes with values that are equal on all replicas (weights, constants, sums over the
replicas) and with its own ones: its examples, their number, its random numbers. Which of these a
tensor is computed from can be read from the graph while the step is traced, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from kfit.internals.graphs import current_graph

Tensor = Any

_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"}
"""Stateful operations, or calls of functions, whose results depend on their inputs only."""

_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
_LOOPS = {"While", "StatelessWhile"}


class Origins:
    """Records of some tensors of a replica's step whether they are its own; infers the others."""

    def __init__(self) -> None:
        self._own: dict[int, Tensor] = {}
        self._agreed: dict[int, Tensor] = {}
        self._estimates: dict[int, Tensor] = {}
        self._graph: Any = None

    def begin(self) -> None:
        """Sets the graph of the replica's step to the current default graph."""
        self._graph = current_graph()

    def own(self, value: Any) -> Any:
        """Marks the tensors in `value` as this replica's own; returns `value`."""
        self._own.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def agreed(self, value: Any) -> Any:
        """Marks the tensors in `value` as equal on all replicas; returns `value`.

        Their inputs are then not looked at.
        """
        self._agreed.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def estimate(self, value: Any) -> Any:
        """Marks the tensors in `value` as estimates, which count as means; returns `value`."""
        self._estimates.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def is_own(self, tensor: Tensor, handles: Iterable[Tensor]) -> bool:
        """Whether a tensor may differ between replicas, or depend on one's number of examples.

        Args:
            tensor: A tensor of the graph.
            handles: Resource handles of the variables whose values are this replica's own.
        """
        if not hasattr(tensor, "op") or tf.executing_eagerly():
            return False  # a Python number, or an eager tensor made before the step
        conditions = _conditions(tensor.graph, self._graph)
        if conditions is None:
            return True  # such as in a loop, which may take more iterations on this replica
        of_variables = {id(handle) for handle in handles}
        waiting, seen = [tensor, *conditions], set()
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in seen or id(tensor) in self._agreed or not _is_traced(tensor):
                continue
            seen.add(id(tensor))
            if id(tensor) in self._own:
                return True
            if tensor.op.type == "Placeholder":
                outer = captured(tensor)
                if outer is None or id(outer) in of_variables:
                    return True  # an argument of a function, or a variable of `handles`
                waiting.append(outer)
                continue
            if tensor.op.op_def.is_stateful and tensor.op.type not in _READS | _CALLS:
                return True  # such as random operations and `tf.py_function`
            waiting += tensor.op.inputs
        return False

    def reads(self, tensor: Tensor, handles: Iterable[Tensor]) -> bool:
        """Whether a tensor is computed from one of the variables with these resource handles."""
        wanted = {id(handle) for handle in handles}
        waiting, seen = [tensor], set()
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in wanted:
                return True
            if id(tensor) in seen or not _is_traced(tensor):
                continue
            seen.add(id(tensor))
            outer = captured(tensor) if tensor.op.type == "Placeholder" else None
            waiting += tensor.op.inputs if outer is None else [outer]
        return False

    def known_kind(self, tensor: Tensor) -> frozenset[Any] | None:
        """The kind of a marked tensor (see `kfit.exactness.batch_kinds`); None if not marked."""
        if not _is_traced(tensor) or id(tensor) in self._agreed:
            return frozenset()
        if id(tensor) in self._estimates:
            return frozenset({"mean"})
        return frozenset({"rows"}) if id(tensor) in self._own else None

    def is_of_step(self, tensor: Tensor) -> bool:
        """Whether a tensor is in the graph of the replica's step, not in a function in it."""
        return tensor.graph is self._graph


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(t)]


def _conditions(graph: Any, step: Any) -> list[Tensor] | None:
    """The conditions under which a function or branch of the step runs.

    It is None if the function runs in a loop, or does not belong to the step.
    """
    found: list[Tensor] = []
    while graph is not step:
        outer = getattr(graph, "outer_graph", None)
        if outer is None:
            return None
        for op in outer.get_operations():
            if op.type in _BRANCHES | _LOOPS and graph.name in _functions_of(op):
                if op.type in _LOOPS:
                    return None
                found.append(op.inputs[0])
        graph = outer
    return found


def _functions_of(op: tf.Operation) -> set[str]:
    """The names of the functions that are attributes of a conditional or loop operation."""
    return {
        function.name
        for value in op.node_def.attr.values()
        for function in [value.func, *value.list.func]
        if function.name
    }


def _is_traced(tensor: Tensor) -> bool:
    """Whether a tensor is symbolic (in a graph), and not an eager tensor."""
    return isinstance(getattr(tensor, "graph", None), tf.Graph)


def captured(tensor: Tensor) -> Tensor | None:
    """The outer tensor that a function captured as this placeholder; None if it is an argument."""
    for outer, inner in getattr(tensor.graph, "captures", ()):
        if inner is tensor:
            return outer
    return None
