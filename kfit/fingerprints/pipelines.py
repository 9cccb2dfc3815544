"""What data are, by what is known without drawing a batch of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from kfit.fingerprints.digests import digest
from kfit.fingerprints.plain import flat, plain

_PARTS = ("x", "y", "sample_weight")


def of_data(x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
    """Describes what `fit` was given as data.

    Args:
        x: As `fit` takes it.
        y: As `fit` takes it.
        sample_weight: As `fit` takes it.
    """
    if isinstance(x, tf.data.Dataset):
        return {"kind": "tf.data.Dataset", **_of_pipeline(x)}
    if isinstance(x, keras.utils.PyDataset):
        found = {"class": type(x).__qualname__, "batches": x.num_batches}
        return {"kind": "keras.utils.PyDataset", **found}
    leaves = keras.tree.flatten(x)
    if not leaves or not all(leaf is None or hasattr(leaf, "shape") for leaf in leaves):
        name = getattr(x, "__qualname__", type(x).__qualname__)
        return {"kind": type(x).__qualname__, "name": name}
    given = dict(zip(_PARTS, (x, y, sample_weight), strict=True))
    digests = {
        name: keras.tree.map_structure(lambda leaf: None if leaf is None else digest(leaf), part)
        for name, part in given.items()
        if part is not None
    }
    return {"kind": "arrays", **dict(flat(plain(digests)))}


def _of_pipeline(dataset: tf.data.Dataset) -> dict[str, Any]:
    found = {
        "element_spec": str(dataset.element_spec),
        "cardinality": int(dataset.cardinality()),
    }
    for number, node in enumerate(_nodes(dataset)):
        name = f"{type(node).__name__.strip('_')} {number}"
        found[name] = ""
        for attribute, value in sorted(vars(node).items()):
            if (said := _of_attribute(value)) is not None:
                found.update(flat(said, f"{name}.{attribute.strip('_')}"))
    return found


def _nodes(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """A pipeline's data sets, the last one first. Private: the graph of it names them anew."""
    yield dataset
    for part in dataset._inputs():
        yield from _nodes(part)


def _of_attribute(value: Any) -> Any:
    """What an operation of a pipeline was told: numbers, arrays and functions."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, tf.Tensor):
        if value.dtype in (tf.resource, tf.variant) or not hasattr(value, "numpy"):
            return None
        return (
            digest(value) if value.shape.rank or value.dtype == tf.string else value.numpy().item()
        )
    if isinstance(value, list) and value and all(isinstance(part, tf.Tensor) for part in value):
        return [_of_attribute(part) for part in value]
    # Private: the function that was given to `map`, which TensorFlow wraps.
    function = getattr(value, "_func", None)
    return plain(function) if callable(function) else None
