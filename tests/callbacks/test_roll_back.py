"""RollBack goes back to a good state and around the bad batch, or gives up."""

import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore, RollBack
from kfit.checkpoint import fits
from tests.sweeps import only


@pytest.fixture(scope="module", params=[2, 1], ids=["two_replicas", "one_replica"])
def machine(request: Any, training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(request.param))


def poisoned(training: Any, *examples: int) -> Any:
    x, y = training.data()
    x[list(examples)] = np.nan
    return x, y


@pytest.mark.long
@pytest.mark.parametrize("save_freq", [3, "epoch"])
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


class CutError(Exception):
    """Ends a training as a kill would."""


class Fit:
    """A training of 3 epochs of 10 batches, which goes wrong once at one step and is rolled back.

    Attributes:
        is_wrong: Whether it still will.
    """

    def __init__(self, tiny: Any, folder: Path, *, at: int, backup_first: bool, freq: Any) -> None:
        self.tiny, self.folder, self.at = tiny, folder, at
        self.backup_first, self.freq = backup_first, freq
        self.is_wrong = True

    def run(self, cut: int | None = None, signum: int | None = None) -> Any:
        """Runs the program: all of it, or until the call of a hook after `cut` steps.

        Args:
            cut: After how many steps it ends by an error; None for never.
            signum: A signal that this process gets when training goes wrong, or None.
        """
        fits.forget()
        x, y = self.tiny.data(80)
        model, taken = self.tiny.model(), [0]

        def is_bad(logs: Any) -> bool:
            is_bad = self.is_wrong and int(model.optimizer.iterations) == self.at
            is_bad = is_bad and (self.freq != "epoch" or "val_loss" in logs)
            if is_bad and signum is not None:
                os.kill(os.getpid(), signum)
            self.is_wrong = self.is_wrong and not is_bad
            return is_bad

        def count(batch: int, logs: Any = None) -> None:
            taken[0] += 1
            if taken[0] == cut:
                raise CutError

        both = [RollBack(is_bad, skip=False, save_freq=4), self.backup()]
        callbacks = [*(reversed(both) if self.backup_first else both)]
        callbacks += [
            keras.callbacks.LambdaCallback(on_train_batch_end=count),
            keras.callbacks.CSVLogger(self.folder / "log.csv"),
            keras.callbacks.TensorBoard(self.folder / "tb"),
        ]
        history = kfit.fit(
            model,
            *(x, y),
            batch_size=8,
            epochs=3,
            validation_data=(x, y) if self.freq == "epoch" else None,
            callbacks=callbacks,
            strategy="one_device",
            verbose=0,
        )
        return [*model.get_weights(), *history.history["loss"], *self.rows(), *self.points()]

    def backup(self) -> Any:
        return BackupAndRestore(self.folder / "backup", save_freq=self.freq)

    def rows(self) -> list[str]:
        return (self.folder / "log.csv").read_text().splitlines()

    def points(self) -> list[int]:
        files = sorted((self.folder / "tb" / "train").glob("*.v2"))
        events = (e for file in files for e in tf.compat.v1.train.summary_iterator(str(file)))
        return sorted(e.step for e in events for v in e.summary.value if v.tag == "epoch_loss")


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(map(np.array_equal, one, two))


@pytest.mark.filterwarnings("ignore:Training went wrong")
@pytest.mark.parametrize(
    ("at", "freq", "cut", "backup_first"),
    only(
        [(10, 5, 12, False)],
        [
            (*when, first)
            for when in ((10, 5, 12), (10, "epoch", 12), (30, "epoch", 31))
            for first in (False, True)
        ],
    ),
)
def test_a_state_that_is_given_up_is_not_saved(
    tiny: Any, tmp_path: Path, at: int, freq: Any, cut: int, backup_first: bool
) -> None:
    """A kill just after a rollback resumes from no mixture of the two states, nor from the bad."""
    results = []
    for name, cuts in (("whole", []), ("cut", [cut])):
        (tmp_path / name).mkdir()
        fit = Fit(tiny, tmp_path / name, at=at, backup_first=backup_first, freq=freq)
        for each in cuts:
            with pytest.raises(CutError):
                fit.run(each)
        assert fit.is_wrong is (name == "whole")
        results.append(fit.run())
        assert fit.points() == [0, 1, 2]
        assert fit.rows()[0].startswith("epoch,")
    assert same(*results)


@pytest.mark.filterwarnings("ignore:Training went wrong")
def test_a_signal_at_the_step_of_a_rollback_saves_the_good_state(tiny: Any, tmp_path: Path) -> None:
    fit = Fit(tiny, tmp_path, at=7, backup_first=False, freq=100)
    with pytest.raises(SystemExit) as stopped:
        fit.run(signum=signal.SIGTERM)
    assert stopped.value.code == 143
    resumed = fit.run()
    (tmp_path / "whole").mkdir()
    assert same(resumed, Fit(tiny, tmp_path / "whole", at=0, backup_first=True, freq=100).run())
