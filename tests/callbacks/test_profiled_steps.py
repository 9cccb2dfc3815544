"""Chosen steps of a training are profiled, each in a graph call of its own."""

from typing import Any

import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import TensorBoard
from kfit.callbacks.profiled_steps import ProfiledSteps
from kfit.steps.execution import Execution


def visited(profile_batch: Any, length: int) -> list[int]:
    """The numbers of steps taken at which a training asks for the profiler, at the fastest pace."""
    profile, step, found = ProfiledSteps(profile_batch), 0, []
    while step < length:
        if profile.is_due(step):
            found.append(step)
            profile._seen = step
        step += min(profile.steps_until_due(step) or length, length - step)
    return found


@pytest.mark.parametrize(
    ("profile_batch", "expected"),
    [
        (0, []),
        (1, [0, 1]),
        (5, [4, 5]),
        ((3, 6), [2, 3, 4, 5, 6]),
        ("3, 6", [2, 3, 4, 5, 6]),
        ([7, 7], [6, 7]),
    ],
)
def test_when_it_is_asked_for(profile_batch: Any, expected: list[int]) -> None:
    assert visited(profile_batch, 20) == expected
    assert bool(ProfiledSteps(profile_batch)) == bool(expected)


@pytest.mark.parametrize("wrong", [-1, True, 1.5, (0, 3), (4, 2), (1, 2, 3), "a", "1,b", None])
def test_a_wrong_one(wrong: Any) -> None:
    with pytest.raises(ValueError, match="`profile_batch` must be the number of a step"):
        ProfiledSteps(wrong)


def profiles(folder: Any) -> list[Any]:
    return list(folder.glob("train/plugins/profile/*/*.xplane.pb"))


@pytest.mark.parametrize(
    "profile_batch",
    [(3, 5), pytest.param((9, 1000), marks=pytest.mark.long)],
    ids=["in the midst", "to the end"],
)
def test_a_profile_is_written(
    tiny: Any, tmp_path: Any, monkeypatch: Any, profile_batch: Any
) -> None:
    calls: list[int] = []
    run = Execution.run

    def counted(self: Any, segment: Any, steps: int, **options: Any) -> Any:
        calls.append(steps)
        return run(self, segment, steps, **options)

    monkeypatch.setattr(Execution, "run", counted)
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    x, y = tiny.data(100)
    board = TensorBoard(tmp_path, profile_batch=profile_batch)
    trainer.fit(x, y, batch_size=10, verbose=0, callbacks=[board])
    (path,) = profiles(tmp_path)
    first, last = profile_batch
    marked = set(range(first, min(last, 10) + 1))
    content = path.read_bytes()
    assert b"train" in content
    before = 0
    for steps in calls:
        assert steps == 1 or not marked & set(range(before + 1, before + steps + 1))
        before += steps
    # The profiler has stopped: another one can begin.
    tf.profiler.experimental.start(str(tmp_path / "another"))
    tf.profiler.experimental.stop()


def test_another_profiler_runs(tiny: Any, tmp_path: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    tf.profiler.experimental.start(str(tmp_path / "theirs"))
    try:
        with pytest.warns(UserWarning, match="`profile_batch` are not profiled"):
            trainer.fit(
                *tiny.data(40),
                verbose=0,
                callbacks=[TensorBoard(tmp_path / "logs", profile_batch=1)],
            )
    finally:
        tf.profiler.experimental.stop()
    assert profiles(tmp_path / "logs") == []


def test_a_fit_that_fails_ends_it(tiny: Any, tmp_path: Any) -> None:
    import keras

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise RuntimeError("of the test")

    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    callbacks = [TensorBoard(tmp_path, profile_batch=(2, 9)), Fails()]
    with pytest.raises(RuntimeError, match="of the test"):
        trainer.fit(*tiny.data(100), batch_size=10, verbose=0, callbacks=callbacks)
    assert len(profiles(tmp_path)) == 1
    tf.profiler.experimental.start(str(tmp_path / "another"))
    tf.profiler.experimental.stop()
