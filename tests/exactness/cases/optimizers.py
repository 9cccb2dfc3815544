"""What optimizers do beside a plain step."""

from typing import Any

import keras
from keras import layers, optimizers

from tests.exactness.cases.data import regression
from tests.exactness.cases.models import regressor, sgd
from tests.exactness.cases.registry import case


@case
def clipnorm(n: int) -> Any:
    return regressor(sgd(clipnorm=0.1)), regression(n)


@case
def global_clipnorm(n: int) -> Any:
    return regressor(sgd(global_clipnorm=0.1)), regression(n)


@case
def clipvalue(n: int) -> Any:
    return regressor(sgd(clipvalue=0.05)), regression(n)


@case
def gradient_accumulation(n: int) -> Any:
    return regressor(
        optimizers.Adam(0.01, epsilon=1e-2, gradient_accumulation_steps=3)
    ), regression(n)


@case
def accumulation_clipping_decay_and_averages(n: int) -> Any:
    optimizer = sgd(
        momentum=0.9,
        nesterov=True,
        gradient_accumulation_steps=2,
        global_clipnorm=0.2,
        weight_decay=0.01,
        use_ema=True,
        ema_momentum=0.8,
        ema_overwrite_frequency=2,
    )
    return regressor(optimizer), regression(n)


@case
def weight_decay(n: int) -> Any:
    return regressor(optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-2)), regression(n)


@case
def averages_at_the_end(n: int) -> Any:
    return regressor(sgd(use_ema=True, ema_momentum=0.5)), regression(n)


@case
def averages_every_two_steps(n: int) -> Any:
    optimizer = sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    return regressor(optimizer), regression(n)


@case
def learning_rate_schedule(n: int) -> Any:
    schedule = optimizers.schedules.ExponentialDecay(0.3, 2, 0.7)
    return regressor(optimizers.SGD(schedule, momentum=0.5)), regression(n)


@case
def constraints(n: int) -> Any:
    first = layers.Dense(
        5, kernel_constraint=keras.constraints.MaxNorm(0.5), bias_constraint="non_neg"
    )
    model = keras.Sequential([layers.Input((4,)), first, layers.Dense(2)])
    model.compile(sgd(), "mse")
    return model, regression(n)


@case
def overflow_on_one_replica(n: int) -> Any:
    x, y = regression(n)
    y[3] = 3e38  # the step that sees this example is skipped, and the loss scale halved
    return regressor(optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)), (x, y)


@case
def two_optimizers_in_one(n: int) -> Any:
    model = regressor()
    of_first = {id(v) for v in model.layers[0].trainable_variables}
    chosen = lambda variable: optimizers_of[id(variable) in of_first]  # noqa: E731
    # Adam corrects its averages by the number of steps, which only it counts.
    optimizers_of = {True: sgd(clipnorm=0.1), False: optimizers.Adam(0.01, epsilon=1e-2)}
    model.compile(optimizers.MultiOptimizer(chosen), "mse")
    return model, regression(n)
