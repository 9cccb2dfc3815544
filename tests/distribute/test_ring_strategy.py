"""The sums that TensorFlow asks a strategy for, with a ring that notes what it is asked for."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.distribute.ring_ops import RingOps
from kfit.distribute.ring_strategy import RingStrategy


class OfTwo:
    """A ring of two workers, of which the other one always has the same."""

    def __init__(self) -> None:
        self.sums: list[Any] = []

    def sum(self, *arrays: np.ndarray) -> list[np.ndarray]:
        self.sums += [array.tolist() for array in arrays]
        return [array * 2 for array in arrays]


@pytest.fixture(scope="module")
def strategy() -> Any:
    return RingStrategy()


@pytest.fixture
def ring(strategy: Any) -> Any:
    ring = OfTwo()
    strategy.ring_ops = RingOps(ring)  # type: ignore[arg-type]
    return ring


def test_sums_of_values_and_structures(strategy: Any, ring: OfTwo) -> None:
    assert strategy.reduce("SUM", tf.constant([1.0, 2.0]), axis=None).numpy().tolist() == [2.0, 4.0]
    found = strategy.reduce(tf.distribute.ReduceOp.SUM, {"a": 1, "b": tf.constant(2)}, axis=None)
    assert {name: int(value) for name, value in found.items()} == {"a": 2, "b": 4}
    assert ring.sums == [[1.0, 2.0], 1, 2]


def test_other_reductions_are_those_of_tensorflow(strategy: Any, ring: OfTwo) -> None:
    assert float(strategy.reduce("MEAN", tf.constant(3.0), axis=None)) == 3.0
    assert float(strategy.reduce("SUM", tf.constant([1.0, 2.0]), axis=0)) == 3.0
    strategy.ring_ops = None
    assert float(strategy.reduce("SUM", tf.constant(3.0), axis=None)) == 3.0
    assert ring.sums == []
