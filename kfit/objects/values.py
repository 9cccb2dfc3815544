"""Converts plain values of Python and NumPy to trees of JSON values and arrays, and back.

Snapshots of a training contain such trees. A value is plain if `encode` accepts it: None, numbers,
texts, bytes, arrays (also Python's own), tensors, and lists, tuples, sets, deques and dicts of
plain values. Of the dicts in `collections`, the type is kept as well.
"""

from __future__ import annotations

import array as python_arrays
import base64
import json
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.internals.layers import TRACKED
from kfit.objects.checksum import checksum
from kfit.objects.other_arrays import (
    can_save,
    dtype_of,
    from_bytes_of_items,
    is_saved_by_bytes,
    memory_of,
    text_of,
    to_bytes_of_items,
)
from kfit.objects.torch_tensors import from_array, is_torch_tensor, to_array

_SCALARS = frozenset({type(None), bool, int, float, str})
_NUMBERS = frozenset({type(None), bool, int, float})
_CONTAINERS = (list, tuple, set, frozenset, deque)
DICTS = (dict, OrderedDict, Counter, defaultdict)
"""The types of dicts that are saved and restored with their type."""
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str)}
_FACTORIES |= {kind.__name__: kind for kind in (list, dict, set, deque, Counter, OrderedDict)}
_FACTORIES["None"] = None
"""What a defaultdict may call for a missing key, by the name in a snapshot."""
_BUFFERS = (bytearray, python_arrays.array)
_ROOM = 64 << 20
"""The bytes that an array of texts may take, if its texts are short for its dtype."""
_SHORT = 64
"""A list of at most this many numbers is kept as JSON, a longer one as an array."""
_DEEPEST = 50
"""The deepest nesting of containers in a plain value. No container may contain itself."""
_SAMPLED = 64 << 20
"""Of an array with more bytes than this, a fingerprint reads samples only."""
_TAG = "$"
_ARRAY = "$nd"


def type_of(value: Any) -> type:
    """Returns the type of a value, as far as a program sees it.

    Keras makes the lists, dicts and sets in attributes of layers into those of its own, to find the
    layers in them. They count as what the program has given.
    """
    return TRACKED.get(type(value), type(value))


def is_plain(value: Any, inside: tuple[int, ...] = ()) -> bool:
    """Returns whether `encode` accepts a value, so that the value can be saved.

    Args:
        value: The value.
        inside: The ids (as of `id`) of the containers that the value is in, from the outermost on.
            A container that contains itself is not accepted.
    """
    if type(value) in _SCALARS or isinstance(value, (bytes, *_BUFFERS)):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return can_save(value.dtype)
    if isinstance(value, tf.Tensor):
        return hasattr(value, "numpy") and value.dtype != tf.string
    if is_torch_tensor(value):
        return True
    if not isinstance(value, (*_CONTAINERS, dict)) or _is_too_deep(value, inside):
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return _are_scalars(items) or all(map(is_plain, items, repeat((*inside, id(value)))))


def is_exact(value: Any, inside: tuple[int, ...] = ()) -> bool:
    """Returns whether a value can be saved, and restored with exactly its type.

    This requires that `encode` accepts the value, and that `decode` returns a value of the same
    type. So objects of subclasses, such as a named tuple, are not exact, except for the dicts in
    `collections`. A `defaultdict` is exact if its factory is None or a common class such as `list`.

    Args:
        value: The value.
        inside: The ids (as of `id`) of the containers that the value is in, from the outermost on.
            A container that contains itself is not accepted.
    """
    kind = type_of(value)
    if kind in _SCALARS or kind is bytes or isinstance(value, tf.Tensor):
        return is_plain(value)
    if kind in _BUFFERS or is_torch_tensor(value):
        return True
    if kind is np.ndarray or (isinstance(value, np.generic) and kind.__module__ == "numpy"):
        return is_plain(value)
    if kind not in (*_CONTAINERS, *DICTS) or _is_too_deep(value, inside):
        return False
    if kind is defaultdict and _factory_name(value) is None:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return _are_scalars(items) or all(map(is_exact, items, repeat((*inside, id(value)))))


def _is_too_deep(container: Any, inside: tuple[int, ...]) -> bool:
    return len(inside) >= _DEEPEST or id(container) in inside


def _are_scalars(items: Iterable[Any]) -> bool:
    """Returns whether all items are numbers, texts or None.

    The items are examined in C, since there may be a hundred thousand of them.
    """
    return set(map(type, items)) <= _SCALARS


