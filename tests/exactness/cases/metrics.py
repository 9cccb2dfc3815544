"""Metrics that are no mean over the examples."""

from typing import Any

import keras
import numpy as np
from keras import layers, metrics

from tests.exactness.cases.data import labels, numbers, positive
from tests.exactness.cases.models import sgd
from tests.exactness.cases.registry import case


@case
def metrics_of_two_classes(n: int) -> Any:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(1, "sigmoid")])
    compiled = [
        "accuracy",
        metrics.AUC(name="auc", num_thresholds=50),
        metrics.Precision(thresholds=[0.3, 0.6], name="precision"),
        metrics.Recall(name="recall"),
        metrics.BinaryIoU(name="iou"),
    ]
    weighted = [metrics.AUC(name="weighted_auc"), metrics.Precision(name="weighted_precision")]
    model.compile(sgd(), "binary_crossentropy", metrics=compiled, weighted_metrics=weighted)
    return model, (numbers(n, 4), labels(n, 2, 1)), {"sample_weight": positive(n)}


@case
def metrics_of_several_classes(n: int) -> Any:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "softmax")])
    compiled = [
        metrics.F1Score(average="macro", name="f1"),
        metrics.OneHotMeanIoU(3, name="iou"),
        metrics.TopKCategoricalAccuracy(2, name="top2"),
        metrics.CosineSimilarity(name="cosine"),
    ]
    model.compile(sgd(), "categorical_crossentropy", metrics=compiled)
    return model, (numbers(n, 4), np.eye(3, dtype="float32")[labels(n, 3)])
