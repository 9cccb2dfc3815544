"""Turns every kind of data that `fit` accepts into global batches, in a reproducible order.

A global batch has the examples of one training step over all replicas.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from math import isnan
from numbers import Real
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.dataset_sharding import is_distributed
from kfit.distribute.strategy import Strategy
from kfit.inputs.arrays import ArrayBatches, common_length, is_array, len_of
from kfit.inputs.batches import Batches, BatchLayout, Segment
from kfit.inputs.cursor import Cursor
from kfit.inputs.datasets import DatasetBatches
from kfit.inputs.generator import GeneratorBatches
from kfit.inputs.loader import LoaderBatches
from kfit.inputs.py_dataset import PyDatasetBatches, ReadBatches
from kfit.inputs.read_by_rows import columns_as_arrays
from kfit.inputs.sample_weights import weights_of
from kfit.inputs.stored import Part, is_stored

__all__ = [
    "BatchLayout",
    "Batches",
    "Cursor",
    "ReadBatches",
    "Segment",
    "as_batches",
    "columns_as_arrays",
    "has_arrays",
    "kind_of",
    "require_arrays",
    "split_validation",
]


def kind_of(x: Any) -> str:
    """Returns what a message calls the data: the name of its class that users know."""
    return "tf.data.Dataset" if isinstance(x, tf.data.Dataset) else type(x).__name__


def as_batches(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    strategy: Strategy,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    seed: int = 0,
    class_weight: Mapping[int, float] | None = None,
    keeps_floats: bool = False,
) -> Batches:
    """Turns the data that `fit`, `evaluate` or `predict` was given into global batches.

    A global batch has the examples of one step over all replicas.

    Args:
        x: Arrays in any structure, a `tf.data.Dataset` batched to the global batch size, a
            distributed data set, a function from a `tf.distribute.InputContext` to a data set, a
            `keras.utils.PyDataset`, a generator, or a torch or grain loader.
        y: Targets, if `x` is arrays; other data yield the targets with `x`.
        sample_weight: Sample weights, if `x` is arrays.
        strategy: kfit's wrapper of the `tf.distribute` strategy, whose replicas share each batch.
        batch_size: The global batch size, if `x` is arrays. By default it is 32 or, with `steps`,
            such that an epoch reads all the data once.
        steps: The number of steps in an epoch, or None for all the data.
        shuffle: Whether to shuffle arrays, and the batches of a PyDataset; "batch" shuffles arrays
            within batches only.
        seed: The seed from which the shuffled order is computed.
        class_weight: The weight of each class, as for `fit`.
        keeps_floats: Whether floats in arrays keep their dtype; otherwise they get Keras' `floatx`.

    Raises:
        ValueError: If the kind of data is not known, or an argument can't be used with it.
    """
    x, y, sample_weight = columns_as_arrays((x, y, sample_weight))
    if _are_arrays((x, y, sample_weight)):
        sample_weight = weights_of(y, sample_weight, class_weight)
        return ArrayBatches(
            (x, y, sample_weight),
            batch_size=batch_size,
            strategy=strategy,
            shuffle=shuffle,  # type: ignore[arg-type]
            seed=seed,
            steps_per_epoch=steps,
            keeps_floats=keeps_floats,
        )
    if callable(x):
        _check_function(x)
    kind = kind_of(x)
    if isinstance(x, (list, tuple, dict)) or (x is not None and is_array(x)):
        raise _not_arrays(x, y, sample_weight)
    is_pipeline = isinstance(x, tf.data.Dataset) or is_distributed(x) or _is_dataset_function(x)
    is_generator = isinstance(x, (types.GeneratorType, Iterator))
    is_known = is_pipeline or is_generator or isinstance(x, keras.utils.PyDataset) or _is_loader(x)
    if not is_known:
        raise ValueError(
            "`x` must be arrays, a tf.data.Dataset, a keras.utils.PyDataset, a generator, or a "
            f"torch or grain loader.{_advice(x)} Received: {x!r} (of type {type(x)})"
        )
    for argument, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"`{argument}` goes with arrays only: a {kind} yields it with `x`, as "
                "(x, y) or (x, y, sample_weight)."
            )
    if is_pipeline:
        return DatasetBatches(
            x, strategy=strategy, steps_per_epoch=steps, class_weight=class_weight
        )
    if isinstance(x, keras.utils.PyDataset):
        return PyDatasetBatches(
            x,
            strategy=strategy,
            shuffle=bool(shuffle),
            seed=seed,
            steps_per_epoch=steps,
            class_weight=class_weight,
        )
    if class_weight is not None:
        raise ValueError(
            f"`class_weight` does not go with a {kind}: yield (x, y, sample_weight) instead."
        )
    made = GeneratorBatches if is_generator else LoaderBatches
    return made(x, strategy=strategy, steps=steps)


def has_arrays(x: Any, y: Any = None, sample_weight: Any = None) -> bool:
    """Returns whether the data is given as arrays, or as nested lists, tuples and dicts of arrays.

    `y` and `sample_weight` may be None, but not `x`.
    """
    return _are_arrays((x, y, sample_weight))


def require_arrays(x: Any, y: Any = None, sample_weight: Any = None) -> None:
    """Raises an error unless the data is given as arrays, as `train_on_batch` and others require.

    Raises:
        ValueError: If a value is not an array; the message names the value.
    """
    if not _are_arrays((x, y, sample_weight)):
        raise _not_arrays(x, y, sample_weight)


def split_validation(
    data: tuple[Any, Any, Any], validation_split: Any
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Splits arrays into the first part for training and the last part for validation.

    Args:
        data: `(x, y, sample_weight)`.
        validation_split: The fraction of the examples to validate on, between 0 and 1.

    Returns:
        The data for training and the data for validation, each as `(x, y, sample_weight)`.

    Raises:
        ValueError: If `data` is not made of arrays of equal length, `validation_split` is not a
            number, or one of the parts would be empty.
    """
    data = columns_as_arrays(data)
    if not _are_arrays(data):
        raise ValueError(
            "`validation_split` goes with arrays only; pass `validation_data` instead. "
            f"Received: x={type(data[0]).__name__}"
        )
    if not isinstance(validation_split, Real) or isnan(validation_split):
        raise ValueError(
            "`validation_split` must be a number between 0 and 1, a fraction of the examples. "
            f"Received: {validation_split!r}"
        )
    examples = common_length(*data)
    split = int(examples * (1.0 - float(validation_split)))
    if not 0 < split < examples:
        raise ValueError(
            f"`validation_split={validation_split}` of {examples} examples leaves no example to "
            "train or to validate on."
        )

    def part(rows: slice) -> Any:
        return keras.tree.map_structure(lambda a: None if a is None else _take(a, rows), data)

    return part(slice(0, split)), part(slice(split, None))


