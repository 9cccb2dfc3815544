"""TensorBoard: the curves of Keras' callback, at any pace, and no point twice after a restart."""

import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import kfit
from kfit.callbacks import BackupAndRestore, RollBack, TensorBoard, TrainingCallback
from kfit.callbacks.epoch_times import PARTS
from kfit.steps.execution import Execution

Points = dict[tuple[str, str], list[tuple[int, float]]]


def events(log_dir: Path, run: str, plugin: str) -> dict[str, list[Any]]:
    """What a plugin of TensorBoard finds in a run, by name."""
    if not (log_dir / run).exists():
        return {}
    accumulator = EventAccumulator(str(log_dir / run), size_guidance={"tensors": 0})
    accumulator.Reload()
    return {
        tag: accumulator.Tensors(tag)
        for tag in accumulator.Tags()["tensors"]
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == plugin
    }


def points(log_dir: Path) -> Points:
    """The points of each curve, by its run and its name."""
    return {
        (run, tag): [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in found]
        for run in ("train", "validation")
        for tag, found in events(log_dir, run, "scalars").items()
    }


def tags(log_dir: Path, run: str, plugin: str) -> dict[str, list[int]]:
    """The steps at which a plugin of TensorBoard has data, by the names of the data."""
    found = events(log_dir, run, plugin)
    return {tag: [event.step for event in each] for tag, each in found.items()}


def steps(log_dir: Path) -> dict[tuple[str, str], list[int]]:
    return {name: [step for step, _ in curve] for name, curve in points(log_dir).items()}


@pytest.fixture(scope="module")
def machine(training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(1), validation_data=training.data(30))


def test_the_curves_are_those_of_keras(training: Any, tiny: Any, tmp_path: Any) -> None:
    machine = training.Machine(tiny.strategy(2), validation_data=training.data(30))
    options: dict[str, Any] = {"histogram_freq": 2, "write_images": True}
    machine.run([keras.callbacks.TensorBoard(tmp_path / "keras", **options)])
    machine.run([TensorBoard(tmp_path / "kfit", **options)])
    assert points(tmp_path / "kfit") == points(tmp_path / "keras")
    assert ("validation", "epoch_loss") in points(tmp_path / "kfit")
    assert ("train", "epoch_learning_rate") in points(tmp_path / "kfit")
    for plugin in ("histograms", "images", "graph_keras_model"):
        mine = tags(tmp_path / "kfit", "train", plugin)
        assert mine == tags(tmp_path / "keras", "train", plugin), plugin
        assert mine