def elements(value: Any, limit: int) -> int:
    """Counts a value and all values nested in it, but only up to `limit`.

    So large containers are recognized without counting to the end. Keys of dicts do not count.
    """
    count, stack = 0, [value]
    while stack and count < limit:
        item = stack.pop()
        count += 1
        if isinstance(item, (*_CONTAINERS, dict)):
            if count + len(item) >= limit:
                return limit
            stack += item.values() if isinstance(item, dict) else item
    return count


def encode(value: Any) -> Any:
    """Converts a value to a tree of JSON values and arrays, which a snapshot can contain.

    The value must be plain: a number, a text, an array or the like, or a container of plain values
    (`is_plain`). Arrays are copied, since their owner may write to them.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, bytes):
        return {_TAG: "bytes", "value": np.frombuffer(value, "uint8")}
    if isinstance(value, bytearray):
        return {_TAG: "bytearray", "value": np.frombuffer(bytes(value), "uint8")}
    if isinstance(value, python_arrays.array):
        content = np.frombuffer(value.tobytes(), "uint8")
        return {_TAG: "array of Python", "value": content, "of": value.typecode}
    if isinstance(value, np.generic):
        return {_TAG: "scalar", "value": encode(np.asarray(value))}
    if isinstance(value, tf.Tensor):
        return {_TAG: "tensor", "value": value.numpy()}
    if is_torch_tensor(value):
        return {_TAG: "torch", "value": to_array(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return {_TAG: "texts", "value": value.tolist(), "dtype": value.dtype.str}
        if is_saved_by_bytes(value.dtype):
            content = to_bytes_of_items(value)
            return {_TAG: "bytes of items", "value": content, "dtype": text_of(value.dtype)}
        return {_TAG: "array", "value": value.copy()}
    if isinstance(value, dict):
        pairs = [[encode(key), encode(item)] for key, item in value.items()]
        factory = _factory_name(value) if type(value) is defaultdict else None
        if factory is not None:
            return {_TAG: "defaultdict", "factory": factory, "value": pairs}
        # A defaultdict whose factory has no name in snapshots comes back as a dict.
        kind = type_of(value)
        keeps_type = kind in DICTS and kind is not defaultdict
        return {_TAG: kind.__name__ if keeps_type else "dict", "value": pairs}
    kind = next(k for k in _CONTAINERS if isinstance(value, k))
    limit = {"maxlen": value.maxlen} if isinstance(value, deque) else {}
    return {_TAG: kind.__name__, **limit, **_elements(value)}


def decode(tree: Any) -> Any:
    """Converts a tree that `encode` returned back to the value.

    Raises:
        ValueError: If the tree has a form that `encode` does not return.
    """
    if type(tree) in _SCALARS:
        return tree
    kind = tree.get(_TAG) if isinstance(tree, dict) else None
    if not isinstance(kind, str) or kind not in _DECODERS:
        raise ValueError(f"a value has an unknown form: {tree!r:.100}")
    return _DECODERS[kind](tree)


def _factory_name(value: defaultdict[Any, Any]) -> str | None:
    """Returns the name of the factory of a defaultdict in a snapshot; None for any other one."""
    factory = value.default_factory
    return next((name for name, known in _FACTORIES.items() if known is factory), None)


def _pairs(tree: dict[str, Any]) -> dict[Any, Any]:
    return {decode(key): decode(item) for key, item in tree["value"]}


def _elements(value: Iterable[Any]) -> dict[str, Any]:
    items = list(value)
    kinds = set(map(type, items))
    numbers = {int: "int", float: "float", bool: "bool"}
    if len(items) > _SHORT and len(kinds) == 1:
        kind = kinds.pop()
        if kind in numbers or issubclass(kind, np.number):
            array = np.asarray(items)
            # Integers beyond 64 bits make an array of objects, or of rounded floats.
            if array.dtype.kind in ("iu" if kind is int else "biuf"):
                return {"value": array, "of": numbers.get(kind, "scalar")}
    return {"value": [encode(item) for item in items]}


def _items(tree: dict[str, Any]) -> list[Any]:
    if "of" in tree:
        array = np.asarray(tree["value"])
        return list(array) if tree["of"] == "scalar" else array.tolist()
    return [decode(item) for item in tree["value"]]


def _texts(tree: dict[str, Any]) -> np.ndarray:
    dtype, texts = np.dtype(tree["dtype"]), np.asarray(tree["value"], object)
    # Bytes may come as arrays without dimensions.
    written = sum(len(text) if isinstance(text, str) else text.nbytes for text in texts.flat)
    if dtype.kind not in "US" or dtype.itemsize * texts.size > max(_ROOM, 16 * written):
        raise ValueError(f"{written} characters cannot be {texts.size} texts of {dtype.str:.50}")
    return texts.astype(dtype)


_DECODERS: dict[Any, Any] = {
    "bytes": lambda tree: np.asarray(tree["value"], "uint8").tobytes(),
    "bytearray": lambda tree: bytearray(np.asarray(tree["value"], "uint8").tobytes()),
    "array of Python": lambda tree: python_arrays.array(
        tree["of"], np.asarray(tree["value"], "uint8").tobytes()
    ),
    "scalar": lambda tree: np.asarray(decode(tree["value"]))[()],
    "tensor": lambda tree: tf.constant(tree["value"]),
    "torch": lambda tree: from_array(np.asarray(tree["value"])),
    "texts": _texts,
    "bytes of items": lambda tree: from_bytes_of_items(tree["value"], dtype_of(tree["dtype"])),
    "array": lambda tree: np.array(tree["value"]),
    "dict": _pairs,
    "OrderedDict": lambda tree: OrderedDict(_pairs(tree)),
    "Counter": lambda tree: Counter(_pairs(tree)),
    "defaultdict": lambda tree: defaultdict(_FACTORIES[tree["factory"]], _pairs(tree)),
    "list": _items,
    "tuple": lambda tree: tuple(_items(tree)),
    "set": lambda tree: set(_items(tree)),
    "frozenset": lambda tree: frozenset(_items(tree)),
    "deque": lambda tree: deque(_items(tree), tree["maxlen"]),
}


def fingerprint(value: Any, start: int = 0) -> int:
    """Returns a CRC-32 of a plain value, to detect changes.

    Of large arrays only samples are read.

    Args:
        value: The value: a number, a text, an array or the like, or a container of plain values. An
            array may be of any dtype without objects, and of any class.
        start: The CRC-32 of preceding values, to continue from.
    """
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    elif is_torch_tensor(value):
        value = to_array(value)
    elif isinstance(value, _BUFFERS):
        value = np.frombuffer(bytes(value), "uint8")
    if isinstance(value, np.ndarray):
        start = zlib.crc32(f"{value.shape} {value.dtype}".encode(), start)
        return checksum((part for each in memory_of(value) for part in _parts(each)), start)
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    elif isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple, deque)) and not set(map(type, value)) <= _SCALARS:
        start = zlib.crc32(str(len(value)).encode(), start)
        for item in value:
            start = fingerprint(item, start)
        return start
    return zlib.crc32(repr(value).encode(), start)


def _parts(array: np.ndarray) -> Iterable[np.ndarray]:
    if array.nbytes <= _SAMPLED or not array.ndim:
        yield array
        return
    for row in np.linspace(0, len(array) - 1, min(len(array), 512), dtype=int):
        yield array[row : row + 1].reshape(-1)[:1024]


def size_of(value: Any) -> int:
    """Estimates how many bytes a plain value takes: a number, a text, an array or a container."""
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, python_arrays.array):
        return len(value) * value.itemsize
    if isinstance(value, dict):
        return size_of(list(value)) + size_of(list(value.values()))
    if isinstance(value, _CONTAINERS):
        kinds = set(map(type, value))
        if kinds <= _NUMBERS:
            return 16 * len(value)
        if kinds == {str}:
            return 8 * len(value) + sum(map(len, value))
        return 8 * len(value) + sum(map(size_of, value))
    if is_torch_tensor(value):
        return int(value.nbytes)
    return 8 if not isinstance(value, tf.Tensor) else int(value.shape.num_elements() or 0) * 8


def to_bytes(tree: Any) -> bytes:
    """Converts a tree of JSON values and arrays to bytes, to send the tree to other tasks."""

    def plain(array: Any) -> dict[str, Any]:
        whole = np.ascontiguousarray(array)
        content = base64.b64encode(whole.tobytes()).decode()
        dtype = whole.dtype
        # NumPy's `str` of bfloat16 and its like only says how many bytes an item has.
        name = dtype.str if np.dtype(dtype.str) == dtype else dtype.name
        return {_ARRAY: [name, list(np.shape(array)), content]}

    return json.dumps(tree, default=plain).encode()


def from_bytes(content: bytes) -> Any:
    """Converts bytes that `to_bytes` returned back to the tree of JSON values and arrays."""

    def whole(pairs: dict[str, Any]) -> Any:
        if set(pairs) != {_ARRAY}:
            return pairs
        dtype, shape, text = pairs[_ARRAY]
        return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()

    return json.loads(content, object_hook=whole)
