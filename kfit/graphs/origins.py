"""Finds out from the graph whether a tensor is equal on all replicas or one replica's own.

A replica computes with values that are equal on all replicas (weights, constants, sums over the
replicas), and with values of its own (its examples, their number, its random numbers). The graph
shows which of these values a tensor is computed from. It can be read while the step is traced,
before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from kfit.internals.graphs import BRANCHES, LOOPS, current_graph

Tensor = Any

_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case"}
"""Stateful operations, or calls of functions, whose results depend on their inputs only."""


class Origins:
    """A record of which tensors of a replica's step may differ between replicas.

    kfit marks some tensors, such as the examples. For any other tensor the graph that computes it
    is read.
    """

    def __init__(self) -> None:
        self._own: dict[int, Tensor] = {}
        self._agreed: dict[int, Tensor] = {}
        self._estimates: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._splits: dict[int, Tensor] = {}
        self._indices: dict[int, Tensor] = {}
        self._graph: Any = None

    def begin(self) -> None:
        """Sets the graph of the replica's step to the graph that is being traced now.

        It is called when the tracing of the step begins.
        """
        self._graph = current_graph()

    def own(self, value: Any) -> Any:
        """Marks the tensors in `value` as this replica's own, and returns `value`.

        Examples are such tensors: they differ between replicas.
        """
        self._own.update({id(tensor): tensor for tensor in _tensors(value)})
        for each in tf.nest.flatten(value, expand_composites=False):
            if isinstance(each, tf.RaggedTensor):
                self._values[id(each.flat_values)] = each.flat_values
                self._splits.update({id(splits): splits for splits in each.nested_row_splits})
            if isinstance(each, tf.SparseTensor):
                self._values[id(each.values)] = each.values
                self._indices[id(each.indices)] = each.indices
        return value

    @property
    def have_inner_values(self) -> bool:
        """Whether some examples are ragged or sparse, so that their number may be static."""
        return bool(self._values)

    def are_values(self, tensor: Tensor) -> bool:
        """Returns whether a tensor has the values of ragged or sparse examples, as many as it may.

        Their number is not that of the examples.
        """
        return id(tensor) in self._values

    def are_splits(self, tensor: Tensor) -> bool:
        """Returns whether a tensor says where the rows of ragged examples begin and end."""
        return id(tensor) in self._splits

    def are_indices(self, tensor: Tensor) -> bool:
        """Returns whether a tensor says to which rows the values of sparse examples belong."""
        return id(tensor) in self._indices

    def agreed(self, value: Any) -> Any:
        """Marks the tensors in `value` as equal on all replicas, and returns `value`.

        Sums over the replicas are such tensors, although they are computed from each replica's own
        values.
        """
        self._agreed.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def estimate(self, value: Any) -> Any:
        """Marks the tensors in `value` as estimates, and returns `value`.

        An estimate is a replica's value of something that describes the global batch, such as the
        loss. The global value is the sum of the replicas' estimates, weighted by the replicas'
        shares of the examples. So an estimate is treated like a mean over the examples.
        """
        self._estimates.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def count(self, value: Any) -> Any:
        """Marks the tensors in `value` as the number of examples, and returns `value`."""
        self._counts.update({id(tensor): tensor for tensor in _tensors(value)})
        return value

    def is_own(
        self,
        tensor: Tensor,
        handles: Iterable[Tensor] = (),
        is_equal: Callable[[Tensor], bool] = lambda tensor: False,
    ) -> bool:
        """Returns whether a tensor may differ between replicas.

        The result is also True for a tensor that is computed from the replica's number of examples,
        even if this number is the same on all replicas: one device would compute the tensor from
        the size of the whole batch. In case of doubt the result is True.

        Args:
            tensor: A tensor of the graph.
            handles: Resource handles of the variables of which each replica has a value of its own.
            is_equal: A function that returns True for tensors that are known to be equal on all
                replicas, although they are computed from a replica's own ones.
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
            if is_equal(tensor):
                continue
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
        """Returns whether a tensor is computed from the values of any of the given variables.

        Args:
            tensor: A tensor of the graph.
            handles: The resource handles of the variables.
        """
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
        """Returns how a tensor depends on the replica's examples, if kfit has marked the tensor.

        The methods `own`, `agreed`, `estimate` and `count` set such marks. The graph that computes
        the tensor is not read.

        Args:
            tensor: A tensor of the graph that is being traced, an eager tensor, or a number.

        Returns:
            A set of kinds (see `kfit.graphs.kinds.Kind`): {"rows"} if `own` has marked the
            tensor, {"mean"} if `estimate` has marked it, {"count"} if `count` has. The set is empty
            if the tensor is equal on all replicas: `agreed` has marked it, or it is an eager tensor
            or a number. The result is None if the tensor belongs to a graph and has no mark.
        """
        if not _is_traced(tensor) or id(tensor) in self._agreed:
            return frozenset()
        if id(tensor) in self._estimates:
            return frozenset({"mean"})
        if id(tensor) in self._counts:
            return frozenset({"count"})
        return frozenset({"rows"}) if id(tensor) in self._own else None

    def is_of_step(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is in the graph of the replica's step.

        The graph of a branch or a loop in the step, and of a function that the step calls, belong
        to it.
        """
        graph = tensor.graph
        while graph is not None and graph is not self._graph:
            graph = getattr(graph, "outer_graph", None)
        return graph is self._graph

    def calls_around(self, graph: Any) -> list[tf.Operation]:
        """Finds the operations of the replica's step that run a graph: branches and loops.

        Args:
            graph: The graph of the step itself, or one within it that has been traced.

        Returns:
            The operations, the innermost one first. Those of branches and loops that are still
            being traced are missing, since they are made at the end.
        """
        return _calls_around(graph, self._graph) or []


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(t)]


def _conditions(graph: Any, step: Any) -> list[Tensor] | None:
    """Finds the conditions that decide whether a branch of a `tf.cond` runs.

    If a condition differs between replicas, the tensors that are computed in the branch may differ,
    too.

    Args:
        graph: The graph of the branch, or of a function in it.
        step: The graph of the replica's step.

    Returns:
        The conditions of all branches around the graph; an empty list if there are none. None if
        the graph runs in a loop, or does not belong to the step.
    """
    calls = _calls_around(graph, step)
    if calls is None or any(op.type in LOOPS for op in calls):
        return None
    return [op.inputs[0] for op in calls]


def _calls_around(graph: Any, step: Any) -> list[tf.Operation] | None:
    """Finds the branches and loops that run a graph, as `Origins.calls_around` describes.

    Returns:
        The operations. None if the graph does not belong to the step.
    """
    found: list[tf.Operation] = []
    while graph is not step:
        outer = getattr(graph, "outer_graph", None)
        if outer is None:
            return None
        found += [
            op
            for op in outer.get_operations()
            if op.type in BRANCHES | LOOPS and graph.name in _functions_of(op)
        ]
        graph = outer
    return found


def _functions_of(op: tf.Operation) -> set[str]:
    """Returns the names of the functions that a conditional or loop operation may call."""
    return {
        function.name
        for value in op.node_def.attr.values()
        for function in [value.func, *value.list.func]
        if function.name
    }


def _is_traced(tensor: Tensor) -> bool:
    """Returns whether a tensor is symbolic (belongs to a graph), and is no eager tensor."""
    return isinstance(getattr(tensor, "graph", None), tf.Graph)


def inputs_of(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors that a tensor is computed from by its operation.

    Of what a branch, a loop or a function reads from outside, it is the tensor outside.
    """
    outer = captured(tensor) if tensor.op.type == "Placeholder" else None
    return list(tensor.op.inputs) if outer is None else [outer]


def captured(tensor: Tensor) -> Tensor | None:
    """Finds the tensor outside of a `tf.function` that a placeholder inside of it stands for.

    A function that uses a tensor from outside captures the tensor, and reads it through a
    placeholder.

    Returns:
        The outer tensor; None if the placeholder is an argument of the function.
    """
    for outer, inner in getattr(tensor.graph, "captures", ()):
        if inner is tensor:
            return outer
    return None
