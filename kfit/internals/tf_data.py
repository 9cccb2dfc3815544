"""The data sets that a tf.data pipeline consists of, and the arguments they were made with.

In `range(9).shuffle(9).batch(3)`, for example, these are three data sets, each of which reads the
one before. No public method lists them. The pipeline's graph cannot be used instead, because its
names are new each time.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.internals.private import imported, uses

_PARTS = "no public method lists the parts of a pipeline"
_TOLD = "a part of a pipeline does not tell in public what it was made with"


@uses("tf.data.Dataset._inputs", because=_PARTS)
def inputs_of(part: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the data sets that a data set of a pipeline directly reads from."""
    return list(part._inputs())


@uses("tf.data.TextLineDataset._impl", because=_PARTS)
def reader_of(part: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns the inner pipeline of a data set that reads files, such as `TextLineDataset`.

    None for any other data set.
    """
    inner = getattr(part, "_impl", None)
    return inner if isinstance(inner, tf.data.Dataset) else None


@uses("tf.data.Dataset._functions", because=_PARTS)
def functions_of(part: tf.data.Dataset) -> list[Any]:
    """Returns the concrete functions that a data set calls for each element.

    An example is the function that was passed to `map`.
    """
    return [function.function for function in part._functions()]


@uses("tf.data.Dataset.map._map_func._func", because=_TOLD)
def python_function_of(wrapper: Any) -> Any:
    """Returns the Python function that was passed to `map`, for example; None if it is unknown.

    Args:
        wrapper: TensorFlow's wrapper of the function, which is an attribute of the data set.
    """
    function = getattr(wrapper, "_func", None)
    return function if callable(function) else None


@uses("tf.data.Dataset.repeat._count", because=_TOLD)
def repeat_count(part: tf.data.Dataset) -> int:
    """Returns how often a `repeat` reads its input; -1 means without end."""
    return int(part._count)


@uses("tf.data.Dataset.shuffle._reshuffle_each_iteration", because=_TOLD)
def reshuffles(part: tf.data.Dataset) -> bool:
    """Returns whether a `shuffle` uses a different order each time the data is read."""
    return part._reshuffle_each_iteration is not False


@uses("tf.data.Dataset.random._rerandomize", because=_TOLD)
def draws_other_numbers(part: tf.data.Dataset) -> bool:
    """Returns whether a `tf.data.Dataset.random` draws other numbers each time it is read.

    It does if it was made with `rerandomize_each_iteration=True`. For a data set of another kind,
    the result is False.
    """
    return bool(getattr(part, "_rerandomize", False))


@uses("tf.data.Dataset.shuffle._seed", "tf.data.Dataset.shuffle._seed2", because=_TOLD)
def seeds_of(part: tf.data.Dataset) -> tuple[Any, Any]:
    """Returns the two seeds of a data set that uses random numbers; each may be None.

    TensorFlow computes both from the global seed and the data set's argument `seed`.
    """
    return getattr(part, "_seed", None), getattr(part, "_seed2", None)


@uses("tf.data.Dataset.map._deterministic", because=_TOLD)
def is_told_deterministic(part: tf.data.Dataset) -> str | None:
    """Returns the argument `deterministic` with which a data set, such as a `map`, was made.

    Returns:
        "true", "false" or, if the argument was not given, "default". None for a data set whose
        Python object does not keep the argument, such as a `map` without `num_parallel_calls`.
    """
    value: str | None = getattr(part, "_deterministic", None)
    return value


@uses("tf.distribute.DistributedDataset.element_spec._value_specs", because=_TOLD)
def spec_of_first_replica(spec: Any) -> Any:
    """Returns the first replica's spec, given an element spec of a distributed data set.

    Any other spec is returned unchanged.
    """
    return spec._value_specs[0] if hasattr(spec, "_value_specs") else spec


NoneTensorSpec: Any = imported(
    "tensorflow.python.framework.none_tensor.NoneTensorSpec",
    because="the spec of a None in a data set's elements has no public name",
)


@uses("tf.data.Dataset.batch._batch_size", because=_TOLD)
def batch_size_of(part: tf.data.Dataset) -> int | None:
    """Returns the batch size of a `batch` or `padded_batch`; None for any other data set."""
    size = getattr(part, "_batch_size", None)
    constant = None if size is None else tf.get_static_value(size)
    return None if constant is None else int(constant)
