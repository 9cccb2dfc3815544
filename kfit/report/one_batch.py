"""One batch of the shapes of a training's batches, on which the parts of a step are measured."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kfit.inputs import Batches
from kfit.inputs.arrays import ArrayBatches

Triple = tuple[Any, Any, Any]


def first_rows(batches: Batches, data: Triple, size: int) -> Triple | None:
    """Returns a batch as arrays, without reading any of the data but arrays.

    Reading a generator or a pipeline would change what the next `fit` reads. So unless the data is
    arrays, the batch has the shapes and dtypes of the data, and its values are 0.

    Args:
        batches: The training data.
        data: `x`, `y` and `sample_weight`, as passed to `fit`.
        size: The number of examples of the batch.

    Returns:
        `x`, `y` and `sample_weight`; None if the shapes of the batches are not fixed, or a part of
        them is no array of numbers.
    """
    if isinstance(batches, ArrayBatches):
        x, y, weights = (_first(part, size) for part in data)
        return x, y, weights
    spec = batches.spec
    if not all(_is_fixed(leaf) for leaf in keras.tree.flatten(spec) if leaf is not None):
        return None

    def zeros(leaf: Any) -> Any:
        if leaf is None:
            return None
        return np.zeros((size, *leaf.shape[1:]), keras.backend.standardize_dtype(leaf.dtype))

    x, y, weights = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(zeros, spec))
    return x, y, weights


def _first(data: Any, size: int) -> Any:
    def rows(array: Any) -> Any:
        return None if array is None else array[:size]

    return keras.tree.map_structure(rows, data)


def _is_fixed(leaf: Any) -> bool:
    is_dense = not getattr(leaf, "sparse", False) and not getattr(leaf, "ragged", False)
    return is_dense and None not in leaf.shape[1:] and leaf.dtype != "string"
