"""What can be asked of graphs: functions of `tf.compat.v1`, and branches and loops in graphs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.internals.private import uses

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""The operations that call Python code: those of `tf.py_function` and `tf.numpy_function`."""
OWN_PYTHON = "kfit_python"
"""The name of kfit's own operations that call Python code."""
LOOPS = {"While", "StatelessWhile"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"}
"""The operations that call a function: neither in a loop, nor on a condition."""
_GRAPHS_OF_BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")
"""The classes of the graphs of `tf.cond` and `tf.while_loop`, which have no public names."""


def current_graph() -> Any:
    """Returns the graph that is being traced.

    If nothing is being traced, the result is TensorFlow's default graph, to which eager operations
    are not added.
    """
    return tf.compat.v1.get_default_graph()


def of_unknown_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns a tensor with the same values, but with a less specific static shape.

    The graph then cannot treat as constants those dimensions that are None in the new static shape.

    Args:
        tensor: The tensor.
        shape: The static shape of the result, with None for each dimension that should be unknown.
    """
    return tf.compat.v1.placeholder_with_default(tensor, shape)


def placeholder_of(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a tensor without a value, in the graph that is being traced.

    Args:
        spec: The dtype of the tensor, and its shape, which may be unknown.
    """
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)


def is_within_branch(outer: Any) -> bool:
    """Returns whether what is traced now is a branch or a loop within a graph, or in one of these.

    Args:
        outer: The graph.
    """
    graph, found = current_graph(), False
    while graph is not None and graph is not outer:
        found = found or type(graph).__name__ in _GRAPHS_OF_BRANCHES
        graph = getattr(graph, "outer_graph", None)
    return found and graph is outer


@uses(
    "tensorflow.python.framework.ops.Graph._get_function",
    because="nothing public leads from an operation to the function that it calls",
)
def graphs_called_by(op: tf.Operation) -> list[Any]:
    """Returns the graphs of the functions that an operation calls.

    Args:
        op: An operation such as While, If or PartitionedCall.

    Returns:
        For a loop, the graph of its body and that of its condition; for a conditional, those of the
        branches; for a call, that of the function. The list is empty if the functions have no
        graphs of this kind, as those that TensorFlow still defines in the way of its first version.
    """
    attributes = op.node_def.attr
    if "body" in attributes:
        functions = [attributes["body"].func, attributes["cond"].func]
    elif "then_branch" in attributes:
        functions = [attributes["then_branch"].func, attributes["else_branch"].func]
    elif "f" in attributes:
        functions = [attributes["f"].func]
    else:
        functions = list(attributes["branches"].list.func)
    graphs = [getattr(op.graph._get_function(each.name), "graph", None) for each in functions]
    return [] if None in graphs else graphs


def calls_python(graph: Any) -> bool:
    """Returns whether a graph, or a function that it runs, calls Python code of the user's.

    Such code is that of `tf.py_function` and `tf.numpy_function`. What only the data call is left
    out.

    Args:
        graph: The graph of a traced function.
    """
    seen, left = {id(graph)}, [graph]
    while left:
        for op in left.pop().get_operations():
            if op.type in _PYTHON and not op.name.rpartition("/")[2].startswith(OWN_PYTHON):
                return True
            called = graphs_called_by(op) if op.type in LOOPS | BRANCHES | CALLS else []
            left += [each for each in called if id(each) not in seen]
            seen.update(map(id, called))
    return False


def changed_captures(graph: Any, operations: tuple[str, ...]) -> list[tuple[tf.Tensor, str]]:
    """Finds the tensors of outer graphs that a graph hands to operations that change them.

    Such a tensor refers to a variable, a table or an iterator. What functions that the graph calls
    do with it counts as well.

    Args:
        graph: The graph of a traced function.
        operations: What the types of these operations begin with.

    Returns:
        Each of the tensors, with the type of the first such operation.
    """
    found = _changed_in(graph, operations)
    return [(outer, found[id(inner)]) for outer, inner in graph.captures if id(inner) in found]


def _changed_in(graph: Any, operations: tuple[str, ...]) -> dict[int, str]:
    """Returns the types of the operations that change a resource, by the id of its tensor."""
    found: dict[int, str] = {}
    for op in graph.get_operations():
        if op.type.startswith(operations):
            for tensor in op.inputs:
                if tensor.dtype == tf.resource:
                    found.setdefault(id(tensor), op.type)
        for called in graphs_called_by(op) if op.type in LOOPS | BRANCHES | CALLS else []:
            inside = _changed_in(called, operations)
            # A conditional has its condition as another input, before those of the branches.
            given = list(op.inputs)[-len(called.inputs) :] if inside else []
            for tensor, inner in zip(given, called.inputs, strict=True) if inside else ():
                if id(inner) in inside:
                    found.setdefault(id(tensor), inside[id(inner)])
    return found
