"""RollBack goes back to a good state and around the bad batch, or gives up."""

from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import RollBack
from tests.sweeps import sweep


@pytest.fixture(scope="module", params=sweep([2, 1]), ids=["two_replicas", "one_replica"])
def machine(request: Any, training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(request.param))


def poisoned(training: Any, *examples: int) -> Any:
    x, y = training.data()
    x[list(examples)] = np.nan
    return x, y


@pytest.mark.parametrize("save_freq", sweep([3, "epoch"]))
def test_rolled_back_and_around_the_bad_batch(machine: Any, training: Any, save_freq: Any) -> None:
    """It ends as if the batches had not been in the data."""
    x, y = poisoned(training, 9, 44)
    fit = {"x": x, "y": y, "batch_size": 8, "shuffle": False}
    machine._data, before = (lambda: fit), machine._data
    callback = RollBack(save_freq=save_freq)
    taken: list[int] = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: taken.append(logs["loss"]))
    with pytest.warns(UserWarning, match="Leaving out the batch of step 2 of epoch 1"):
        machine.run([callback, watch], epochs=2)
    got = [v.numpy().copy() for v in machine.model.weights]
    # Batches 1 and 5 are left out in both epochs.
    keep = np.ones(50, bool)
    keep[8:16] = keep[40:48] = False
    clean = {"x": x[keep], "y": y[keep], "batch_size": 8, "shuffle": False}
    machine._data = lambda: clean
    machine.run(epochs=2)
    expected = [v.numpy() for v in machine.model.weights]
    machine._data = before
    # Two bad batches of one execution are found in one go.
    assert 2 <= callback.rollbacks <= 4
    assert np.isfinite(taken).all()
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_skipping_it_gives_up(machine: Any, training: Any) -> None:
    x, y = poisoned(training, 9)
    machine._data, before = (lambda: {"x": x, "y": y, "batch_size": 8}), machine._data
    try:
        with (
            pytest.warns(UserWarning, match="going back to step 0"),
            pytest.raises(RuntimeError, match="went wrong 4 times; `max_rollbacks` is 3"),
        ):
            machine.run([RollBack(skip=False, max_rollbacks=3)])
    finally:
        machine._data = before


def test_on_what_the_user_says(machine: Any) -> None:
    calls: list[Any] = []

    def once(logs: Any) -> bool:
        """Asked once a step."""
        calls.append(logs["loss"])
        return len(calls) == 12

    callback = RollBack(on=once, skip=False)
    with pytest.warns(UserWarning, match="going back to step 7"):
        machine.run([callback, keras.callbacks.LambdaCallback(on_train_batch_end=print_nothing)])
    assert callback.rollbacks == 1
    assert machine.digest == machine.untouched


def print_nothing(batch: int, logs: Any) -> None:
    """Has each step be an execution of its own."""


def test_a_generator_cannot_go_back(machine: Any, training: Any) -> None:
    x, y = poisoned(training, 9)

    def batches() -> Any:
        for start in range(0, 48, 8):
            yield x[start : start + 8], y[start : start + 8]

    machine._data, before = (lambda: {"x": batches()}), machine._data
    try:
        with (
            pytest.warns(UserWarning, match="going back"),
            pytest.raises(ValueError, match="a generator, which cannot go back"),
        ):
            machine.run([RollBack()], epochs=1)
    finally:
        machine._data = before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"on": "inf"}, "`on` must be"),
        ({"max_rollbacks": 0}, "`max_rollbacks` must be"),
        ({"save_freq": 0}, "`save_freq` must be"),
    ],
)
def test_wrong_arguments(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RollBack(**arguments)


def test_bad_batches_that_follow_each_other_are_skipped() -> None:
    x, y = np.ones((40, 2), "float32"), np.ones((40, 1), "float32")
    x[12:24] = np.nan  # batches 3, 4 and 5 of 10
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    back = RollBack()
    with pytest.warns(UserWarning, match="Leaving out the batch") as found:
        kfit.Trainer(model, "one_device").fit(
            x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[back]
        )
    skipped = [str(each.message) for each in found if "Leaving out" in str(each.message)]
    assert skipped == [
        f"Leaving out the batch of step {step} of epoch {epoch}."
        for epoch in (1, 2)
        for step in (4, 5, 6)
    ]
    assert int(model.optimizer.iterations) == 14
    assert np.isfinite(model.get_weights()[0]).all()
    assert back.rollbacks == 6  # each return but the one that skips the first batch found


def test_nothing_but_bad_batches_ends_with_an_error() -> None:
    x, y = np.full((40, 2), np.nan, "float32"), np.ones((40, 1), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with (
        pytest.warns(UserWarning, match="Leaving out"),
        pytest.raises(RuntimeError, match="`max_rollbacks` is 3"),
    ):
        kfit.Trainer(model, "one_device").fit(
            x, y, batch_size=4, epochs=2, verbose=0, callbacks=[RollBack(max_rollbacks=3)]
        )
