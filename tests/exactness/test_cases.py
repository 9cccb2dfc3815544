"""C1: training on several replicas computes what Keras computes on one device.

Each case makes a compiled model and its data. Keras' own `fit` trains one copy on one device, kfit
another on several replicas, and the weights and the history must agree. The sizes leave a last
batch that is full, that is shared unevenly, or that leaves some replicas without any example.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.exactness.cases import BATCH_SIZE, CASES
from tests.exactness.cases.comparison import assert_equal_logs

ALL = [(examples, replicas) for examples in BATCH_SIZE for replicas in (2, 3, 4)]
WITH_EMPTY_REPLICA = [(101, 2), (7, 3), (101, 2), (101, 3), (101, 2), (7, 4), (101, 2), (101, 4)]
"""What the cases take in turn; more replicas take longer to trace."""

UNEVEN = {"unscaled_step_where_replicas_meet": (101, 3)}
"""Cases that could not fail where all replicas with examples have as many."""

DAILY = {
    "sample_weight_and_weighted_metrics",
    "clipnorm",
    "sparse_gradients",
}
"""Cases that are trained every day: of each topic one or two that take little time.

`tests/families` has models with steps of their own, and with synchronized statistics.
"""
PLAIN = [("plain", 7, 2)]

WITHOUT = [combination for combination in ALL if combination not in WITH_EMPTY_REPLICA]


def _chosen() -> list[Any]:
    """Each case where replicas stay empty, taken in turn; the plain one on all the rest.

    Every third case is fed by a tf.data pipeline, whose batches have no size while they are
    traced, the others by arrays, whose batches have one.
    """
    chosen = [("plain", *combination, False) for combination in WITHOUT]
    for turn, name in enumerate(CASES):
        combination = UNEVEN.get(name, WITH_EMPTY_REPLICA[turn % len(WITH_EMPTY_REPLICA)])
        chosen.append((name, *combination, turn % 3 == 2))
    return [
        pytest.param(
            *each,
            id=f"{each[0]}-{each[1]}_on_{each[2]}",
            marks=() if each[:3] in PLAIN or each[0] in DAILY else pytest.mark.long,
        )
        for each in chosen
    ]


@pytest.mark.parametrize(("name", "examples", "replicas", "as_dataset"), _chosen())
def test_fit_equals_one_device(
    tiny: Any, name: str, examples: int, replicas: int, as_dataset: bool
) -> None:
    def made() -> tuple[keras.Model, tuple[Any, ...], dict[str, Any]]:
        keras.utils.set_random_seed(1)
        model, data, *rest = CASES[name](examples)
        options = {"verbose": 0, "epochs": 2, **(rest[0] if rest else {})}
        if as_dataset:
            if "sample_weight" in options:
                data = (*data, options.pop("sample_weight"))
            data = tuple(keras.tree.lists_to_tuples(part) for part in data)
            return model, (_pipeline(data, examples),), options
        return model, data, {"batch_size": BATCH_SIZE[examples], "shuffle": False, **options}

    one, data, options = made()
    one.run_eagerly = True  # the same numbers, without the time to trace
    expected = one.fit(*data, **options).history
    many, data, options = made()
    got = kfit.Trainer(many, tiny.strategy(replicas)).fit(*data, **options).history

    assert tiny.distance(one, many) < 1e-5
    assert_equal_logs(got, expected)
    assert tiny.is_plain(many)


def _pipeline(data: tuple[Any, ...], examples: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH_SIZE[examples])


EVALUATED = ["masked_predictions", "several_outputs", "own_compute_metrics"]


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        pytest.param(turn, name, marks=() if name == "several_outputs" else pytest.mark.long)
        for turn, name in enumerate(EVALUATED)
    ],
    ids=EVALUATED,
)
def test_evaluate_and_predict_equal_one_device(tiny: Any, turn: int, name: str) -> None:
    examples, replicas = [(101, 2), (7, 3), (128, 2)][turn]
    model, data, *options = CASES[name](examples)
    options = dict(options[0] if options else {})
    fixed = {"batch_size": BATCH_SIZE[examples], "verbose": 0}
    model.run_eagerly = True
    expected = model.evaluate(*data, **options, **fixed, return_dict=True)
    model.run_eagerly = False
    predicted = model.predict(data[0], **fixed)

    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    got = trainer.evaluate(*data, **options, **fixed, return_dict=True)
    assert_equal_logs(got, expected)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        trainer.predict(data[0], **fixed),
        predicted,
    )


@pytest.mark.long
def test_on_batch_methods_equal_one_device(tiny: Any) -> None:
    x, y = tiny.data(11)
    one, many = tiny.model(), tiny.model()
    trainer = kfit.Trainer(many, tiny.strategy(3))
    for rows in (slice(0, 11), slice(0, 2)):
        expected = one.train_on_batch(x[rows], y[rows], return_dict=True)
        assert_equal_logs(trainer.train_on_batch(x[rows], y[rows], return_dict=True), expected)
    weighted = {"class_weight": {0: 0.5, 1: 2.0}}
    assert trainer.train_on_batch(x, y, **weighted) == pytest.approx(
        one.train_on_batch(x, y, **weighted), rel=1e-5
    )
    assert trainer.test_on_batch(x, y) == pytest.approx(one.test_on_batch(x, y), rel=1e-5)
    np.testing.assert_allclose(trainer.predict_on_batch(x), one.predict_on_batch(x), atol=1e-6)
    assert tiny.distance(one, many) < 1e-5
