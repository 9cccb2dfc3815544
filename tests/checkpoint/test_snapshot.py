"""A state is taken apart into JSON and arrays and put together again."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.checkpoint import Snapshot, Store
from kfit.checkpoint.snapshot import join, split, to_json, with_scalars, without_others


def test_what_a_person_sees_of_them(tmp_path: Any) -> None:
    about = {"step": 12, "epoch": 3, "model": "digits", "run": "1a"}
    snapshot = Snapshot(about, {"variables": [np.zeros(1000)]})
    assert repr(snapshot) == "<kfit.checkpoint.Snapshot, step 12, epoch 3, model 'digits'>"
    assert repr(Snapshot({}, {})) == "<kfit.checkpoint.Snapshot>"
    assert snapshot.described == "step 12"
    store = Store(str(tmp_path))
    name = store.save(snapshot)
    assert store.read(name).described == f"step 12 in {tmp_path}/{name}"
    assert repr(Store(str(tmp_path))) == f"Store(directory={str(tmp_path)!r}, keep=2)"


def test_a_state_comes_back() -> None:
    state = {
        "z": [1, 2.5, None, True, "text", float("nan"), float("inf")],
        "a": {"deep": [{"er": (np.arange(3), np.float32(0.1))}], "empty": {}, "none": []},
        "tensor": tf.constant([1.0, 2.0]),
    }
    values, arrays = split(state)
    back = join(json.loads(to_json(values)), arrays)
    assert list(back) == ["z", "a", "tensor"]
    assert back["z"][:5] == state["z"][:5]
    assert np.isnan(back["z"][5])
    assert back["z"][6] == float("inf")
    assert back["a"]["deep"][0]["er"][0] is state["a"]["deep"][0]["er"][0]
    assert back["a"]["empty"] == {}
    assert back["tensor"] is state["tensor"]
    assert len(split([keras.Variable([1.0]), tf.Variable([1.0])])[1]) == 2


def test_scalars_of_numpy_come_back_as_such(tmp_path: Path) -> None:
    """An array without a dimension can be neither formatted nor written as JSON."""
    state = {"f1": np.float64(0.5), "all": [np.float32(0.1), 3, np.ones(1)]}
    store = Store(str(tmp_path))
    store.save(Snapshot({"step": 1}, state))
    back = with_scalars(store.read(store.names()[0]).state)
    assert json.dumps(back["f1"]) == "0.5"
    assert f"{back['all'][0]:.2f}" == "0.10"
    assert back["all"][2].shape == (1,)


def test_of_logs_what_cannot_be_kept_is_left_out() -> None:
    logs = {"loss": 0.5, "when": object(), "all": [1, object()]}
    assert without_others(logs) == {"loss": 0.5, "all": [1, None]}


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [0, {"b": object()}]}, r"state\['a'\]\[1\]\['b'\] must be a number"),
        ({"a": {1: 2}}, r"the keys of state\['a'\] must be strings. Received: 1"),
        ({"a": {"$array": 2}}, "must be strings"),
        ({"a": np.array(["text"])}, r"state\['a'\] must be a number"),
        ({"a": np.array([object()])}, r"state\['a'\] must be a number"),
        ({"a": {1, 2}}, r"state\['a'\] must be a number"),
    ],
)
def test_what_cannot_be_kept_is_named(state: Any, place: Any) -> None:
    with pytest.raises(ValueError, match=place):
        split(state)


def test_an_array_that_is_missing() -> None:
    with pytest.raises(ValueError, match="'000000' is missing"):
        join(split({"a": np.zeros(2)})[0], {})
    for name in ([], {}, None, 0):
        with pytest.raises(ValueError, match="is missing"):
            join({"a": {"$array": name}}, {"000000": np.zeros(2)})
    with pytest.raises(ValueError, match="'000000' is missing"):  # `split` would not take it
        join({"a": {"$array": "000000", "more": 1}}, {"000000": np.zeros(2)})


def test_whatever_can_be_saved_can_be_read(tmp_path: Any) -> None:
    state: Any = np.arange(3)
    for _ in range(200):
        state = [state]
    store = Store(str(tmp_path))
    back = store.read(store.save(Snapshot({"step": 1}, state))).state
    for _ in range(200):
        [back] = back
    assert list(back) == [0, 1, 2]


def test_a_state_that_is_too_deep() -> None:
    def deep(count: int) -> Any:
        return [deep(count - 1)] if count else []

    assert join(split(deep(200))[0], {}) == deep(200)
    for change in (split, lambda state: join(state, {})):
        with pytest.raises(ValueError, match="more than 200 lists and dicts in each other"):
            change(deep(201))
