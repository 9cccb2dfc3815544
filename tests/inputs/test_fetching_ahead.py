"""Batches that are put on the devices before their steps ask for them, tried out on CPU devices."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.inputs import as_batches
from tests.sweeps import sweep


class Ahead(kfit.distribute.Mirrored):
    """Mirrored CPU devices that are taken for ones with a memory of their own."""

    fetches_ahead = True


class OneAhead(kfit.distribute.OneDevice):
    """One CPU device, likewise."""

    fetches_ahead = True


def ahead(replicas: int) -> Any:
    if replicas == 1:
        return OneAhead("CPU:1")
    return Ahead([f"CPU:{index}" for index in range(replicas)])


@pytest.mark.parametrize("replicas", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_every_replica_gets_its_rows_of_every_batch(replicas: int) -> None:
    strategy = ahead(replicas)
    numbers = np.arange(101)
    options: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 5}
    fetched = as_batches(numbers, strategy=strategy, **options)
    plain = as_batches(numbers, strategy=kfit.distribute.OneDevice(), **options)
    for epoch, first in ((0, 0), (1, 0), (2, 3)):
        run, expected = (next(batches.segments(epoch, first)) for batches in (fetched, plain))
        assert run.layout.per_replica
        assert run.layout.endless
        for _ in range(run.steps):
            parts = strategy.local_results(next(run.iterator)[0])
            assert [part.shape for part in parts] == [(20 // replicas,)] * replicas
            np.testing.assert_array_equal(np.concatenate(parts), next(expected.iterator)[0])
    # What is not alike on all replicas is not put there, and neither is text.
    for data, size in ((numbers, 21), (np.array(["a"] * 8), 8), (tf.ragged.constant([[1]] * 8), 8)):
        run = next(as_batches(data, strategy=strategy, batch_size=size).segments(0))
        assert run.layout.per_replica == (data is numbers and replicas == 1)


@pytest.mark.long
@pytest.mark.parametrize("replicas", sweep([2, 1]))
def test_training_is_the_same(tiny: Any, replicas: int) -> None:
    one, many = tiny.model(), tiny.model()
    fixed = {"batch_size": 20, "epochs": 2, "verbose": 0}
    expected = kfit.Trainer(one, "one_device", seed=4).fit(*tiny.data(), **fixed).history
    trainer = kfit.Trainer(many, ahead(replicas), seed=4)
    got = trainer.fit(*tiny.data(), **fixed).history
    assert tiny.distance(one, many) < 1e-5
    assert got["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    x = tiny.data()[0]
    np.testing.assert_allclose(
        trainer.predict(x, batch_size=20, verbose=0), one.predict(x, verbose=0), atol=1e-5
    )
