"""Batches of a known form are made from what is known; other batches are looked at anew."""

from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf

import kfit
from kfit.training.one_batch import OneBatch, OneBatchMaker

X = np.arange(12, dtype="float64").reshape(6, 2)
Y = np.arange(6)
WEIGHTS = np.ones(6)


def values(batch: OneBatch) -> Any:
    parts = batch.segment.element
    sparse = [tf.sparse.to_dense(p) if isinstance(p, tf.SparseTensor) else p for p in parts]
    return [np.asarray(part) for part in sparse]


def is_like(one: OneBatch, other: OneBatch) -> bool:
    """Whether two batches have the same structure, dtypes, inner shapes and values."""
    specs = [
        keras.tree.map_structure(lambda spec: (spec.shape, spec.dtype), each.spec)
        for each in (one, other)
    ]
    layouts = one.segment.layout == other.segment.layout
    a, b = values(one), values(other)
    same = all(p.dtype == q.dtype and np.array_equal(p, q) for p, q in zip(a, b, strict=True))
    return specs[0] == specs[1] and layouts and same


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        (X, None, None),
        (X, Y, None),
        (X, Y, WEIGHTS),
        (X.astype("float16"), Y.astype("uint8"), None),
        (X > 3, Y, None),
        (X.T.copy().T, Y, None),
    ],
)
def test_a_second_batch_of_a_form_is_made_as_the_first(data: Any, trains: bool) -> None:
    maker = OneBatchMaker()
    first = maker.make(data, trains=trains)
    other = tuple(None if part is None else part[2:] for part in data)
    assert is_like(maker.make(data, trains=trains), first)
    assert is_like(maker.make(other, trains=trains), OneBatchMaker().make(other, trains=trains))


def test_other_data_are_batches_as_well() -> None:
    for data in (
        ([X, X], Y, None),
        ({"a": X}, {"b": Y}, None),
        (tf.constant(X), Y, None),
        (np.array([["a"], ["b"]]), Y[:2], None),
        (X.astype(">f4"), Y, None),
        (scipy.sparse.csr_matrix(X), Y, None),
        (pd.DataFrame(X), Y, None),
    ):
        maker = OneBatchMaker()
        first = maker.make(data, trains=True)
        assert is_like(maker.make(data, trains=True), first)


def test_a_known_form_does_not_let_wrong_data_pass() -> None:
    maker = OneBatchMaker()
    maker.make((X, Y, None), trains=True)
    with pytest.raises(ValueError, match="ambiguous"):
        maker.make((X, Y[1:], None), trains=True)
    with pytest.raises(ValueError, match="at least one example"):
        maker.make((X[:0], Y[:0], None), trains=True)
    with pytest.raises(ValueError, match="`y` must be an array"):
        maker.make((X, [1, 2], None), trains=True)
    with pytest.raises(ValueError, match="`class_weight`"):
        maker.make((X, Y, WEIGHTS), {0: 1.0}, trains=True)


def test_class_weights_are_computed_for_each_batch() -> None:
    maker = OneBatchMaker()
    maker.make((X, Y, None), trains=True)
    batch = maker.make((X, Y, None), {0: 3.0}, trains=True)
    assert values(batch)[2].tolist() == [3.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_floats_keep_their_dtype_as_in_keras() -> None:
    maker = OneBatchMaker()
    sparse = tf.sparse.from_dense(X)
    ragged = tf.RaggedTensor.from_tensor(X)
    for x in (X, X, tf.constant(X), pd.DataFrame(X), scipy.sparse.csr_matrix(X), sparse, ragged):
        batch = maker.make((x, Y, None), trains=True)
        (got, _) = batch.segment.element
        assert got.dtype == "float64"
        assert keras.tree.flatten(batch.spec)[0].dtype == "float64"


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_float32_cannot_tell_apart_reaches_the_model(tiny: Any, replicas: int) -> None:
    class Hours(keras.Model):
        def call(self, seconds: Any) -> Any:
            return tf.cast(tf.math.floormod(seconds / 3600, 24.0), "float32")

    model = Hours(autocast=False)
    seconds = 1.7e9 + 3600.0 * np.arange(6)[:, None]
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    expected = (seconds / 3600) % 24
    np.testing.assert_allclose(trainer.predict_on_batch(seconds), expected, rtol=1e-6)
