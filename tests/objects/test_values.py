"""Plain values become trees and come back as what they were, of the very type."""

from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.objects.values import (
    decode,
    elements,
    encode,
    fingerprint,
    from_bytes,
    is_exact,
    is_plain,
    size_of,
    to_bytes,
)

VALUES: dict[str, Any] = {
    "scalars": [None, True, 1, 2.5, "text", 1 << 80],
    "bytes": b"\0\xff",
    "numbers_of_numpy": [np.float32(0.1), np.int8(-3), np.bool_(True), np.str_("a")],
    "dates": [np.datetime64("2026-01-01"), np.timedelta64(3, "s")],
    "record": np.array([(1, 2.5)], [("a", "i4"), ("b", "f4")])[0],
    "dict": {1: "a", ("b", 2): {"$": "array"}, None: []},
    "ordered": OrderedDict([("b", OrderedDict()), ("a", 1)]),
    "counter": Counter({"a": 2, (1, 2): 0, "b": -1}),
    "defaults": defaultdict(list, {"loss": [0.1], 2: []}),
    "no_default": defaultdict(None, {"a": defaultdict(Counter)}),
    "sets": ({1, 2}, frozenset({"a"})),
    "deque": deque([1, 2], maxlen=2),
    "many_integers": list(range(100)),
    "many_large_integers": [1 << 63, -1] * 50 + [(1 << 63) + 1],
    "many_flags": [True, False] * 50,
    "many_beyond_64_bits": [1 << 80] * 100,
    "many_of_numpy": [np.float32(0.5)] * 100,
    "many_of_two_types": [1, 1.0] * 50,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back(name: str) -> None:
    value = VALUES[name]
    assert is_plain(value)
    assert is_exact(value)
    back = decode(from_bytes(to_bytes(encode(value))))
    assert repr(back) == repr(value)
    assert type(back) is type(value)
    assert fingerprint(back) == fingerprint(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.zeros((0, 2), "float16"),
        np.ones(3, tf.bfloat16.as_numpy_dtype),
        np.array("a"),
        np.array([b"a", b""]),
        np.array(["2026-01-01", "NaT"], "M8[D]"),
        np.array([(1, "a"), (2, "b")], [("n", "i4"), ("text", "U1")]),
    ],
    ids=["integers", "empty", "bfloat16", "text", "bytes", "dates", "records"],
)
def test_an_array_comes_back_and_is_no_longer_its_owners(array: np.ndarray) -> None:
    tree = encode(array)
    back = decode(from_bytes(to_bytes(tree)))
    assert is_exact(array)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)
    assert array.dtype.kind in "SU" or not np.shares_memory(tree["value"], array)


def test_a_tensor_comes_back_as_one() -> None:
    back = decode(encode(tf.constant([1, 2])))
    assert isinstance(back, tf.Tensor)
    assert back.numpy().tolist() == [1, 2]
    assert not is_plain(tf.constant("text"))


def test_what_is_not_plain_or_not_exact() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert not any(map(is_plain, (object(), [object()], np.array([object()]), itself)))
    named = namedtuple("Named", "a")(1)
    with_function = defaultdict(lambda: 0, a=1)
    assert is_plain(named)
    assert is_plain(with_function)
    assert not any(map(is_exact, (named, with_function, UserDict(a=1), [with_function])))
    # What a loader says of itself need only be plain: a dict comes back, as of any subclass.
    assert decode(encode(with_function)) == {"a": 1}
    with pytest.raises(KeyError):
        decode({"$": "defaultdict", "factory": "eval", "value": []})
    with pytest.raises(ValueError, match=r"a value has an unknown form: \{'\$': 'pickle'\}"):
        decode({"$": "pickle"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        (1, 1.0),
        ([[1], 2], [[1, 2]]),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2, "M8[D]"), np.ones(2, "M8[D]")),
        (np.ma.zeros(2), np.ma.array([0.0, 0.0], mask=[0, 1])),
    ],
)
def test_another_value_has_another_fingerprint(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_the_order_of_a_set_is_none() -> None:
    assert fingerprint({"a", "b", "c"}) == fingerprint({"c", "b", "a"})


def test_how_large_a_value_is() -> None:
    assert size_of(np.zeros(100)) == 800
    assert size_of(["text"] * 10) >= 40
    assert size_of({"a": np.zeros(100)}) > 800
    assert elements({"a": [1, 2], "b": 3}, 100) == 5
    assert elements([1] * 1000, 100) == 100
