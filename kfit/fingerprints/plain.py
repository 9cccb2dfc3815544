"""Describes the parts of a training by plain values, which are equal in every process.

The descriptions are compared with those in a snapshot.
"""

from __future__ import annotations

import inspect
import os
import re
import types
import warnings
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.fingerprints.digests import digest

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_COUNTED = re.compile(r"_\d+(?=_|/|$)")
_UNSAID = {"module", "registered_name", "build_config", "compile_config", "shared_object_id"}
"""Keys of Keras' configurations that identify an object's class or state, not its settings."""
_DEEPEST = 30
_LONG = 200
"""Lists with more values, and texts with more characters, are replaced by a checksum."""
_VALUES = frozenset({str, bytes, int, float, bool, type(None)})


def plain(value: Any, depth: int = 0) -> Any:
    """Describes a value by JSON values, which are equal in every process of the same program.

    An object is described by its configuration or, if it has none, only by its class.

    Args:
        value: The value.
        depth: The number of containers and objects that enclose the value. If there are more than
            30, a container or an object is described only by the name of its class.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufUS":
        value = value.item()  # np.float64 is a float, but no JSON value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, bytes)):
        text = _ADDRESS.sub("", value if isinstance(value, str) else value.decode("latin-1"))
        return text if len(text) <= _LONG else f"{text[:20]}... {_told_shortly(text, 'characters')}"
    if depth > _DEEPEST:
        return type(value).__qualname__
    inner = partial(plain, depth=depth + 1)
    if isinstance(value, np.generic):
        return str(value)
    if isinstance(value, keras.Variable):
        return f"variable {value.dtype} {tuple(value.shape)}"
    if isinstance(value, (np.ndarray, tf.Tensor)):
        return digest(value)
    if isinstance(value, Mapping):
        return _of_mapping(value, inner)
    if isinstance(value, (list, tuple)):
        if len(value) > _LONG and set(map(type, value)) <= _VALUES:
            return _told_shortly(value, "values")  # such as a vocabulary
        return [inner(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(inner(part)) for part in value)
    if isinstance(value, type):
        return value.__qualname__
    if callable(value) and (found := _of_function(value, inner)) is not None:
        return found
    return {"class_name": type(value).__qualname__, **inner(config_of(value))}


def _told_shortly(value: Any, unit: str) -> str:
    text = _ADDRESS.sub("", repr(value))
    return f"{len(value)} {unit} #{zlib.crc32(text.encode(errors='replace')):08x}"


def config_of(value: Any) -> dict[str, Any]:
    """Returns the configuration of a Keras object as `{"config": ...}`, or {} if it has none."""
    get_config = getattr(value, "get_config", None)
    if get_config is None:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = get_config()
    except Exception:
        return {}  # a user's object without a configuration is described by its class alone
    return {"config": dict(config)} if isinstance(config, Mapping) else {}


def numbers_of(value: Any, besides: Any = ()) -> dict[str, Any]:
    """Returns an object's public attributes that are numbers, by name.

    Args:
        value: The object.
        besides: The names of attributes to leave out.
    """
    public = {n: plain(v) for n, v in vars(value).items() if n[0] != "_" and _is_number(v)}
    return {name: number for name, number in public.items() if name not in besides}


def _is_number(value: Any) -> bool:
    is_of_numpy = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    return is_of_numpy or type(value) in (bool, int, float)


def is_argument(value: Any, name: str) -> bool:
    """Returns whether the constructor of an object takes an argument of this name.

    The constructors of the classes from which the object's class is derived count, too.
    """
    made = (vars(kind).get("__init__") for kind in type(value).__mro__)
    own = (each for each in made if isinstance(each, types.FunctionType))
    return any(name in inspect.signature(each).parameters for each in own)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of each leaf in nested dicts and lists.

    For example, `{"a": {"units": 3}, "b": [{"c": 1}]}` has the leaves `("a.units", 3)` and
    `("b[0].c", 1)`. A list is a leaf if it contains no dict and no list. An empty dict is a leaf,
    too, unless it is the whole value and `path` is empty: then nothing is yielded.

    Args:
        value: The dict or list, or a leaf.
        path: The path of `value`, with which all yielded paths begin. The keys "config" and
            "class_name" are not added to a path, unless the path is still empty.
    """
    if isinstance(value, dict) and (value or not path):
        for key, part in value.items():
            is_inner = key in ("config", "class_name") and path
            yield from flat(part, path if is_inner else f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value):
        for index, part in enumerate(value):
            yield from flat(part, f"{path}[{index}]")
    else:
        yield path, value


def stable(name: str) -> str:
    """Returns a name without the numbers that Keras appends, as in `dense_1`."""
    return _COUNTED.sub("", name)


def _of_mapping(value: Mapping[Any, Any], inner: Any) -> dict[str, Any]:
    if value.get("class_name") == "__lambda__":
        return {"class_name": "lambda"}  # its bytecode contains line numbers
    if value.get("class_name") == "DTypePolicy":
        return {"class_name": value["config"]["name"]}
    found = {}
    for key in sorted(value, key=str):
        if key == "name" and isinstance(value[key], str):
            found["name"] = stable(value[key])
        elif key not in _UNSAID:
            found[str(key)] = inner(value[key])
    return found


def _of_function(value: Any, inner: Any) -> Any:
    if isinstance(value, partial):
        return [inner(value.func), inner(_told(value.args)), inner(_told(value.keywords))]
    function = value.__func__ if isinstance(value, types.MethodType) else value
    if not isinstance(function, types.FunctionType):
        return getattr(value, "__qualname__", None)
    if function.__module__.startswith("keras."):
        return function.__qualname__
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
    known = [c for c in cells if c is None or isinstance(c, (bool, int, float, str, tuple))]
    return {
        "function": function.__qualname__,
        "code": f"#{_checksum(function.__code__):08x}",
        "defaults": inner(_told(function.__defaults__)),
        "keyword_defaults": inner(_told(function.__kwdefaults__)),
        "closure": inner(_told(known)),
    }


def _told(value: Any) -> Any:
    """Replaces absolute paths by file names in the values that a function is given.

    These values are the function's default arguments, the variables of its closure, and the
    arguments of a `functools.partial`. After a restart the same files may be in another directory.
    The path of a directory is replaced by "a directory".
    """
    if isinstance(value, Mapping):
        return {key: _told(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_told(part) for part in value]
    if isinstance(value, str) and os.path.isabs(value):
        return "a directory" if os.path.isdir(value) else os.path.basename(value)
    return value


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _checksum(code: types.CodeType) -> int:
    """Returns a checksum of a function's code that does not depend on line numbers.

    It is computed from the bytecode, the constants, and the names of variables and attributes. The
    code of inner functions is included.
    """
    consts = [_checksum_of_constant(constant, code) for constant in code.co_consts]
    return zlib.crc32(repr((consts, code.co_names, code.co_varnames)).encode() + code.co_code)


def _checksum_of_constant(constant: Any, code: types.CodeType) -> Any:
    """Returns a constant of a function's code in a form that is equal in each process.

    The checksum of the code is computed from these forms. From Python 3.13 on, the constants of a
    class's body include its line number, which becomes None here, and a tuple of attribute names in
    an order that may change, which is sorted here.

    Args:
        constant: The constant.
        code: The code to which the constant belongs.
    """
    if isinstance(constant, types.CodeType):
        return _checksum(constant)
    if "__firstlineno__" in code.co_names:
        if constant == code.co_firstlineno:
            return None
        if isinstance(constant, tuple):
            constant = frozenset(constant)
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return _ADDRESS.sub("", repr(constant))