def _take(array: Any, rows: slice) -> Any:
    if isinstance(array, tf.SparseTensor):
        start, stop, _ = rows.indices(len_of(array))
        begin = [start, *([0] * (array.shape.rank - 1))]
        return tf.sparse.slice(array, begin, [stop - start, *array.shape[1:]])
    if hasattr(array, "iloc"):
        return array.iloc[rows]
    if is_stored(array):
        return Part(array, rows)
    if hasattr(array, "tocsr"):
        array = array.tocsr()
    return array[rows]


def _not_arrays(x: Any, y: Any, sample_weight: Any) -> ValueError:
    """Creates an error whose message names the first value that should be an array but is not."""
    parts = {"x": x, "y": y, "sample_weight": sample_weight}
    name, leaf = next(
        (name, leaf)
        for name, part in parts.items()
        for leaf in keras.tree.flatten(part)
        if not is_array(leaf) or (name == "x" and part is None)
    )
    part, must = parts[name], f"`{name}` must be an array, or a structure of arrays"
    if isinstance(part, list) and isinstance(part[0], (list, tuple)):
        return ValueError(f"{must}. Received: a nested list; pass np.array({name})")
    return ValueError(
        f"{must}; a list of numbers becomes one by np.array({name}). Received: a "
        f"{type(part).__name__} that holds {leaf!r}"
    )


def _are_arrays(data: Any) -> bool:
    return data[0] is not None and all(is_array(leaf) for leaf in keras.tree.flatten(data))


def _advice(x: Any) -> str:
    """Returns advice for an error message if `x` is a Hugging Face data set, otherwise ""."""
    if type(x).__module__.split(".")[0] != "datasets":
        return ""
    return (
        ' Of a Hugging Face data set pass columns, as in `fit(data["x"], data["y"])`, or the '
        "pipeline of its `to_tf_dataset(columns=..., label_cols=..., batch_size=...)`."
    )


def _check_function(x: Any) -> None:
    """Checks that a function or class can be a function that makes a data set.

    Raises:
        ValueError: If it is one that was probably meant to be called.
    """
    if isinstance(x, type):
        raise ValueError(
            f"`x` is the class {x.__name__}, where its data are expected: call it to make an "
            f"object, {x.__name__}(...)"
        )
    name = getattr(x, "__name__", "x")
    if inspect.isgeneratorfunction(x):
        raise ValueError(f"`x` is a function, where a generator is expected: call it, {name}()")
    if not (inspect.isfunction(x) or inspect.ismethod(x)):
        return
    try:
        inspect.signature(x).bind(None)
    except TypeError:
        raise ValueError(
            "`x` is a function, which must take one argument, a tf.distribute.InputContext, and "
            f"return a data set. Received: {name}{inspect.signature(x)}. To pass what it returns, "
            f"call it: {name}()"
        ) from None


def _is_dataset_function(x: Any) -> bool:
    return callable(x) and not hasattr(x, "__iter__") and not hasattr(x, "__getitem__")


def _is_loader(x: Any) -> bool:
    names = {f"{cls.__module__.split('.')[0]}.{cls.__name__}" for cls in type(x).__mro__}
    known = {"torch.DataLoader", "grain.MapDataset", "grain.IterDataset", "grain.DataLoader"}
    says_its_state = callable(getattr(x, "state_dict", None)) and hasattr(type(x), "__iter__")
    return bool(names & known) or says_its_state
