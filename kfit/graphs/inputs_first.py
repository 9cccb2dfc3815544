"""Finds something of a tensor from what was found of the tensors that it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any


def find_inputs_first(
    of: Any,
    known: dict[Any, Any],
    *,
    key: Callable[[Any], Hashable],
    inputs: Callable[[Any], Iterable[Any]],
    find: Callable[[Any], Any],
) -> Any:
    """Returns what is known of a tensor, or of an operation, after it was found of all inputs.

    Graphs are too deep for a function that calls itself. In a loop, what is found first of an
    operation does not know of itself.

    Args:
        of: The tensor or the operation.
        known: What was found before, by the keys; it is added to.
        key: A function that returns the key of a tensor.
        inputs: A function that returns the tensors of which it must be found before.
        find: A function that finds it of a tensor, and may look at `known` for the inputs.
    """
    waiting, begun = [of], set()
    while waiting:
        name = key(waiting[-1])
        if name in known:
            waiting.pop()
        elif name in begun:
            known[name] = find(waiting.pop())
        else:
            begun.add(name)
            waiting += [each for each in inputs(waiting[-1]) if key(each) not in begun]
    return known[key(of)]
