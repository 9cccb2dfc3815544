"""What a loop over steps begins with has the form of what each step keeps."""

from typing import Any

import pytest
import tensorflow as tf

from kfit.steps.outputs import blank

SPECS: dict[str, Any] = {
    "number": tf.TensorSpec([], tf.int64),
    "vector": tf.TensorSpec([3], tf.float32),
    "open_rows": tf.TensorSpec([None, 3], tf.float32),
    "unknown_rank": tf.TensorSpec(None, tf.float32),
    "text": tf.TensorSpec([], tf.string),
    "ragged": tf.RaggedTensorSpec([None, None], tf.float32),
    "sparse": tf.SparseTensorSpec([None, 4], tf.int32),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_blank_value_may_be_followed_by_any_of_its_spec(name: str) -> None:
    @tf.function
    def made() -> Any:
        value = blank(SPECS[name])
        assert SPECS[name].is_compatible_with(value)
        # A loop refuses a value whose static shape is narrower than the one that follows.
        assert tf.type_spec_from_value(value).shape.rank == SPECS[name].shape.rank
        if name == "open_rows":
            assert value.shape.as_list() == [None, 3]
        return value

    made()
