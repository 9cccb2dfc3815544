"""The structure of batches: nested tensors and Nones, as flat tuples and as Keras' specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kfit.internals.tf_data import NoneTensorSpec


class Template:
    """The structure of batches, to convert a batch to a flat tuple of tensors and back.

    A batch of a model may contain lists and None. tf.data converts lists to tensors and does not
    accept None, so its elements are flat tuples.

    Args:
        structure: A batch with the wanted structure, from which only the structure is kept.
    """

    def __init__(self, structure: Any) -> None:
        # It must not hold the data: a template is part of the key of a traced graph, and stays.
        self._structure = keras.tree.map_structure(
            lambda leaf: None if leaf is None else True, structure
        )
        self._present = tuple(leaf is not None for leaf in keras.tree.flatten(structure))
        self._key = (repr(self._structure),)

    def flatten(self, structure: Any) -> tuple[Any, ...]:
        """Converts a batch to a flat tuple of its tensors, without its Nones.

        Args:
            structure: The batch.

        Raises:
            ValueError: If the batch has another structure than the template.
        """
        try:
            keras.tree.assert_same_structure(self._structure, structure)
        except ValueError as error:
            raise ValueError(
                f"All batches must have the structure of the first one. Received another: {error}"
            ) from error
        leaves = keras.tree.flatten(structure)
        if tuple(leaf is not None for leaf in leaves) != self._present:
            kinds = keras.tree.map_structure(
                lambda leaf: None if leaf is None else type(leaf).__name__, structure
            )
            raise ValueError(
                "All batches must have None where the first one has, and only there. Received "
                f"another: {kinds}"
            )
        return tuple(leaf for leaf in leaves if leaf is not None)

    def pack(self, flat: Any) -> Any:
        """Converts a flat tuple of tensors back to a batch, with its Nones."""
        rest = iter(flat)
        leaves = [next(rest) if present else None for present in self._present]
        return keras.tree.pack_sequence_as(self._structure, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(frozen=True)
class OfUnknownRank:
    """Stands for a tensor of unknown rank in the spec of a batch, where no KerasTensor can.

    It has the attributes of a `keras.KerasTensor` that kfit reads.

    Attributes:
        spec: The `tf.TypeSpec` of the tensor.
    """

    spec: Any
    shape: None = None

    @property
    def dtype(self) -> str:
        """The name of the tensor's dtype."""
        return str(keras.backend.standardize_dtype(self.spec.dtype))

    @property
    def sparse(self) -> bool:
        """Whether the tensor is a `tf.SparseTensor`."""
        return isinstance(self.spec, tf.SparseTensorSpec)

    @property
    def ragged(self) -> bool:
        """Whether the tensor is a `tf.RaggedTensor`."""
        return isinstance(self.spec, tf.RaggedTensorSpec)


def is_missing(spec: Any) -> bool:
    """Returns whether a `tf.TypeSpec` stands for a part that is None, such as missing weights.

    In data sets that Keras makes, a missing part is an empty `tf.experimental.Optional`.
    """
    return isinstance(spec, (tf.OptionalSpec, NoneTensorSpec))


def as_keras_tensor(spec: Any) -> Any:
    """Converts a `tf.TypeSpec` to a `keras.KerasTensor` whose batch dimension is None.

    If the rank is not known, the result is an `OfUnknownRank`.
    """
    if spec.shape.rank is None:
        return OfUnknownRank(spec)
    shape = (None, *spec.shape[1:])
    dtype = keras.backend.standardize_dtype(spec.dtype)
    return keras.KerasTensor(
        shape,
        dtype,
        sparse=isinstance(spec, tf.SparseTensorSpec),
        **(
            {"ragged": True, "ragged_rank": spec.ragged_rank, "row_splits_dtype": "int64"}
            if isinstance(spec, tf.RaggedTensorSpec)
            else {}
        ),
    )


def static_batch_size(spec: Any) -> int | None:
    """Returns the batch size in the element spec of a data set, or None if it is not fixed."""
    sizes = {
        leaf.shape[0] if leaf.shape.rank else None
        for leaf in tf.nest.flatten(spec)
        if isinstance(leaf, (tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec))
    }
    return sizes.pop() if len(sizes) == 1 else None
