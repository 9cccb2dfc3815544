"""Pickling of the function that `kfit.launch` calls in other processes, and of its result.

A function and its result can be passed between processes in no other way. The pickles are written
and read only by the launching process and the workers that it has started, in a folder of mode 0700
that is removed at the end of the launch, or through Ray. Since unpickling can run any code, kfit
pickles only here and for the processes of a PyDataset, and never unpickles a file that outlives a
launch: snapshots and checkpoints consist of arrays and JSON.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from kfit.heartbeat.summaries import message_of

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class NotPicklableError(ValueError):
    """An error that is raised if an object for another process cannot be pickled."""


def pack_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """Pickles a function with its arguments, so that the workers of a launch can call it.

    Args:
        function: The function. A function from a module is pickled by its name, since a worker can
            import it. A function from a notebook cell or `__main__` is pickled with its code and
            all objects that it refers to.
        args: The positional arguments of the function.
        kwargs: The keyword arguments of the function.

    Raises:
        NotPicklableError: If the function, an argument, or a variable that the function refers to
            cannot be pickled. The message names this object.
    """
    try:
        packed = io.BytesIO()
        _CallPickler(packed).dump((function, tuple(args), dict(kwargs)))
        return packed.getvalue()
    except Exception as error:
        name = _name_of(function)
        parts = [
            *((f"`args[{index}]`", value) for index, value in enumerate(args)),
            *((f"`kwargs[{key!r}]`", value) for key, value in kwargs.items()),
            ("`function`", function),
        ]
        raise NotPicklableError(
            f"{_culprit(parts)} cannot be sent to the workers, because it cannot be pickled "
            f"({_brief(error)}). Create it inside of {name}, so that every worker has its own"
        ) from None


def unpack_call(packed: bytes) -> Call:
    """Unpickles the function and the arguments that `pack_call` has pickled; called in a worker."""
    return pickle.loads(packed)  # noqa: S301  written by our own parent, for us


def pack_result(result: Any) -> bytes:
    """Pickles the result of a launched function, to send it back to the launching process.

    A Keras callback in the result, such as the History of `fit`, is pickled without its model.

    Raises:
        NotPicklableError: If a part of the result cannot be pickled. The message says which part.
    """
    try:
        packed = io.BytesIO()
        _ResultPickler(packed).dump(result)
        return packed.getvalue()
    except Exception as error:
        raise NotPicklableError(
            f"{_culprit(list(_parts_of(result)))} cannot be sent back, because it cannot be "
            f"pickled ({_brief(error)}). Return numbers, arrays, a History or a Keras model; save "
            "other objects to a file"
        ) from None


def unpack_result(packed: bytes) -> Any:
    """Unpickles the result that `pack_result` has pickled; called in the launching process."""
    return pickle.loads(packed)  # noqa: S301  written by a worker of our own


class _CallPickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(obj, keras.Model) and (own := _parts_of_main(obj)):
            make, args, *state = obj.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            return _made_with, (own, make, args), *state
        # cloudpickle replaces the name of the file by this one. Tracebacks need the file, or the
        # cell of the notebook.
        if isinstance(obj, types.CodeType):
            make, args = self.dispatch_table[types.CodeType](obj)
            return make, tuple(obj.co_filename if arg == "<dynamic-code>" else arg for arg in args)
        return super().reducer_override(obj)


def _parts_of_main(model: Any) -> dict[str, Any]:
    """Returns the classes and functions of a model that a worker cannot import, by their names.

    They are those of a notebook or of the main script: of layers, and of what `compile` was given.
    """
    import keras

    from kfit.internals.layers import all_layers
    from kfit.internals.models import compile_arguments

    parts = [*all_layers(model), *keras.tree.flatten(list(compile_arguments(model).values()))]
    kinds = {part if isinstance(part, types.FunctionType) else type(part) for part in parts}
    return {kind.__name__: kind for kind in kinds if kind.__module__ == "__main__"}


def _made_with(own: Mapping[str, Any], make: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Makes a model in a worker, where Keras has to know what the notebook has defined for it."""
    import keras

    with keras.saving.custom_object_scope(dict(own)):
        return make(*args)


class _ResultPickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        # A callback is returned for its data, such as a History's. With its model the optimizer and
        # the state of training would be pickled too, and often something that cannot be pickled.
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(obj, keras.callbacks.Callback):
            reduced = obj.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            if isinstance(reduced, tuple) and len(reduced) > 2:
                return (*reduced[:2], _without_model(reduced[2]), *reduced[3:])
            return reduced
        return super().reducer_override(obj)


def _without_model(state: Any) -> Any:
    """Returns the state of a callback, as its `__getstate__` has returned it, without the model.

    Args:
        state: Its attributes by their names, or a pair of these and of those in `__slots__`. What
            else a class of the user's returns is left as it is.
    """
    if isinstance(state, dict) and "_model" in state:
        return {**state, "_model": None}
    if isinstance(state, tuple) and len(state) == 2:
        return _without_model(state[0]), state[1]
    return state


def _culprit(parts: Sequence[tuple[str, Any]]) -> str:
    """Returns the name and type of an object that cannot be pickled, for an error message.

    If this object is a function, and the reason is a variable to which the function refers, the
    variable is named instead of the function.

    Args:
        parts: The names and values of objects that could not be pickled together. The text names
            the first object that cannot be pickled alone; if there is none, the last object.
    """
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
    """Yields the name and value of each object outside of a function that the function refers to.

    These objects are pickled together with the function.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "a default", value


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _parts_of(
    result: Any, where: str = "", outside: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a result, to find the part that cannot be pickled.

    Inner parts come first, and the result itself comes last.

    Args:
        result: The result, or a part of it.
        where: How the part is found in the whole result, such as "['loss'][0]".
        outside: The IDs of the objects that the part is in.

    Yields:
        For each part a text that says where it is, and its value.
    """
    items: list[tuple[str, Any]] = []
    if isinstance(result, dict):
        items = [(f"[{key!r}]", value) for key, value in result.items()]
    elif isinstance(result, list | tuple):
        items = [(f"[{index}]", value) for index, value in enumerate(result)]
    outside = (*outside, id(result))
    for place, value in items:
        if id(value) not in outside:  # a list may contain itself
            yield from _parts_of(value, where + place, outside)
    yield f"`result{where}`", result


def _name_of(function: Any) -> str:
    return f"`{getattr(function, '__name__', None) or type(function).__name__}`"


def _brief(error: BaseException) -> str:
    text = " ".join(message_of(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 200 else text[:197] + '...'}"
