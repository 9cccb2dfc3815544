"""The graph of a model's layers, as TensorBoard draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


def layer_graph(description: dict[str, Any]) -> Any:
    """Returns a graph with a node for each layer, and an edge from each layer to those it feeds.

    The layers of a model that is a layer of another model are in a scope with its name.

    Args:
        description: What `to_json` of a Sequential or functional model returned, read as JSON.

    Returns:
        A `GraphDef`. The operation of a node is the class of the layer.
    """
    graph = tf.Graph().as_graph_def()
    _add_layers(graph, description["config"], "", [])
    return graph


def _add_layers(graph: Any, config: dict[str, Any], scope: str, fed_by: Sequence[str]) -> list[str]:
    """Adds the layers of a model to a graph.

    Args:
        graph: The `GraphDef`.
        config: The configuration of the model.
        scope: What the names of the nodes begin with.
        fed_by: The nodes that feed the inputs of the model.

    Returns:
        The nodes that are the model's outputs.
    """
    results: dict[str, list[str]] = {}
    last: list[str] = list(fed_by)
    for layer in config["layers"]:
        own = layer["config"]
        name = layer.get("name") or own["name"]
        if layer.get("inbound_nodes"):
            sources = dict.fromkeys(_fed_by(layer["inbound_nodes"]))
            inputs = [node for source in sources for node in results.get(source, [])]
        elif layer["class_name"] == "InputLayer" or "inbound_nodes" not in layer:
            inputs = list(fed_by) if layer["class_name"] == "InputLayer" else last
        else:
            inputs = []
        if isinstance(own, dict) and "layers" in own:
            results[name] = _add_layers(graph, own, f"{scope}{name}/", inputs)
        else:
            node = graph.node.add(name=scope + name, op=layer["class_name"])
            node.input.extend(dict.fromkeys(inputs))
            results[name] = [node.name]
        last = results[name]
    ends = dict.fromkeys(_named_in(config.get("output_layers", [])))
    return [node for end in ends for node in results.get(end, [])] or last


def _fed_by(value: Any) -> Iterator[str]:
    """Yields the names of the layers whose outputs occur in the arguments of a layer's calls."""
    if isinstance(value, dict):
        history = value.get("keras_history")
        if history:
            yield history[0]
        else:
            for part in value.values():
                yield from _fed_by(part)
    elif isinstance(value, list):
        for part in value:
            yield from _fed_by(part)


def _named_in(value: Any) -> Iterator[str]:
    """Yields the names of layers in a structure of `[name, number of the call, number]`."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _named_in(part)
    elif isinstance(value, list) and value and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, list):
        for part in value:
            yield from _named_in(part)
