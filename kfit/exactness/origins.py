"""Where a tensor comes from: whether it is the same on every replica, or one replica's own.

A replica computes with what all replicas have (weights, constants, sums over the replicas) and with
what it has alone: its examples, how many they are, its random numbers. Which of them a tensor is
made of can be read from the graph that is being traced, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from kfit.internals.graphs import current_graph

Tensor = Any

_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"}
"""Operations with effects, or that have some inside, that say no more than what goes into them."""

_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
_LOOPS = {"While", "StatelessWhile"}


class Origins:
    """What one replica knows of the tensors of the step that is being traced."""

    def __init__(self) -> None:
        self._own: dict[int, Tensor] = {}
        self._agreed: dict[int, Tensor] = {}
        self._estimates: dict[int, Tensor] = {}
        self._graph: Any = None

    def begin(self) -> None:
        """The replica's step is traced in the graph that is the default one now."""
        self._graph = current_graph()

    def own(self, value: Any) -> Any:
        """`value`, whose tensors are this replica's alone."""
        self._own.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def agreed(self, value: Any) -> Any:
        """`value`, whose tensors are equal on all replicas, whatever they were made of."""
        self._agreed.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def estimate(self, value: Any) -> Any:
        """`value`, which stands for what the whole batch comes to, and is weighed as a mean."""
        self._estimates.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def is_own(self, tensor: Tensor, handles: Iterable[Tensor]) -> bool:
        """Whether a tensor may differ between replicas, or depend on how many examples one has.

        Args:
            tensor: A tensor of the graph.
            handles: Of the variables whose values are this replica's own.
        """
        if not hasattr(tensor, "op") or tf.executing_eagerly():
            return False  # a number of Python, or one that was there before the step
        conditions = _conditions(tensor.graph, self._graph)
        if conditions is None:
            return True  # of a loop, of which this replica may take more turns than others
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
                    return True  # what a function is given, or a variable
                waiting.append(outer)
                continue
            if tensor.op.op_def.is_stateful and tensor.op.type not in _READS | _CALLS:
                return True  # such as random numbers, or what Python computes
            waiting += tensor.op.inputs
        return False

    def reads(self, tensor: Tensor, handles: Iterable[Tensor]) -> bool:
        """Whether a tensor is computed from one of the variables with these handles."""
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
        """What was noted of a tensor (see `kfit.exactness.batch_kinds`); None if nothing."""
        if not _is_traced(tensor) or id(tensor) in self._agreed:
            return frozenset()
        if id(tensor) in self._estimates:
            return frozenset({"mean"})
        return frozenset({"rows"}) if id(tensor) in self._own else None

    def is_of_step(self, tensor: Tensor) -> bool:
        """Whether a tensor is of the graph of the replica's step, not of a function in it."""
        return tensor.graph is self._graph


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(t)]


def _conditions(graph: Any, step: Any) -> list[Tensor] | None:
    """What decides whether a function of the step, or a branch, is run; None for those of loops."""
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
    """The names of the functions that a conditional or a loop takes."""
    return {
        function.name
        for value in op.node_def.attr.values()
        for function in [value.func, *value.list.func]
        if function.name
    }


def _is_traced(tensor: Tensor) -> bool:
    """Whether it is computed in a graph, and not a value that was there before."""
    return isinstance(getattr(tensor, "graph", None), tf.Graph)


def captured(tensor: Tensor) -> Tensor | None:
    """What a function took from outside of it for this placeholder; None if it was given it."""
    for outer, inner in getattr(tensor.graph, "captures", ()):
        if inner is tensor:
            return outer
    return None
