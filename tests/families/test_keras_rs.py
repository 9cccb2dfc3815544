"""Models of KerasRS: crossed features, embeddings that it places, and rankings of lists."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

keras_rs = pytest.importorskip("keras_rs")

ITEMS, FEATURES, LIST = 20, 3, 4


def items(number: int) -> np.ndarray:
    """Different ones in each row: metrics of rankings draw lots where scores are equal."""
    lots = np.random.default_rng(0).uniform(size=(21, ITEMS))
    return np.argsort(lots)[:, :number].astype("int32")


def clicked(number: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (21, number)).astype("float32")


def crossing() -> keras.Model:
    """Crosses features as DCN does, and takes their dot products as DLRM does."""
    ids = keras.Input((FEATURES,), dtype="int32")
    embedded = layers.Embedding(ITEMS, 4)(ids)
    features = [embedded[:, index] for index in range(FEATURES)]
    flat = layers.Flatten()(embedded)
    crossed = keras_rs.layers.FeatureCross(projection_dim=3)(flat, flat)
    products = keras_rs.layers.DotInteraction()(features)
    rating = layers.Dense(1)(layers.Concatenate()([crossed, products]))
    model = keras.Model(ids, rating)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adagrad(0.1), loss, metrics=["mae"])
    return model


def ranking() -> keras.Model:
    """Scores the items of each list, so that those that were clicked come first."""
    ids = keras.Input((LIST,), dtype="int32")
    scores = layers.Dense(1)(layers.Embedding(ITEMS, 4)(ids))
    model = keras.Model(ids, ops.squeeze(scores, -1))
    ndcg = keras_rs.metrics.NDCG(k=3, name="ndcg")
    model.compile(keras.optimizers.SGD(0.3), keras_rs.losses.PairwiseHingeLoss(), metrics=[ndcg])
    return model


def test_crossed_features_are_those_of_keras(as_in_keras: Any) -> None:
    as_in_keras(crossing, items(FEATURES), clicked(1))


def test_a_ranking_of_lists_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(ranking, items(LIST), clicked(LIST))
