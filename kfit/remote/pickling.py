"""What travels between `kfit.launch` and its workers: a function with its arguments, and a result.

Only here, and for the processes of a PyDataset, are objects pickled and made from a pickle. It is
for what nothing else can carry, a function and what it returns, between processes of one launch:
the bytes are written and read by this very program and its own children, in a folder of mode 0700
that lives as long as the launch, or through Ray's own channel. Nothing that lasts is ever read
here; snapshots and checkpoints are arrays and JSON.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class NotPicklableError(ValueError):
    """Something that has to travel to another process cannot."""


def pack_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """Pickles a call: the function by value if no other process could import it.

    Args:
        function: What is called; one of a notebook's cell or of `__main__` travels with all that
            it refers to.
        args: Its arguments.
        kwargs: Its arguments by name.

    Raises:
        NotPicklableError: What cannot be pickled, by the name it has in the caller's program.
    """
    try:
        return cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        name = _name_of(function)
        parts = [
            *((f"`args[{index}]`", value) for index, value in enumerate(args)),
            *((f"`kwargs[{key!r}]`", value) for key, value in kwargs.items()),
            ("`function`", function),
        ]
        raise NotPicklableError(
            f"{_culprit(parts)} cannot be sent to the workers ({_brief(error)}); expected what can "
            f"be pickled. Make it inside of {name}: every worker needs its own"
        ) from error


def unpack_call(packed: bytes) -> Call:
    """Returns what `pack_call` was given, in a worker."""
    return pickle.loads(packed)  # noqa: S301  written by our own parent, for us


def pack_result(result: Any) -> bytes:
    """Pickles what a function returned; Keras' callbacks (History) without their model.

    Raises:
        NotPicklableError: What cannot be pickled, by its place in the result.
    """
    try:
        packed = io.BytesIO()
        _ResultPickler(packed).dump(result)
        return packed.getvalue()
    except Exception as error:
        raise NotPicklableError(
            f"{_culprit(list(_parts_of(result)))} cannot be sent back ({_brief(error)}); expected "
            "what can be pickled: return numbers, arrays, a History or a Keras model, or save the "
            "rest to a file"
        ) from error


def unpack_result(packed: bytes) -> Any:
    """Returns what `pack_result` was given, in the process that launched."""
    return pickle.loads(packed)  # noqa: S301  written by a worker of our own


class _ResultPickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # A callback is asked for its numbers. Its model would travel unasked, with the optimizer,
        # the training it took part in and, often, with something that cannot be pickled at all.
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(obj, keras.callbacks.Callback):
            state = {name: value for name, value in vars(obj).items() if name != "_model"}
            return object.__new__, (type(obj),), {**state, "_model": None}
        return super().reducer_override(obj)


def _culprit(parts: Sequence[tuple[str, Any]]) -> str:
    """Returns which of the named parts cannot be pickled, as near to its origin as can be told."""
    name, value = next((part for part in parts if not _travels(part[1])), parts[-1])
    seen: set[int] = set()
    while isinstance(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        inner = next((part for part in _referred_to(value) if not _travels(part[1])), None)
        if inner is None:
            break
        name, value = f"`{inner[0]}`, which {_name_of(value)} refers to", inner[1]
    return f"{name}, of type {type(value).__qualname__},"


def _travels(value: Any) -> bool:
    try:
        _ResultPickler(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True


def _referred_to(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the variables outside of a function that its code refers to, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for value in function.__defaults__ or ():
        yield "a default", value


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _parts_of(result: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the innermost parts of a result with their places, and it itself at last."""
    items: list[tuple[str, Any]] = []
    if isinstance(result, dict):
        items = [(f"[{key!r}]", value) for key, value in result.items()]
    elif isinstance(result, list | tuple):
        items = [(f"[{index}]", value) for index, value in enumerate(result)]
    for place, value in items:
        yield from _parts_of(value, where + place)
    yield f"`result{where}`", result


def _name_of(function: Any) -> str:
    return f"`{getattr(function, '__name__', None) or type(function).__name__}`"


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 200 else text[:197] + '...'}"
