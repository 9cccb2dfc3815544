"""One batch of the shapes of a training's batches, on which the parts of a step are measured."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from kfit.inputs import Batches, BatchLayout, Segment
from kfit.inputs.arrays import ArrayBatches
from kfit.inputs.batch_structure import Template


def first_batch(batches: Batches, size: int) -> Segment | None:
    """Returns a segment of one step, without reading any of the data but arrays.

    Reading a generator or a pipeline would change what the next `fit` reads. So unless the data is
    arrays, the batch has the structure, shapes and dtypes of the data, and its values are 0.

    Args:
        batches: The training data.
        size: The number of examples of the batch.

    Returns:
        The segment, whose batch has the structure that `train_step` gets; None if the shapes of
        the batches are not fixed, or a part of them is no array of numbers.
    """
    if isinstance(batches, ArrayBatches):
        return batches.first(size)
    spec = batches.spec
    if not all(_is_fixed(leaf) for leaf in keras.tree.flatten(spec) if leaf is not None):
        return None
    template = Template(spec)
    zeros = tuple(_zeros(leaf, size) for leaf in template.flatten(spec))
    return Segment(BatchLayout(size, template=template), 1, element=zeros)


def _zeros(spec: Any, size: int) -> tf.Tensor:
    return tf.zeros((size, *spec.shape[1:]), keras.backend.standardize_dtype(spec.dtype))


def _is_fixed(leaf: Any) -> bool:
    is_dense = not getattr(leaf, "sparse", False) and not getattr(leaf, "ragged", False)
    has_shape = leaf.shape is not None and None not in leaf.shape[1:]
    return is_dense and has_shape and leaf.dtype != "string"
