"""Makes batches of the data of a call, and checks that all workers were given the same data.

Each worker trains on its own rows of every batch. So if the workers had different data, some
examples would never be used. Batches that Python code makes are compared later, when they are read
(`inputs/python.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.fingerprints.pipelines import of_data
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import Batches, as_batches, columns_as_arrays, has_arrays, kind_of

_Data = tuple[Any, Any, Any]

_SHOWN = 64
"""At most this many parts of the data are compared one by one, to name one that differs."""
_LONGEST = 200
"""At most this many bytes of the description of such a part are shown."""


def batches_of_all(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    strategy: Strategy,
    batch_size: int | None = None,
    steps_per_execution: int = 1,
    **how: Any,
) -> Batches:
    """Makes global batches of data, and checks that all workers were given the same data.

    A global batch has the examples of one step for all workers together. The function is a
    collective: all workers must call it.

    Args:
        x: As for `fit`.
        y: As for `fit`.
        sample_weight: As for `fit`.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        batch_size: The global batch size; None for the default of `as_batches`.
        steps_per_execution: The number of steps to a multiple of which those of an epoch are
            rounded up (`Batches.take_whole_executions`).
        **how: Further arguments of `kfit.inputs.as_batches`.

    Raises:
        ValueError: If the data is invalid, or if the workers were given different arrays,
            pipelines of different lengths, or other batch sizes, numbers of steps, class weights,
            orders or seeds.
    """
    how["batch_size"] = None if batch_size is None else int(batch_size)  # as snapshots need it
    x, y, sample_weight = columns_as_arrays((x, y, sample_weight))
    batches = as_batches(x, y, sample_weight, strategy=strategy, **how)
    batches.take_whole_executions(steps_per_execution)
    settings = _settings(batches, x, steps_per_execution=steps_per_execution, **how)
    is_pipeline = isinstance(x, tf.data.Dataset) and not batches.has_parts
    _require_same_data((x, y, sample_weight), strategy, settings, is_pipeline=is_pipeline)
    return batches


class BatchComparison:
    """Checks that all workers pass the same batches to `train_on_batch` and the like.

    The first batch is compared, the second, the fourth, the eighth and so on. So workers that each
    draw batches of their own are told at once, and a long loop is not slowed down.

    Args:
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._batches = 0

    def compare(self, data: _Data, class_weight: Mapping[int, float] | None = None) -> None:
        """Compares a batch, if it is its turn; a collective, which all workers must call.

        Args:
            data: `x`, `y` and `sample_weight`, which must be arrays in any structure, or None.
            class_weight: As for `fit`.

        Raises:
            ValueError: On all workers, if the batches or the class weights differ.
        """
        self._batches += 1
        if self._batches & (self._batches - 1) == 0:  # a power of two
            _require_same_data(data, self._strategy, {"class_weight": _floats_of(class_weight)})


def _settings(
    batches: Batches,
    x: Any,
    *,
    steps_per_execution: int,
    steps: int | None = None,
    shuffle: bool | str | None = False,
    seed: int = 0,
    class_weight: Mapping[int, float] | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Returns the arguments that must be equal on all workers, by name; None where one is unused.

    What workers with a part of the data each are told to take is their own affair. kfit shuffles
    only arrays and PyDatasets.

    Args:
        batches: The batches that were made of the data.
        x: As for `fit`.
        steps_per_execution: As for `batches_of_all`.
        steps: The number of steps that this worker is to take; None for all the data.
        shuffle: As for `fit`.
        seed: The seed of the data's order.
        class_weight: As for `fit`.
    """
    steps = None if batches.has_parts else steps
    is_ordered = has_arrays(x) or isinstance(x, keras.utils.PyDataset)
    order = "batch" if shuffle == "batch" else bool(shuffle)
    return {
        "batch_size": batches.batch_size if has_arrays(x) else None,
        "steps_per_epoch` or `steps": steps,
        "steps_per_execution": steps and steps_per_execution,
        "shuffle": order if is_ordered else None,
        "seed": seed if is_ordered and order else None,
        "class_weight": _floats_of(class_weight),
    }


def _floats_of(class_weight: Mapping[int, float] | None) -> Mapping[int, float] | None:
    return class_weight and {int(k): float(class_weight[k]) for k in class_weight}


def _require_same_data(
    data: _Data, strategy: Strategy, settings: Mapping[str, Any], *, is_pipeline: bool = False
) -> None:
    """Raises an error, or warns, if the workers were given different arrays or tf.data pipelines.

    Different arrays raise an error. So do pipelines of different lengths (`cardinality`), since a
    worker with more batches would wait for the others forever. Any other difference between
    pipelines, except for their seeds, leads to a warning. Large arrays are compared by evenly
    spaced pieces. Other data, and pipelines from which each worker reads a part of its own, are not
    compared. The settings must be the same, too.

    It is a collective: all workers must call it.

    Args:
        data: `x`, `y` and `sample_weight` as for `fit`.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        settings: The arguments by name, as `_settings` returns them.
        is_pipeline: Whether `x` is a tf.data pipeline, of which every worker must have the whole.

    Raises:
        ValueError: On all workers, if the arrays, the lengths of the pipelines or the settings
            differ.
    """
    host_collectives = strategy.host_collectives
    if host_collectives.is_alone:
        return
    is_compared = is_pipeline or has_arrays(*data)
    found = of_data(*data, sampled=True) if is_compared else {}
    entries = [(k, repr(v)) for k, v in found.items() if not k.endswith((".seed", ".seed2"))]
    checksums = [zlib.crc32("=".join(entry).encode()) for entry in entries]
    given = {name: _text(value) for name, value in settings.items()}
    own = [is_compared + is_pipeline, zlib.crc32(repr(checksums).encode())]
    views = host_collectives.all_gather([*own, *(zlib.crc32(t.encode()) for t in given.values())])
    kinds, digests, *others = views.T
    if len(set(kinds)) > 1:
        texts = host_collectives.texts(kind_of(data[0]))
        shown = _first_two_that_differ(list(kinds), texts)
        raise ValueError(f"`x` must be of one kind on every worker. Received: {shown}")
    for (name, text), values in zip(given.items(), others, strict=True):
        if len(set(values)) > 1:
            shown = _first_two_that_differ(list(values), host_collectives.texts(text, _LONGEST))
            raise ValueError(f"`{name}` must be the same on every worker. Received: {shown}")
    if len(set(digests)) == 1:
        return
    rows = host_collectives.all_gather([*checksums, *[0] * _SHOWN][:_SHOWN])
    other = [entry for entry, seen in zip(entries, rows.T, strict=False) if len(set(seen)) > 1]
    name, value = other[0] if other else entries[-1]
    if not is_pipeline:
        name, received = _received(name, value, strategy)
        raise ValueError(
            f"`{name}` must be the same on every worker: each trains on its own rows of every "
            f"batch. Received: {received}. Give all workers all of the data, in one order (sort "
            "what `os.listdir` returns, shuffle and draw with one seed). Where each is to read a "
            "part of its own, pass a function from `tf.distribute.InputContext` to a data set."
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


def _text(value: Any) -> str:
    """Returns a value as text; equal dicts are equal texts, in whatever order they were filled."""
    return repr(dict(sorted(value.items())) if isinstance(value, Mapping) else value)


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
