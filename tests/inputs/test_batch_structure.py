"""The structure of batches, as flat tuples and as Keras' specs."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.batch_structure import (
    OfUnknownRank,
    Template,
    as_keras_tensor,
    is_missing,
    static_batch_size,
)

BATCH = ({"a": 1, "b": [2, None]}, None, 3)


def test_a_batch_becomes_a_flat_tuple_and_comes_back() -> None:
    template = Template(BATCH)
    assert template.flatten(BATCH) == (1, 2, 3)
    assert template.pack((4, 5, 6)) == ({"a": 4, "b": [5, None]}, None, 6)


def test_templates_of_one_structure_are_one_key() -> None:
    assert {Template(BATCH), Template(({"a": 9, "b": [8, None]}, None, 7))} == {Template(BATCH)}
    assert Template(BATCH) != Template(({"a": 1, "b": [2, 3]}, None, 3))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (({"a": 1}, None, 3), "must have the structure of the first one"),
        (({"a": None, "b": [2, 3]}, None, 3), "must have None where the first one has"),
    ],
)
def test_a_batch_of_another_structure_is_refused(other: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Template(BATCH).flatten(other)


def test_specs_become_those_of_keras() -> None:
    dense = as_keras_tensor(tf.TensorSpec((8, 3), tf.int32))
    assert (dense.shape, dense.dtype, dense.sparse) == ((None, 3), "int32", False)
    assert as_keras_tensor(tf.SparseTensorSpec((8, 3), tf.float32)).sparse
    ragged = as_keras_tensor(tf.RaggedTensorSpec((8, None), tf.float32, ragged_rank=1))
    assert ragged.shape == (None, None)
    assert ragged.ragged
    unknown = as_keras_tensor(tf.TensorSpec(None, tf.float16))
    assert isinstance(unknown, OfUnknownRank)
    assert (unknown.shape, unknown.dtype, unknown.sparse, unknown.ragged) == (
        *(None, "float16"),
        *(False, False),
    )


def test_a_missing_part_is_none_or_an_optional() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros(2)).map(lambda x: (x, None))
    assert [is_missing(spec) for spec in data.element_spec] == [False, True]
    assert is_missing(tf.OptionalSpec(tf.TensorSpec((), tf.float32)))


def test_the_batch_size_is_that_of_all_parts() -> None:
    eight, nine = tf.TensorSpec((8, 3)), tf.TensorSpec((9,))
    assert static_batch_size((eight, tf.TensorSpec((8,)))) == 8
    assert static_batch_size((eight, nine)) is None
    assert static_batch_size((eight, tf.TensorSpec((None,)))) is None
    assert static_batch_size(tf.TensorSpec(None)) is None
