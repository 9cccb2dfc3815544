"""The graph of a model's layers."""

import json
from typing import Any

import keras

from kfit.callbacks.layer_graph import layer_graph


def edges(model: keras.Model) -> dict[str, tuple[str, list[str]]]:
    graph = layer_graph(json.loads(model.to_json()))
    return {node.name: (node.op, list(node.input)) for node in graph.node}


def dense(units: int, name: str) -> Any:
    return keras.layers.Dense(units, name=name)


def test_a_chain() -> None:
    model = keras.Sequential([keras.Input((4,), name="x"), dense(3, "first"), dense(2, "second")])
    assert edges(model) == {
        "x": ("InputLayer", []),
        "first": ("Dense", ["x"]),
        "second": ("Dense", ["first"]),
    }


def test_branches_models_in_models_and_operations() -> None:
    x, y = keras.Input((8,), name="x"), keras.Input((8,), name="y")
    part_x = keras.Input((4,), name="in")
    part = keras.Model(part_x, dense(3, "out")(part_x), name="part")
    chain = keras.Sequential([keras.Input((8,), name="from"), dense(4, "to"), part], name="chain")
    total = keras.layers.Add(name="sum")([chain(x), chain(y)])
    halves = keras.ops.concatenate([total, total])
    model = keras.Model({"x": x, "y": y}, {"a": halves, "b": dense(1, "end")(total)})
    found = edges(model)
    assert found["chain/from"] == ("InputLayer", ["x", "y"])
    assert found["chain/to"] == ("Dense", ["chain/from"])
    assert found["chain/part/in"] == ("InputLayer", ["chain/to"])
    assert found["chain/part/out"] == ("Dense", ["chain/part/in"])
    assert found["sum"] == ("Add", ["chain/part/out"])
    assert found["end"] == ("Dense", ["sum"])
    assert ("Concatenate", ["sum"]) in found.values()


def test_one_input_as_several_arguments() -> None:
    x = keras.Input((5, 8), name="x")
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, value=x)
    assert edges(keras.Model(x, attention))["attention"] == ("MultiHeadAttention", ["x"])
