"""The cursor of an epoch."""

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import kfit
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


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_an_error_of_a_generator_is_raised_as_it_is(tiny: Any, call: str) -> None:
    class NoFileError(Exception):
        """An error that TensorFlow knows nothing of."""

    def batches() -> Iterator[Any]:
        for step in range(9):
            if step == 5:
                raise NoFileError("image_17.png")
            yield tiny.data(8)

    trainer = kfit.Trainer(tiny.model(), "one_device")
    with pytest.raises(NoFileError, match="image_17") as caught:
        getattr(trainer, call)(batches(), verbose=0)
    assert caught.traceback[-1].name == "batches"
    assert caught.value.__suppress_context__
    getattr(trainer, call)(
        tiny.data(8)[0] if call == "predict" else iter([tiny.data(8)]), verbose=0
    )
