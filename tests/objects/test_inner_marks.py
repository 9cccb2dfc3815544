"""Changes in objects that kfit cannot save are seen, and what has not changed has the same mark."""

import ctypes
import multiprocessing
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from kfit.objects import Attributes
from kfit.objects.plain_objects import mark_of

Case = tuple[Any, Callable[[Any], Any]]


class Owner:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def of_thread() -> Case:
    local = threading.local()
    local.count = 1
    return local, lambda value: setattr(value, "count", 2)


def of_context() -> Case:
    return ContextVar("count", default=0), lambda value: value.set(1)


def of_weak_keys() -> Case:
    owner = Owner()
    counts = weakref.WeakKeyDictionary({owner: 0})

    def change(value: Any) -> None:
        value[owner] += 1

    return counts, change


def of_frame() -> Case:
    def change(value: Any) -> None:
        value.loc[len(value)] = [2.0]

    return pd.DataFrame({"loss": [1.0]}), change


def of_a_cell() -> Case:
    kinds = {
        "when": pd.date_range("2020", periods=3, tz="UTC"),
        "kind": pd.Categorical(["a", "b", "a"]),
        "text": pd.array(["a", "b", None], dtype="string"),
        "span": pd.period_range("2020", periods=3, freq="D"),
        "any": [object(), [1], {"a": 2}],
        "count": [1, 2, 3],
    }
    return pd.DataFrame(kinds), lambda value: value.__setitem__("count", [1, 5, 3])


def of_series() -> Case:
    return pd.Series(np.arange(5000)), lambda value: value.__setitem__(0, 7)


def of_ctypes() -> Case:
    return ctypes.c_int(0), lambda value: setattr(value, "value", 1)


def of_shared_value() -> Case:
    return multiprocessing.Value("i", 0), lambda value: setattr(value, "value", 1)


def of_shared_array() -> Case:
    return multiprocessing.Array("d", 3), lambda value: value.__setitem__(1, 2.0)


def of_table() -> Case:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)
    table.insert(tf.constant(["a", "b"]), tf.constant([1.0, 2.0]))
    return table, lambda value: value.insert(tf.constant(["a"]), tf.constant([3.0]))


def of_module() -> Case:
    module = tf.Module()
    module.rate = tf.Variable(1.0)
    return module, lambda value: value.rate.assign(2.0)


CASES = (
    *(of_thread, of_context, of_weak_keys, of_frame, of_a_cell, of_series),
    *(of_ctypes, of_shared_value, of_shared_array, of_table, of_module),
)


@pytest.mark.parametrize("made", CASES)
def test_a_change_is_seen_and_told_with_its_name(made: Callable[[], Case]) -> None:
    value, change = made()
    attributes = Attributes(Owner(held=value))
    before = mark_of(value, ())
    assert mark_of(value, ()) == before == mark_of(value, ())
    assert attributes.unsaved() == []
    change(value)
    assert mark_of(value, ()) != before
    assert attributes.unsaved() == [f"held (a {type(value).__name__})"]


def test_variables_of_others_may_change() -> None:
    module, change = of_module()
    before = mark_of(module, {id(module.rate)})
    change(module)
    assert mark_of(module, {id(module.rate)}) == before


def empty_table() -> Any:
    return tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)


@pytest.mark.parametrize(
    "made",
    [
        pd.DataFrame,
        lambda: pd.DataFrame(index=range(3)),
        lambda: pd.DataFrame(np.zeros((2, 300))),
        lambda: pd.Series(dtype=object),
        lambda: pd.Series(
            [1, 2], pd.MultiIndex.from_product([["a"], pd.date_range("2020", periods=2)])
        ),
        weakref.WeakValueDictionary,
        lambda: ContextVar("unset"),
        threading.local,
        lambda: memoryview(b"text"),
        lambda: memoryview(np.zeros((2, 2))[:, 0]),
        lambda: np.array([None]),
        ctypes.c_int * 3,
        lambda: ctypes.pointer(ctypes.c_int(3)),
        empty_table,
        object,
        lambda: tf,
        lambda: len,
    ],
)
def test_what_is_empty_large_or_unknown_has_a_mark(made: Callable[[], Any]) -> None:
    value = made()
    assert mark_of(value, ()) == mark_of(value, ())
