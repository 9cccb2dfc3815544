"""Makes batches of the data of a call, and checks that all workers were given the same data.

Each worker trains on its own rows of every batch. So if the workers had different data, some
examples would never be used. Batches that Python code makes are compared later, when they are read
(`inputs/python.py`).
"""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.fingerprints.pipelines import of_data
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import Batches, as_batches, columns_as_arrays, has_arrays

_SHOWN = 64
"""At most this many parts of the data are compared one by one, to name one that differs."""
_LONGEST = 200
"""At most this many bytes of the description of such a part are shown."""


def batches_of_all(
    x: Any, y: Any = None, sample_weight: Any = None, *, strategy: Strategy, **how: Any
) -> Batches:
    """Makes global batches of data, and checks that all workers were given the same data.

    A global batch has the examples of one step for all workers together. The function is a
    collective: all workers must call it.

    Args:
        x: As for `fit`.
        y: As for `fit`.
        sample_weight: As for `fit`.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        **how: Further arguments of `kfit.inputs.as_batches`.

    Raises:
        ValueError: If the data is invalid, or if the workers were given different arrays or
            pipelines of different lengths.
    """
    x, y, sample_weight = columns_as_arrays((x, y, sample_weight))
    batches = as_batches(x, y, sample_weight, strategy=strategy, **how)
    _require_same_data(batches, x, y, sample_weight, strategy)
    return batches


def _require_same_data(
    batches: Batches, x: Any, y: Any, sample_weight: Any, strategy: Strategy
) -> None:
    """Raises an error, or warns, if the workers were given different arrays or tf.data pipelines.

    Different arrays raise an error. So do pipelines of different lengths (`cardinality`), since a
    worker with more batches would wait for the others forever. Any other difference between
    pipelines, except for their seeds, leads to a warning. Large arrays are compared by evenly
    spaced pieces. Other data, and pipelines from which each worker reads a part of its own, are not
    compared.

    It is a collective: all workers must call it.

    Args:
        batches: The batches that were made of the data.
        x: As for `fit`.
        y: As for `fit`.
        sample_weight: As for `fit`.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.

    Raises:
        ValueError: On all workers, if the arrays, or the lengths of the pipelines, differ.
    """
    host_collectives = strategy.host_collectives
    is_pipeline = isinstance(x, tf.data.Dataset) and not batches.has_parts
    if host_collectives.is_alone or not (is_pipeline or has_arrays(x, y, sample_weight)):
        return
    found = of_data(x, y, sample_weight, sampled=True)
    entries = [(k, repr(v)) for k, v in found.items() if not k.endswith((".seed", ".seed2"))]
    checksums = [zlib.crc32("=".join(entry).encode()) for entry in entries]
    if len(set(host_collectives.all_gather([zlib.crc32(repr(checksums).encode())])[:, 0])) == 1:
        return
    rows = host_collectives.all_gather([*checksums, *[0] * _SHOWN][:_SHOWN])
    other = [entry for entry, seen in zip(entries, rows.T, strict=False) if len(set(seen)) > 1]
    name, value = other[0] if other else entries[-1]
    if not is_pipeline:
        name, received = _received(name, value, strategy)
        raise ValueError(
            f"`{name}` must be the same on every worker: each trains on its own rows of every "
            f"batch. Received: {received}. Give all workers all of "
            "the data, in one order (sort what `os.listdir` returns, and shuffle with one seed). "
            "Where each is to read a part of its own, pass a function from "
            "`tf.distribute.InputContext` to a data set."
        )
    problem = (
        f"`x`, a tf.data.Dataset, is another one on another worker: here {name} is {value}. Each "
        "worker takes its own rows of every batch, so that some examples are never seen. Give all "
        "workers the same pipeline, or set the auto-shard policy OFF where each reads a part of "
        "its own."
    )
    if any(name == "cardinality" for name, _ in other):
        raise ValueError(problem)
    warn_user(problem)


def _received(name: str, value: str, strategy: Strategy) -> tuple[str, str]:
    """Returns the name of what differs between workers, and what two of them were given.

    All workers return the same, so that they raise the same error, which is then printed once. It
    is a collective: all workers must call it.

    Args:
        name: The name of a part of this worker's data that differs.
        value: What this part is on this worker.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
    """
    texts = strategy.host_collectives.texts(f"{name}={value}", _LONGEST)
    parts = [text.partition("=") for text in texts]
    values = [text for _, _, text in parts]
    others = [index for index, text in enumerate(values) if text != values[0]]
    return parts[0][0], ", ".join(f"worker {i}: {values[i]}" for i in [0, *others[:1]])
