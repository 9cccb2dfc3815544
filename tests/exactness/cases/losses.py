"""Losses of one and of several outputs, with weights and masks."""

from typing import Any

import keras
from keras import layers, losses, metrics, ops, optimizers

from tests.exactness.cases.data import labels, numbers, positive, regression, rng, words
from tests.exactness.cases.models import heads, regressor, sgd
from tests.exactness.cases.registry import case

REDUCED = {
    "mean_of_all": losses.MeanSquaredError(reduction="sum_over_batch_size"),
    "mean": losses.Huber(reduction="mean"),
    "sum": losses.MeanAbsoluteError(reduction="sum"),
    "weighted_mean": losses.LogCosh(reduction="mean_with_sample_weight"),
}
LOSS_WEIGHTS = {"mean_of_all": 1.0, "mean": 0.5, "sum": 0.05, "weighted_mean": 2.0}


@case
def plain(n: int) -> Any:
    return regressor(), regression(n)


@case
def every_reduction(n: int) -> Any:
    model = heads(REDUCED, loss_weights=LOSS_WEIGHTS)
    return model, (numbers(n, 4), {name: numbers(n, 2) + 1 for name in REDUCED})


@case
def every_reduction_with_sample_weights(n: int) -> Any:
    model = heads(REDUCED, loss_weights=LOSS_WEIGHTS, weighted_metrics={"sum": ["mae"]})
    targets = {name: numbers(n, 2) + 1 for name in REDUCED}
    return (
        model,
        (numbers(n, 4), targets),
        {"sample_weight": {name: positive(n) for name in REDUCED}},
    )


@case
def no_reduction(n: int) -> Any:
    model = regressor(optimizers.SGD(0.02), loss=losses.MeanSquaredError(reduction=None))
    return model, regression(n), {"sample_weight": positive(n)}


@case
def no_reduction_beside_a_mean(n: int) -> Any:
    """As on one device the mean counts once for each value of the other loss."""
    taken = {"values": losses.MeanSquaredError(reduction=None), "mean": losses.LogCosh()}
    model = heads(taken)
    model.optimizer.learning_rate = 0.01
    return model, (numbers(n, 4), {name: numbers(n, 2) + 1 for name in taken})


@case
def sample_weight_and_weighted_metrics(n: int) -> Any:
    model = regressor(weighted_metrics=["mse", metrics.RootMeanSquaredError(name="rmse")])
    return model, regression(n), {"sample_weight": positive(n)}


@case
def class_weight(n: int) -> Any:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "softmax")])
    model.compile(sgd(), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model, (numbers(n, 4), labels(n, 3)), {"class_weight": {0: 0.2, 2: 3.0}}


@case
def a_loss_function_of_the_user(n: int) -> Any:
    def loss(y_true: Any, y_pred: Any) -> Any:
        return ops.max(ops.square(y_true - y_pred), axis=-1)

    return regressor(loss=loss, metrics=[loss]), regression(n)


@case
def losses_over_the_whole_batch(n: int) -> Any:
    taken = {
        "dice": losses.Dice(),
        "by_class": losses.Dice(axis=0),
        "added": losses.Tversky(alpha=0.3, beta=0.7, reduction="sum"),
        "by_example": losses.Tversky(axis=1, alpha=0.2),
    }
    x = layers.Input((4,))
    model = keras.Model(x, {name: layers.Dense(3, "sigmoid", name=name)(x) for name in taken})
    model.compile(sgd(), loss=taken, metrics={"dice": ["mae"]})
    return model, (numbers(n, 4), {name: labels(n, 2, 3) for name in taken})


@case
def embedding_with_mask(n: int) -> Any:
    layer = layers.Embedding(9, 3, mask_zero=True)
    model = keras.Sequential([layers.Input((5,)), layer, layers.LSTM(4), layers.Dense(1)])
    model.compile(sgd(), "mse")
    return model, (words(n), numbers(n, 1))


@case
def masked_predictions(n: int) -> Any:
    sequence = [layers.Embedding(9, 3, mask_zero=True), layers.Dense(3)]
    model = keras.Sequential([layers.Input((5,)), *sequence])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(sgd(), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model, (words(n), labels(n, 3, 5)), {"sample_weight": positive(n, 5)}


@case
def masked_predictions_with_temporal_weights(n: int) -> Any:
    x = numbers(n, 4, 3)
    x[rng().random((n, 4)) < 0.4] = 0.0
    model = keras.Sequential([layers.Input((4, 3)), layers.Masking(), layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    return model, (x, numbers(n, 4, 2)), {"sample_weight": positive(n, 4)}


@case
def ignore_class(n: int) -> Any:
    targets = labels(n, 4, 6) - 1
    model = keras.Sequential([layers.Input((6, 2)), layers.Dense(3)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model.compile(sgd(), loss)
    return model, (numbers(n, 6, 2), targets)


@case
def several_outputs(n: int) -> Any:
    x = layers.Input((4,))
    shared = layers.Dense(5, "tanh")(x)
    outputs = [layers.Dense(2, name="a")(shared), layers.Dense(1, "sigmoid", name="b")(shared)]
    model = keras.Model(x, outputs)
    model.compile(
        sgd(),
        loss=["mse", "binary_crossentropy"],
        loss_weights=[0.3, 2.0],
        metrics=[["mae"], ["accuracy"]],
    )
    return model, (numbers(n, 4), [numbers(n, 2), labels(n, 2, 1)])
