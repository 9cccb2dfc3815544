"""What `kfit.inputs.batch_prints` records of the batches of a pipeline."""

from typing import Any

import numpy as np
import tensorflow as tf

from kfit.inputs.batch_prints import BatchPrints


def made(prints: BatchPrints, scale: float) -> Any:
    rows = tf.ragged.constant([[1, 2], [3], [], [4]])
    parts = {"x": np.arange(4.0) * scale, "name": ["a", "b", "c", "d"], "rows": rows}
    dataset = tf.data.Dataset.from_tensor_slices(parts).batch(1)
    recorded = prints.recorded(dataset)
    assert recorded.element_spec == dataset.element_spec
    assert recorded.cardinality() == 4
    return recorded.prefetch(4)


def taken(scale: float) -> list[int]:
    prints = BatchPrints()
    found = []
    for _ in range(2):
        prints.begin()
        iterator = iter(made(prints, scale))
        for step in range(1, 4):
            assert float(next(iterator)["x"][0]) == scale * (step - 1)
            prints.took(step)
            found.append(prints.last)
        assert prints.made >= 3
    return found


def test_batches_are_known_again_by_what_they_hold() -> None:
    own = taken(1.0)
    assert len(set(own[:3])) == 3
    assert own[:3] == own[3:]
    assert own[0] == taken(2.0)[0]  # its number is 0 at both scales
    assert own[1] != taken(2.0)[1]


def test_a_batch_of_data_sets_is_recorded_without_them() -> None:
    prints = BatchPrints()
    windows = tf.data.Dataset.range(4).window(2).map(lambda window: (window, 1))
    prints.begin()
    window, _ = next(iter(prints.recorded(windows)))
    prints.took(1)
    assert list(window.as_numpy_iterator()) == [0, 1]
    assert prints.last
