"""Single examples where batches are needed: the error says how to make batches of them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.training.batches_only import require_batches

X, Y = np.ones((8, 4), "float32"), np.arange(8) % 3


def classifier() -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


UNBATCHED: dict[str, Callable[[kfit.Trainer], Any]] = {
    "fit": lambda trainer: trainer.fit(tf.data.Dataset.from_tensor_slices((X, Y)), verbose=0),
    "evaluate": lambda trainer: trainer.evaluate(
        tf.data.Dataset.from_tensor_slices((X, Y)), verbose=0
    ),
    "predict": lambda trainer: trainer.predict(X[0], verbose=0),
    "predict_on_batch": lambda trainer: trainer.predict_on_batch(X[0]),
}


@pytest.mark.parametrize("name", UNBATCHED)
def test_examples_without_a_batch_are_refused_by_name(name: str) -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    told = r"^`x` holds single examples, .* \(None, 4\)\. .*\.batch\(batch_size\)"
    with pytest.raises(ValueError, match=told):
        UNBATCHED[name](trainer)


def test_an_input_of_one_number_needs_no_dimension_of_its_own() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    assert kfit.Trainer(model, "one_device").predict(X[:, 0], verbose=0).shape == (8, 1)


def test_several_inputs_and_unknown_dimensions() -> None:
    a, b = keras.Input((None,), name="a"), keras.Input((2, 3), name="b")
    model = keras.Model([a, b], keras.layers.Flatten()(b))
    spec = keras.KerasTensor((None, 5)), keras.KerasTensor((2, 3))
    with pytest.raises(
        ValueError, match=r"^`x\[1\]` holds .* 'b' needs batches, .* \(None, 2, 3\)"
    ):
        require_batches(model, (spec,))
    require_batches(model, ((spec[0], keras.KerasTensor((None, 2, 3))),))
