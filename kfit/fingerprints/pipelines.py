"""Describes the data of a training for its fingerprint, without drawing a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.pipeline_parts import parts_of
from kfit.fingerprints.digests import digest
from kfit.fingerprints.plain import flat, plain
from kfit.internals.runtime import drawn_seed, is_derived
from kfit.internals.tf_data import python_function_of, reader_of, seeds_of

_PARTS = ("x", "y", "sample_weight")

_ONLY_FASTER_NODES = ("_PrefetchDataset", "_OptionsDataset", "_CopyToDeviceDataset")
_ONLY_FASTER = frozenset(
    {
        "address",  # of a tf.data service
        "buffer_output_elements",
        "dataset_id",  # the name of a pipeline on a tf.data service, new for each run
        "filename",  # of a cache
        "force_synchronous",
        "num_parallel_calls",
        "prefetch_input_elements",
        "preserve_cardinality",
        "use_inter_op_parallelism",
        "use_unbounded_threadpool",
    }
)
"""Data sets, and attributes of data sets, that change where or how fast batches are made, but no
batch."""
_SEEDS = ("seed", "seed2")
_SAMPLED, _PIECES = 1 << 18, 64
"""If samples of an array are enough: how many bytes are read, and in how many pieces."""
_DEFAULT_SEED = 87654321
"""The global seed that TensorFlow uses for operations with a seed, if the program sets none."""


def of_data(
    x: Any, y: Any = None, sample_weight: Any = None, *, sampled: bool = False
) -> dict[str, Any]:
    """Describes by plain values the data that `fit` was given, without reading batches.

    The description is compared with that in a snapshot, and with those of other workers.

    Args:
        x: The input data, as `fit` takes it.
        y: The targets, as `fit` takes them.
        sample_weight: The sample weights, as `fit` takes them.
        sampled: Whether to read only a few small pieces of large arrays.
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
    sizes = (_SAMPLED, _SAMPLED // _PIECES) if sampled else ()
    digests = {
        name: keras.tree.map_structure(
            lambda leaf: None if leaf is None else digest(leaf, *sizes), part
        )
        for name, part in given.items()
        if part is not None
    }
    return {"kind": "arrays", **dict(flat(plain(digests)))}


def drawn_seed_of(*data: Any) -> dict[str, int]:
    """Returns TensorFlow's global seed if kfit has chosen it and a tf.data pipeline uses it.

    On several workers, kfit chooses a global seed if the program sets none. A new run has another
    seed and so shuffles in another order. To warn of that when training resumes, a snapshot
    contains the seed.

    Args:
        *data: The data of a training; only the pipelines among them are inspected.

    Returns:
        A dict with the key "seed". It is empty if the pipelines use no seed that kfit has chosen.
    """
    drawn = drawn_seed()
    nodes = (node for x in data if isinstance(x, tf.data.Dataset) for node in parts_of(x))
    seeds = (seeds_of(node)[0] for node in nodes)
    is_used = drawn is not None and any(_of_attribute(seed) == drawn for seed in seeds)
    return {"seed": drawn} if is_used and drawn is not None else {}


def _of_pipeline(dataset: tf.data.Dataset) -> dict[str, Any]:
    found = {
        "element_spec": str(dataset.element_spec),
        "cardinality": int(dataset.cardinality()),
    }
    nodes = (node for node in _nodes(dataset) if type(node).__name__ not in _ONLY_FASTER_NODES)
    for number, node in enumerate(nodes):
        kind = type(node).__name__.strip("_").removeprefix("Parallel")
        name = f"{kind} {number}"
        found[name] = ""
        for attribute, value in sorted(vars(node).items()):
            told = attribute.strip("_")
            if told in _ONLY_FASTER or (told == "buffer_size" and "Shuffle" not in kind):
                continue
            said = _of_attribute(value)
            if told == "cycle_length" and said == tf.data.AUTOTUNE:
                said = f"AUTOTUNE ({_cores()} on this machine)"
            if said is not None and not (told in _SEEDS and _is_nobodys(told, said)):
                found.update(flat(said, f"{name}.{told}"))
    return found


def _nodes(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Yields all data sets that a tf.data pipeline is made of, each one once.

    For `a.map(f).batch(8)` these are the results of `batch` and of `map`, and `a`. In TensorFlow, a
    data set that reads files, such as `TextLineDataset`, contains an inner pipeline. The data sets
    of inner pipelines are yielded, too.
    """
    seen = set()
    for node in parts_of(dataset):
        inner = reader_of(node)
        for part in [node, *(() if inner is None else parts_of(inner))]:
            if id(part) not in seen:
                seen.add(id(part))
                yield part


def _cores() -> int:
    """Returns the number of inputs that TensorFlow interleaves for `cycle_length=AUTOTUNE`.

    It is the number of CPU cores that this process may use.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_nobodys(name: str, seed: Any) -> bool:
    """Returns whether a data set has no seed, or a seed that TensorFlow or kfit chose.

    Only a seed that the user gave is part of the description of the data.

    Args:
        name: Which of the two seeds of a data set it is: "seed" or "seed2".
        seed: The seed; 0 if there is none.
    """
    if seed == 0:
        return True
    return seed in (_DEFAULT_SEED, drawn_seed()) if name == "seed" else is_derived(seed)


def _of_attribute(value: Any) -> Any:
    """Describes an attribute of a data set by plain values.

    The result is None if the attribute is not a number, an array or a function.
    """
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
    function = python_function_of(value)
    return None if function is None else plain(function)
