"""What tf.data pipelines are made of: no public method lists it, and their graphs name it anew."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.internals.private import uses

_PARTS = "no public method lists the parts of a pipeline"
_TOLD = "a part of a pipeline does not tell in public what it was made with"


@uses("tf.data.Dataset._inputs", because=_PARTS)
def inputs_of(part: tf.data.Dataset) -> list[tf.data.Dataset]:
    """The data sets that one reads from."""
    return list(part._inputs())


@uses("tf.data.TextLineDataset._impl", because=_PARTS)
def reader_of(part: tf.data.Dataset) -> tf.data.Dataset | None:
    """The pipeline that a reader of files is made of; None for any other data set."""
    inner = getattr(part, "_impl", None)
    return inner if isinstance(inner, tf.data.Dataset) else None


@uses("tf.data.Dataset._functions", because=_PARTS)
def functions_of(part: tf.data.Dataset) -> list[Any]:
    """The concrete functions that a data set calls for each of its elements."""
    return [function.function for function in part._functions()]


@uses("tf.data.Dataset.map._map_func._func", because=_TOLD)
def python_function_of(wrapper: Any) -> Any:
    """The function that was given to `map` and the like, which TensorFlow wraps; else None."""
    function = getattr(wrapper, "_func", None)
    return function if callable(function) else None


@uses("tf.data.Dataset.repeat._count", because=_TOLD)
def repeat_count(part: tf.data.Dataset) -> int:
    """How often a `repeat` reads its input; -1 for ever."""
    return int(part._count)


@uses("tf.data.Dataset.shuffle._reshuffle_each_iteration", because=_TOLD)
def reshuffles(part: tf.data.Dataset) -> bool:
    """Whether a `shuffle` has another order in each pass."""
    return part._reshuffle_each_iteration is not False


@uses("tf.data.Dataset.random._rerandomize", because=_TOLD)
def draws_other_numbers(part: tf.data.Dataset) -> bool:
    """Whether a `random` draws other numbers in each pass."""
    return bool(getattr(part, "_rerandomize", False))


@uses("tf.data.Dataset.shuffle._seed", "tf.data.Dataset.shuffle._seed2", because=_TOLD)
def seeds_of(part: tf.data.Dataset) -> tuple[Any, Any]:
    """The two seeds of a data set that draws; None where it has none."""
    return getattr(part, "_seed", None), getattr(part, "_seed2", None)


@uses("tf.data.Dataset.map._deterministic", because=_TOLD)
def is_told_deterministic(part: tf.data.Dataset) -> str | None:
    """What a parallel data set was told of its order: "true", "false" or "default"."""
    told: str | None = getattr(part, "_deterministic", None)
    return told


@uses("tf.distribute.DistributedDataset.element_spec._value_specs", because=_TOLD)
def spec_of_first_replica(spec: Any) -> Any:
    """The spec of the first replica's part of a per-replica spec; any other as it is."""
    return spec._value_specs[0] if hasattr(spec, "_value_specs") else spec
