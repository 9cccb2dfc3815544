"""The cursor of an epoch."""

from typing import Any

import pytest
import tensorflow as tf

from kfit.distribute import OneDevice
from kfit.inputs import Cursor, as_batches


@pytest.mark.parametrize("kind", ["arrays", "endless", "finite", "generator"])
def test_an_epoch_that_was_saved_at_its_end_has_no_step_left(tiny: Any, kind: str) -> None:
    x, y = tiny.data(32)
    ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    source = {
        "arrays": {"x": x, "y": y, "batch_size": 8, "steps": 4},
        "endless": {"x": ds.repeat(), "steps": 4},
        "finite": {"x": ds, "steps": None},
        "generator": {"x": iter([(x, y)] * 9), "steps": 4},
    }[kind]
    batches = as_batches(**source, strategy=OneDevice())
    cursor = Cursor(batches, 0, 4)
    assert not cursor.more
    assert not cursor.ended_early
    batches.close()
