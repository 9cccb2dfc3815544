"""Event files: what is written to them, and when it is there."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.callbacks.event_writers import EventWriters, as_image
from kfit.checkpoint.event_files import EventFiles


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5,), (1, 5, 1, 1)),
        ((3, 7), (1, 3, 7, 1)),
        ((7, 3), (1, 3, 7, 1)),
        ((1, 5, 1), (1, 5, 1, 1)),
        ((3, 4, 6), (6, 3, 4, 1)),
        ((2, 4, 4, 3), (2, 4, 4, 3)),
        ((2, 4, 4, 5), None),
        ((2, 3, 4, 5, 6), None),
        ((), None),
        ((0, 3), None),
    ],
)
def test_the_shape_of_an_image(shape: Any, expected: Any) -> None:
    made = as_image(np.zeros(shape))
    assert (None if made is None else made.shape) == expected


def test_what_is_written_is_in_the_file_at_once(tmp_path: Any) -> None:
    files = EventFiles(str(tmp_path))
    writers = EventWriters(files)
    writers.scalars("train", 1, {})
    assert files.sizes() == {}
    sizes = []
    for step in range(3):
        writers.scalars("train", step, {"loss": 0.5})
        sizes += files.sizes().values()
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    writers.close()
    assert [*files.sizes().values()] == sizes[2:]


def test_a_model_that_cannot_be_described(tmp_path: Any) -> None:
    class Own(keras.layers.Layer):
        def __init__(self, function: Any) -> None:
            super().__init__()

        def call(self, x: Any) -> Any:
            return x

    model = keras.Sequential([keras.Input((4,)), Own(print)])
    with pytest.warns(UserWarning, match="The graph of the model is not written"):
        EventWriters(EventFiles(str(tmp_path))).graph(model)


def test_a_model_of_another_class_has_no_graph(tmp_path: Any) -> None:
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    files = EventFiles(str(tmp_path))
    EventWriters(files).graph(Own())
    assert files.paths() == []


def test_a_writer_of_the_program_gets_nothing(tmp_path: Any) -> None:
    """The user's own default writer stays the default, and has its own points alone."""
    theirs = tf.summary.create_file_writer(str(tmp_path / "theirs"))
    files = EventFiles(str(tmp_path / "mine"))
    with theirs.as_default(7):
        EventWriters(files).scalars("train", 1, {"loss": 0.5})
        tf.summary.scalar("own", 1.0)
    theirs.close()
    (path,) = (tmp_path / "theirs").iterdir()
    assert b"own" in path.read_bytes()
    assert b"loss" not in path.read_bytes()
    assert b"loss" in Path(files.paths()[0]).read_bytes()
