"""Weights of examples: given, or those of their classes."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.sample_weights import class_weights_of, weigh_batch, weigh_pipeline, weights_of

WEIGHTS = {0: 0.5, 2: 3.0}
LABELS = [0, 1, 2, 2]
EXPECTED = [0.5, 1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    "y",
    [
        np.array(LABELS),
        np.array(LABELS, "float32")[:, None],
        np.eye(3, dtype="float32")[LABELS],
    ],
    ids=["numbers", "a_column", "one_hot"],
)
def test_arrays_batches_and_pipelines_weigh_alike(y: Any) -> None:
    x = np.zeros((4, 1), "float32")
    np.testing.assert_array_equal(class_weights_of(y, WEIGHTS), EXPECTED)
    np.testing.assert_array_equal(weights_of(y, None, WEIGHTS), EXPECTED)
    np.testing.assert_array_equal(weigh_batch((x, y), WEIGHTS)[2], EXPECTED)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    [(_, _, weights)] = weigh_pipeline(data, WEIGHTS)
    np.testing.assert_array_equal(weights, EXPECTED)


def test_one_array_weighs_each_output() -> None:
    y, weights = {"a": np.zeros(4), "b": np.zeros(4)}, np.arange(4.0)
    given = weights_of(y, weights, None)
    assert given["a"] is weights
    assert given["b"] is weights
    each = {"a": weights, "b": weights + 1}
    assert weights_of(y, each, None) is each
    assert weights_of(np.zeros(4), None, None) is None


@pytest.mark.parametrize(
    ("y", "sample_weight", "class_weight", "told"),
    [
        (np.zeros(4), np.ones(4), WEIGHTS, "exclude each other"),
        (None, None, WEIGHTS, "needs `y`"),
        (np.array(["a", "b"]), None, WEIGHTS, "needs `y` to be numbers of classes"),
        ([np.zeros(4)] * 2, None, WEIGHTS, "single output"),
        ([np.zeros(4)] * 2, [np.ones(4)], None, "must have the structure of `y`"),
        ([np.zeros(4)] * 2, np.ones((4, 2)), None, "one array an output"),
    ],
)
def test_weights_that_do_not_go_with_the_targets(
    y: Any, sample_weight: Any, class_weight: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        weights_of(y, sample_weight, class_weight)


def test_batches_without_targets_are_told() -> None:
    x = np.zeros((4, 1), "float32")
    with pytest.warns(UserWarning, match="has no effect"):
        assert weigh_batch((x,), WEIGHTS) == (x,)
    data = tf.data.Dataset.from_tensor_slices(x).batch(4)
    with pytest.raises(ValueError, match="`x` yields no targets"):
        weigh_pipeline(data, WEIGHTS)


def test_weights_of_the_data_exclude_those_of_classes() -> None:
    batch = (np.zeros((4, 1)), np.zeros(4), np.ones(4))
    with pytest.raises(ValueError, match="exclude each other"):
        weigh_batch(batch, WEIGHTS)
    with pytest.raises(ValueError, match="exclude each other"):
        weigh_pipeline(tf.data.Dataset.from_tensors(batch), WEIGHTS)
