"""Makes a program that fails smaller, as long as it fails in the same way."""

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

REQUIRED = frozenset(
    {"call", "code", "do", "seed", "dtype", "kind", "task", "style"}
    | {"body", "examples", "batch_size", "epochs", "layer", "trainable", "rate"}
)
"""Keys that a program's text cannot do without, whatever holds them."""
SIMPLER: list[tuple[tuple[str, ...], Any]] = [
    (("model", "style"), "sequential"),
    (("data", "kind"), "arrays"),
    (("compile", "optimizer"), {"call": "keras.optimizers.SGD", "learning_rate": 0.1}),
    (("compile", "loss"), "mse"),
    (("compile", "loss"), "sparse_categorical_crossentropy"),
    (("dtype",), "float64"),
    (("inputs", "kind"), "vector"),
    (("data", "examples"), 8),
    (("data", "examples"), 5),
    (("data", "batch_size"), 4),
]
"""What may stand in the place of something larger."""

Program = dict[str, Any]


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """The smallest program found within a time that still fails.

    Args:
        program: A program that fails.
        fails: Whether another one fails in the same way.
        seconds: How long to look.
    """
    end = time.monotonic() + seconds
    shrunk = True
    while shrunk and time.monotonic() < end:
        shrunk = False
        for candidate in smaller(program):
            if time.monotonic() > end:
                break
            if fails(candidate):
                program, shrunk = candidate, True
                break
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Programs that are smaller by one thing each, the greatest savings first."""
    for path in sorted(_removable(program), key=len):
        yield _without(program, path)
    for number, action in enumerate(program["actions"]):
        if action.get("epochs", 1) > 1:
            less = copy.deepcopy(program)
            less["actions"][number]["epochs"] -= 1
            yield less
    for path, value in SIMPLER:
        holder: Any = program
        for key in path[:-1]:
            holder = holder.get(key, {})
        if path == ("model", "style") and "body" not in holder:
            continue  # two networks in the place of layers
        if path[-1] in holder and _is_simpler(value, holder[path[-1]]):
            other = copy.deepcopy(program)
            holder = other
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = copy.deepcopy(value)
            yield other


def _is_simpler(value: Any, present: Any) -> bool:
    if isinstance(value, int) and isinstance(present, int):
        return value < present
    return len(str(value)) < len(str(present)) or (
        isinstance(value, str) and isinstance(present, str) and value > present
    )


def _removable(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of what may be left out: elements of lists, and keys that nobody needs."""
    if isinstance(node, list):
        for index, each in enumerate(node):
            yield (*path, index)
            yield from _removable(each, (*path, index))
    elif isinstance(node, dict):
        for key, each in node.items():
            if key not in REQUIRED and (path or key in ("door", "watch")):
                yield (*path, key)
            yield from _removable(each, (*path, key))


def _without(program: Program, path: tuple[Any, ...]) -> Program:
    made = copy.deepcopy(program)
    holder: Any = made
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return made