def test_every_n_steps_takes_n_steps_in_a_graph_call(
    machine: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    calls: list[int] = []
    run = Execution.run

    def counted(self: Any, segment: Any, steps: int, **options: Any) -> Any:
        calls.append(steps)
        return run(self, segment, steps, **options)

    monkeypatch.setattr(Execution, "run", counted)
    machine.run([TensorBoard(tmp_path, update_freq=5)], validation_data=None)
    found = steps(tmp_path)
    assert found["train", "batch_loss"] == [5, 10, 15, 20, 25]
    assert found["train", "batch_learning_rate"] == [5, 10, 15, 20, 25]
    assert found["train", "epoch_loss"] == [0, 1, 2, 3]
    assert sum(calls) == 28
    assert max(calls) > 1  # kfit begins with one step, to measure how long it takes


@pytest.mark.long
def test_a_value_of_a_step_is_that_of_keras(machine: Any, tmp_path: Any) -> None:
    machine.run([keras.callbacks.TensorBoard(tmp_path / "keras", update_freq=3)])
    machine.run([TensorBoard(tmp_path / "kfit", update_freq=3)])
    for name in ("batch_loss", "batch_accuracy"):
        mine, theirs = (points(tmp_path / kind)["train", name] for kind in ("kfit", "keras"))
        assert mine == theirs
        assert len(mine) == 9


@pytest.mark.long
@pytest.mark.parametrize("save_freq", [4, pytest.param("epoch", marks=pytest.mark.long)])
def test_no_point_is_there_twice_after_a_resume(
    machine: Any, tmp_path: Any, save_freq: Any
) -> None:
    def callbacks(name: str) -> list[Any]:
        board = TensorBoard(tmp_path / name, histogram_freq=1, update_freq=2)
        return [board, BackupAndRestore(tmp_path / f"backup of {name}", save_freq=save_freq)]

    machine.run(callbacks("untouched"))
    machine.cut_at(11, callbacks("cut"))
    machine.cut_at(7, callbacks("cut"))
    machine.run(callbacks("cut"))
    assert points(tmp_path / "cut") == points(tmp_path / "untouched")
    for plugin in ("histograms", "graph_keras_model"):
        mine = tags(tmp_path / "cut", "train", plugin)
        assert mine == tags(tmp_path / "untouched", "train", plugin)
    most = Counter(p for curve in steps(tmp_path / "cut").values() for p in Counter(curve).values())
    assert set(most) == {1}


@pytest.mark.long
def test_the_files_of_others_stay(machine: Any, tmp_path: Any) -> None:
    logs = tmp_path / "logs"
    machine.run([TensorBoard(logs)])
    (logs / "train" / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()}
    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    machine.cut_at(6, [TensorBoard(logs, update_freq=1), backup])
    machine.run([TensorBoard(logs, update_freq=1), backup])
    assert {path: path.read_bytes() for path in before} == before
    assert steps(logs)["train", "batch_loss"] == list(range(1, 29))


@pytest.mark.long
def test_a_rollback_takes_the_points_back(training: Any, tiny: Any, tmp_path: Any) -> None:
    def data() -> Any:
        x, y = training.data()
        return {"x": x, "y": y, "batch_size": 8}

    machine = training.Machine(tiny.strategy(1), data, epochs=2)
    bad = [True]

    def is_bad(logs: Any) -> bool:
        at = machine.trainer.model.optimizer.iterations
        return bool(bad) and int(at) == 10 and bool(bad.pop())

    board = TensorBoard(tmp_path, update_freq=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machine.run([board, RollBack(is_bad, skip=False, save_freq=4)])
    assert not bad
    assert steps(tmp_path)["train", "batch_loss"] == list(range(1, 15))


@pytest.mark.parametrize("order", ["from Keras", pytest.param("to Keras", marks=pytest.mark.long)])
def test_one_goes_on_where_the_other_was_cut_off(machine: Any, tmp_path: Any, order: str) -> None:
    kinds = [keras.callbacks.TensorBoard, TensorBoard]
    first, second = kinds if order == "from Keras" else reversed(kinds)
    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    machine.cut_at(10, [first(tmp_path / "logs", update_freq=1), backup])
    machine.run([second(tmp_path / "logs", update_freq=1), backup])
    found = steps(tmp_path / "logs")
    # The names of files of one second end in a number, so that the tenth may come before the ninth.
    assert sorted(found["train", "batch_loss"]) == list(range(1, 29))
    assert sorted(found["validation", "epoch_loss"]) == [0, 1, 2, 3]


def test_a_further_fit_goes_on_with_the_steps(tiny: Any, tmp_path: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    board = TensorBoard(tmp_path, update_freq=2, x_axis="step")
    x, y = tiny.data(40)
    for _ in range(2):
        trainer.fit(x, y, batch_size=10, verbose=0, callbacks=[board])
    # TensorBoard reads files by name: of one second, by a counter, of which 10 is before 9.
    found = {name: sorted(taken) for name, taken in steps(tmp_path).items()}
    assert found["train", "batch_loss"] == [2, 4, 6, 8]
    assert found["train", "epoch_loss"] == [4, 8]
    assert len(tags(tmp_path, "train", "graph_keras_model")["keras"]) == 2  # one for each `fit`


@pytest.mark.long
def test_the_speed_leaves_out_the_validation(training: Any, tiny: Any, tmp_path: Any) -> None:
    class Slow(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            time.sleep(1.0)

    machine = training.Machine(tiny.strategy(1), validation_data=training.data(30), epochs=3)
    board = TensorBoard(tmp_path, write_steps_per_second=True, update_freq=3)
    machine.run([Slow(), board])
    found = points(tmp_path)
    per_second = dict(found["train", "epoch_steps_per_second"])
    milliseconds = dict(found["train", "epoch_step_milliseconds"])
    examples = dict(found["train", "epoch_examples_per_second"])
    assert milliseconds[2] < 1000 / 7  # seven steps, and not the second of the validation
    assert per_second[2] == pytest.approx(1000 / milliseconds[2], rel=1e-4)
    assert examples[2] == pytest.approx(8 * per_second[2], rel=1e-4)
    assert [step for step, _ in found["train", "batch_steps_per_second"]] == [
        3,
        6,
        9,
        12,
        15,
        18,
        21,
    ]


@pytest.mark.long
def test_what_takes_the_time_of_each_epoch(training: Any, tiny: Any, tmp_path: Any) -> None:
    class Slow(TrainingCallback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            time.sleep(0.1)

        def on_test_end(self, logs: Any = None) -> None:
            time.sleep(0.2)

        def on_save_point(self, reason: str) -> None:
            if reason == "epoch":
                time.sleep(0.3)

    machine = training.Machine(tiny.strategy(1), validation_data=training.data(30), epochs=3)
    board = TensorBoard(tmp_path / "logs", write_steps_per_second=True)
    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    machine.cut_at(10, [Slow(), board, backup])
    machine.run([Slow(), board, backup])
    found = points(tmp_path / "logs")
    seconds = {
        name.removeprefix("epoch_seconds/"): dict(curve)
        for (_, name), curve in found.items()
        if name.startswith("epoch_seconds/")
    }
    assert set(seconds) == {*PARTS, "rest"}
    assert all(list(curve) == [0, 1, 2] for curve in seconds.values())
    assert all(value >= 0 for curve in seconds.values() for value in curve.values())
    for epoch in range(3):
        assert seconds["callbacks"][epoch] >= 0.1
        assert seconds["validation"][epoch] >= 0.2
    assert seconds["saving"][2] >= 0.3
    # The first epoch is of the `fit` that was cut off, the others of the one that went on.
    report = machine.trainer.report()
    parts = [curve[epoch] for curve in seconds.values() for epoch in (1, 2)]
    assert report.seconds / 2 < sum(parts) < report.seconds
    (layout,) = tags(tmp_path / "logs", "train", "custom_scalars").values()
    assert layout == [0]


def test_time_is_not_written_unless_it_is_wanted(machine: Any, tmp_path: Any) -> None:
    machine.run([TensorBoard(tmp_path)], epochs=1)
    assert not any("seconds" in name for _, name in points(tmp_path))
    assert tags(tmp_path, "train", "custom_scalars") == {}


def test_an_evaluation_alone(tiny: Any, tmp_path: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    x, y = tiny.data(40)
    trainer.fit(x, y, batch_size=10, verbose=0)
    result = trainer.evaluate(x, y, verbose=0, callbacks=[TensorBoard(tmp_path)], return_dict=True)
    assert points(tmp_path) == {
        ("validation", f"evaluation_{name}_vs_iterations"): [(4, pytest.approx(value))]
        for name, value in result.items()
    }


def test_a_task_that_is_not_the_chief_writes_nothing(
    tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    monkeypatch.setattr(type(trainer._strategy), "is_chief", False)
    board = TensorBoard(
        tmp_path, histogram_freq=1, update_freq=1, write_steps_per_second=True, profile_batch=2
    )
    trainer.fit(*tiny.data(20), verbose=0, callbacks=[board])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_metrics_return(tiny: Any, tmp_path: Any) -> None:
    """One that returns an array has a curve for each of its elements."""
    model = tiny.model(
        metrics=[keras.metrics.F1Score(average=None, name="f1")], loss="categorical_crossentropy"
    )
    x, y = tiny.data(20)
    trainer = kfit.Trainer(model, tiny.strategy(1))
    trainer.fit(x, np.eye(3)[y], verbose=0, callbacks=[TensorBoard(tmp_path)])
    names = {name for _, name in points(tmp_path)}
    assert {"epoch_f1/0", "epoch_f1/1", "epoch_f1/2", "epoch_loss"} <= names


@pytest.mark.long
def test_weights_that_have_gone_wrong(tiny: Any, tmp_path: Any) -> None:
    model = tiny.model()
    model.layers[0].kernel.assign(np.full((4, 8), np.nan, "float32"))
    trainer = kfit.Trainer(model, tiny.strategy(1))
    trainer.fit(*tiny.data(20), verbose=0, callbacks=[TensorBoard(tmp_path, histogram_freq=1)])
    assert len(tags(tmp_path, "train", "histograms")) == 4


@pytest.mark.long
def test_under_keras_own_fit(tiny: Any, tmp_path: Any) -> None:
    model, data = tiny.model(), tiny.data(20)
    model.fit(*data, verbose=0, epochs=2, callbacks=[TensorBoard(tmp_path, histogram_freq=1)])
    assert steps(tmp_path)["train", "epoch_loss"] == [0, 1]
    with pytest.raises(ValueError, match="`update_freq` with a number of steps, `x_axis='step'`"):
        model.fit(*data, callbacks=[TensorBoard(tmp_path, update_freq=2, x_axis="step")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"histogram_freq": -1}, "`histogram_freq` must be a number of epochs"),
        ({"histogram_freq": 1.5}, "`histogram_freq` must be a number of epochs"),
        ({"update_freq": 0}, '`update_freq` must be "epoch", "batch" or a number'),
        ({"update_freq": "step"}, '`update_freq` must be "epoch", "batch" or a number'),
        ({"write_images": True}, "`histogram_freq` must be at least 1"),
        ({"profile_batch": (5, 2)}, "`profile_batch` must be the number of a step"),
        ({"x_axis": "time"}, '`x_axis` must be "epoch" or "step"'),
    ],
)
def test_wrong_arguments(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorBoard("logs", **options)
