"""What all tasks decide together between two executions."""

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.heartbeat import Heartbeat, HeartbeatReader, Reached
from kfit.training import decision
from kfit.training.decision import (
    _has_code_of_program,
    _require_one_rate,
    _require_same_weights,
)


def test_one_learning_rate_is_fine_also_if_it_is_no_number() -> None:
    for rate in (0.1, 0.0, np.inf, np.nan):
        _require_one_rate(np.full(3, rate))


def test_learning_rates_that_differ_are_named_with_their_workers() -> None:
    says = r"It is 1e-05 on worker 0, 0\.001 on worker 1: a callback has changed it on some workers"
    with pytest.raises(ValueError, match=says):
        _require_one_rate(np.array([1e-5, 1e-3], "float32").astype("float64"))


def of_two_workers(**changes: float) -> tuple[list[keras.Variable], np.ndarray]:
    """Two trained weights and one other, and their sums of squares on two workers.

    Args:
        changes: By which factor a sum is another one on the second worker, by the weight's name.
    """
    weights = [
        keras.Variable(np.full(4, 2.0), name="kernel"),
        keras.Variable(np.full(4, 0.1), name="bias"),
        keras.Variable(np.full(4, 1.0), trainable=False, name="mean"),
    ]
    sums = [decision._sum_of_squares(each) for each in weights]
    other = [sum_ * changes.get(each.name, 1) for each, sum_ in zip(weights, sums, strict=True)]
    return weights, np.array([sums, other])


def test_weights_may_differ_by_rounding_only(recwarn: pytest.WarningsRecorder) -> None:
    weights, sums = of_two_workers(kernel=1.000001, bias=1.0001, mean=1.0001)
    _require_same_weights(weights, sums)
    for total in (3.0, 0.0, np.inf, np.nan):
        _require_same_weights(weights, np.full((3, 3), total))
    _require_same_weights(weights, np.array([[16.0, 1e-12, 4.0], [16.0, 3e-12, 4.0]]))
    assert not [each for each in recwarn if "not trained" in str(each.message)]


@pytest.mark.parametrize(
    ("name", "factor"), [("kernel", 1.001), ("kernel", np.nan), ("bias", 1.1), ("bias", np.inf)]
)
def test_weights_that_a_hook_has_changed_on_one_worker_are_refused(
    name: str, factor: float
) -> None:
    says = rf"squares of '{name}' is .* on worker 1: a callback has changed them on some workers"
    with pytest.raises(ValueError, match=says):
        _require_same_weights(*of_two_workers(**{name: factor}))


def test_weights_that_are_not_trained_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="'mean', a weight that is not trained, is not the same"):
        _require_same_weights(*of_two_workers(mean=1.1))


def test_weights_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = keras.Variable(np.arange(50.0).reshape(5, 10))
    monkeypatch.setattr(decision, "_AT_ONCE", 7)
    expected = np.square(np.arange(50.0)).sum()
    np.testing.assert_allclose(decision._sum_of_squares(variable), expected, rtol=1e-12)


def test_states_of_single_rows_are_not_compared() -> None:
    cell = keras.layers.SimpleRNN(3, stateful=True)
    model = keras.Sequential([keras.Input((5, 2), batch_size=4), cell, keras.layers.Dense(1)])
    assert len(decision._weights_to_compare(model)) == 5


def test_only_code_of_the_program_makes_tasks_compare_their_weights() -> None:
    class Own(keras.callbacks.EarlyStopping):
        """A callback of the user's."""

    assert not _has_code_of_program(keras.callbacks.EarlyStopping())
    assert _has_code_of_program(keras.callbacks.LambdaCallback())
    assert _has_code_of_program(Own())


class TrainsAnother(keras.callbacks.Callback):
    """Trains and evaluates another model at the end of each epoch, and notes the place."""

    def __init__(self, tiny: Any, reader: HeartbeatReader) -> None:
        super().__init__()
        self.other = kfit.Trainer(tiny.model(), "one_device")
        self.x, self.y = tiny.data(80)
        self.reader = reader
        self.places: list[Reached] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.other.fit(self.x, self.y, 10, verbose=0)
        self.other.evaluate(self.x, self.y, 10, verbose=0)
        self.places.append(self.reader.read().reached)


def test_the_supervisor_learns_the_place_in_the_outermost_fit(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(HeartbeatReader(str(tmp_path / "task"))) as reader:
        heartbeat = Heartbeat(reader.path)
        monkeypatch.setattr(Heartbeat, "of_environment", lambda: heartbeat)
        x, y = tiny.data(50)
        trainer, other = kfit.Trainer(tiny.model(), "one_device"), TrainsAnother(tiny, reader)
        trainer.fit(x, y, 10, 2, 0, [other], validation_data=(x, y))
        assert other.places == [Reached(0, 5), Reached(0, 10)]
        trainer.evaluate(x, y, 10, verbose=0)
        trainer.predict(x, 10, verbose=0)
        assert reader.read().reached == Reached(0, 10)
        with pytest.raises(ValueError, match="batch_size"):
            trainer.fit(x, y, -1)
        assert reader.read().reached == Reached(1, 0)
        kfit.fit(tiny.model(), x, y, 10, verbose=0, strategy="one_device")
        assert reader.read().reached == Reached(2, 5)
