"""Makes batches of the data of a call, and checks that all workers were given the same data.

Each worker trains on its own rows of every batch. So if the workers had different data, some
examples would never be used. Batches that Python code makes are compared later, when they are read
(`inputs/python.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.fingerprints.pipelines import of_data
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import Batches, as_batches, columns_as_arrays, has_arrays, kind_of

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
        ValueError: If the data is invalid, or if the workers were given different arrays,
            pipelines of different lengths, or other batch sizes or numbers of steps.
    """
    x, y, sample_weight = columns_as_arrays((x, y, sample_weight))
    batches = as_batches(x, y, sample_weight, strategy=strategy, **how)
    _require_same_data(batches, x, y, sample_weight, strategy, how.get("steps"))
    return batches


def _require_same_data(
    batches: Batches, x: Any, y: Any, sample_weight: Any, strategy: Strategy, steps: int | None
) -> None:
    """Raises an error, or warns, if the workers were given different arrays or tf.data pipelines.

    Different arrays raise an error. So do pipelines of different lengths (`cardinality`), since a
    worker with more batches would wait for the others forever. Any other difference between
    pipelines, except for their seeds, leads to a warning. Large arrays are compared by evenly
    spaced pieces. Other data, and pipelines from which each worker reads a part of its own, are not
    compared. The batch size of arrays, and the number of steps, must be the same, too.

    It is a collective: all workers must call it.

    Args:
        batches: The batches that were made of the data.
        x: As for `fit`.
        y: As for `fit`.
        sample_weight: As for `fit`.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        steps: The number of steps that the workers are to take; None for all the data.

    Raises:
        ValueError: On all workers, if the arrays, the lengths of the pipelines, the batch sizes or
            the numbers of steps differ.
    """
    host_collectives = strategy.host_collectives
    if host_collectives.is_alone:
        return
    is_pipeline = isinstance(x, tf.data.Dataset) and not batches.has_parts
    is_compared = is_pipeline or has_arrays(x, y, sample_weight)
    found = of_data(x, y, sample_weight, sampled=True) if is_compared else {}
    entries = [(k, repr(v)) for k, v in found.items() if not k.endswith((".seed", ".seed2"))]
    checksums = [zlib.crc32("=".join(entry).encode()) for entry in entries]
    size = batches.batch_size if is_compared and not is_pipeline else None
    # What workers with a part of the data each are told to take is their own affair.
    own = [is_compared + is_pipeline, size or 0, 0 if batches.has_parts else steps or 0]
    views = host_collectives.all_gather([*own, zlib.crc32(repr(checksums).encode())])
    kinds, sizes, numbers, digests = views.T
    if len(set(kinds)) > 1:
        texts = host_collectives.texts(kind_of(x))
        shown = _first_two_that_differ(list(kinds), texts)
        raise ValueError(f"`x` must be of one kind on every worker. Received: {shown}")
    for name, values in (("batch_size", sizes), ("steps_per_epoch` or `steps", numbers)):
        if len(set(values)) > 1:
            given = _first_two_that_differ(values, [int(value) or None for value in values])
            raise ValueError(f"`{name}` must be the same on every worker. Received: {given}")
    if len(set(digests)) == 1:
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
    return parts[0][0], _first_two_that_differ(values, values)


def _first_two_that_differ(values: Sequence[Any], shown: Sequence[Any]) -> str:
    """Returns what worker 0 and the first worker that differs from it were given.

    Args:
        values: For each worker the value to compare.
        shown: For each worker the words for its value.
    """
    others = [index for index, value in enumerate(values) if value != values[0]]
    return ", ".join(f"worker {i}: {shown[i]}" for i in [0, *others[:1]])
