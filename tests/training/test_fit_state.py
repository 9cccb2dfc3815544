"""Where a `fit` is: between two epochs or in one, over or not."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.training import fit_state
from kfit.training.fit_state import FitState
from kfit.training.progress import Progress


def state(
    *,
    epoch: int,
    step: int = 0,
    stops: bool = False,
    resuming: Any = None,
    has_ended: bool = False,
) -> FitState:
    call: Any = SimpleNamespace(
        graphs=SimpleNamespace(compiled=None),
        model=keras.Sequential(),
        progress=Progress(epoch, step, step),
    )
    nothing: Any = None
    batches: Any = SimpleNamespace(has_ended=has_ended)
    call.model.stop_training = stops
    made = FitState(call, batches, None, lambda epoch: False, nothing, epochs=2)
    made.resuming = resuming
    return made


@pytest.mark.parametrize(("epoch", "step", "expected"), [(0, 0, True), (0, 3, False), (2, 3, True)])
def test_it_is_between_epochs_where_no_step_is_taken_or_none_is_left(
    epoch: int, step: int, expected: bool
) -> None:
    assert state(epoch=epoch, step=step).is_between_epochs == expected


def test_a_stop_counts_when_the_snapshot_has_been_restored() -> None:
    snapshot: Any = object()
    assert not state(epoch=1).ends_here
    assert state(epoch=1, step=3, stops=True).ends_here
    assert not state(epoch=1, stops=True).ends_here  # as in Keras, before the first step
    assert not state(epoch=1, step=3, stops=True, resuming=snapshot).ends_here
    assert state(epoch=2, resuming=snapshot).ends_here
    assert state(epoch=1, stops=True).is_over
    assert state(epoch=2).is_over
    assert state(epoch=1, has_ended=True).is_over
    assert not state(epoch=1).is_over


def test_a_state_with_variables_and_tuples_is_that_of_its_moment() -> None:
    array, variables = np.ones(2), [tf.Variable([1.0]), keras.Variable([1.0])]
    copied = fit_state._copied({"array": (array,), "variables": variables})
    array += 1
    for variable in variables:
        variable.assign([2.0])
    assert copied["array"][0].tolist() == [1.0, 1.0]
    assert [each.tolist() for each in copied["variables"]] == [[1.0], [1.0]]
