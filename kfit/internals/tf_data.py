"""The parts of tf.data pipelines and their arguments.

No public method lists them. Their graphs cannot be used instead, because they have new names each
time.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.internals.private import uses

_PARTS = "no public method lists the parts of a pipeline"
_TOLD = "a part of a pipeline does not tell in public what it was made with"


@uses("tf.data.Dataset._inputs", because=_PARTS)
def inputs_of(part: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets that this data set reads from."""
    return list(part._inputs())


@uses("tf.data.TextLineDataset._impl", because=_PARTS)
def reader_of(part: tf.data.Dataset) -> tf.data.Dataset | None:
    """The inner pipeline of a data set that reads files; None for any other data set."""
    inner = getattr(part, "_impl", None)
    return inner if isinstance(inner, tf.data.Dataset) else None


@uses("tf.data.Dataset._functions", because=_PARTS)
def functions_of(part: tf.data.Dataset) -> list[Any]:
    """The concrete functions that a data set calls for each element."""
    return [function.function for function in part._functions()]


@uses("tf.data.Dataset.map._map_func._func", because=_TOLD)
def python_function_of(wrapper: Any) -> Any:
    """The Python function in TensorFlow's wrapper of an argument of `map` and the like, or None."""
    function = getattr(wrapper, "_func", None)
    return function if callable(function) else None


@uses("tf.data.Dataset.repeat._count", because=_TOLD)
def repeat_count(part: tf.data.Dataset) -> int:
    """How often a `repeat` reads its input; -1 means without end."""
    return int(part._count)


@uses("tf.data.Dataset.shuffle._reshuffle_each_iteration", because=_TOLD)
def reshuffles(part: tf.data.Dataset) -> bool:
    """Whether a `shuffle` shuffles in another order in each pass."""
    return part._reshuffle_each_iteration is not False


@uses("tf.data.Dataset.random._rerandomize", because=_TOLD)
def draws_other_numbers(part: tf.data.Dataset) -> bool:
    """Whether a `random` data set draws other numbers in each pass."""
    return bool(getattr(part, "_rerandomize", False))


@uses("tf.data.Dataset.shuffle._seed", "tf.data.Dataset.shuffle._seed2", because=_TOLD)
def seeds_of(part: tf.data.Dataset) -> tuple[Any, Any]:
    """The two seeds of a data set that uses random numbers; each may be None."""
    return getattr(part, "_seed", None), getattr(part, "_seed2", None)


@uses("tf.data.Dataset.map._deterministic", because=_TOLD)
def is_told_deterministic(part: tf.data.Dataset) -> str | None:
    """The `deterministic` option of a parallel data set: "true", "false" or "default"."""
    value: str | None = getattr(part, "_deterministic", None)
    return value


@uses("tf.distribute.DistributedDataset.element_spec._value_specs", because=_TOLD)
def spec_of_first_replica(spec: Any) -> Any:
    """The first replica's spec of a per-replica spec; any other spec is returned unchanged."""
    return spec._value_specs[0] if hasattr(spec, "_value_specs") else spec
