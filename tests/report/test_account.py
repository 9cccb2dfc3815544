"""What a report tells of trainings: one process, so that TensorFlow is imported once."""

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.checkpoint import fits
from kfit.report.account import Account
from kfit.report.lost_steps import Attempt
from tests.sweeps import sweep


class Keeps(keras.callbacks.Callback):
    """Takes some time in a hook, and keeps the report of a training under way."""

    def __init__(self, trainer: Any, seconds: float = 0.0) -> None:
        super().__init__()
        self.trainer, self.seconds = trainer, seconds
        self.reports: list[kfit.Report] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        time.sleep(self.seconds)
        self.reports.append(self.trainer.report())


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.02)


def share(report: kfit.Report, phase: str) -> float:
    return report.phases[phase] / report.seconds_of_training


@pytest.mark.parametrize("replicas", sweep([1, 2]))
def test_the_phases_add_up_to_the_time_of_fit(tiny: Any, replicas: int, capfd: Any) -> None:
    x, y = tiny.data(101)
    trainer = kfit.Trainer(tiny.model(), strategy=tiny.strategy(replicas))
    with pytest.raises(RuntimeError, match="call `fit` first"):
        trainer.report()
    keeps = Keeps(trainer, 0.2)
    began = time.monotonic()
    trainer.fit(x, y, 20, 3, 0, [keeps], validation_data=(x, y))
    lasted = time.monotonic() - began
    report = trainer.report()
    assert sum(report.phases.values()) == pytest.approx(report.seconds)
    assert report.seconds == pytest.approx(lasted, rel=0.02)
    assert (report.steps, report.examples, report.expected_examples) == (18, 303, 303)
    assert report.num_replicas == replicas
    assert report.examples_in_tracing == 21  # the first batch, and one of another size
    per_replica = 282 / report.seconds_of_training / replicas
    assert report.examples_per_second_per_replica == pytest.approx(per_replica)
    assert report.hooks["on_epoch_end"] >= 0.6
    assert report.phases["callbacks"] >= 0.6
    assert report.phases["validation"] > 0
    assert 0 < (report.seconds_to_first_step or 0) < lasted
    assert 0 < report.goodput < 1
    live = keeps.reports[0]
    assert (live.steps, live.examples) == (6, 101)
    assert sum(live.phases.values()) == pytest.approx(live.seconds)
    assert "101 of 303, fewer than all epochs have" in str(live)
    assert "fewer than all" not in str(report)
    assert capfd.readouterr().out == ""


@pytest.mark.long
def test_slow_data_is_the_largest_part_and_is_counted(tiny: Any) -> None:
    x, y = tiny.data(32)

    def batches() -> Any:
        while True:
            time.sleep(0.02)
            yield x, y

    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    trainer.fit(batches(), steps_per_epoch=30, verbose=0)
    report = trainer.report()
    assert share(report, "input") > max(share(report, name) for name in ("steps", "callbacks"))
    assert report.examples == 30 * 32
    assert "Training waits for data" in report.advice[0]
    # A pipeline of TensorFlow whose last batch is smaller.
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    trainer.fit(data, epochs=2, verbose=0)
    assert trainer.report().examples == 64
    trainer.model.run_eagerly = True
    trainer.fit(data, verbose=0)
    assert trainer.report().examples == 32


class TakesScalar(keras.Model):
    """A model of two outputs, whose step gets a dict that begins with a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return [self.out(x), 2.0 * self.out(x)]

    def train_step(self, data: Any) -> Any:
        return super().train_step((data["x"] * data["scale"], [data["y"], data["y"]]))


@pytest.mark.long
def test_a_scalar_of_a_batch_has_no_examples(tiny: Any) -> None:
    x, y = tiny.data(32)
    data = tf.data.Dataset.from_tensor_slices((x, y[:, None])).batch(10)
    data = data.map(lambda x, y: {"scale": tf.constant(0.5), "x": x, "y": y})
    histories = []
    for trains in ("keras", "kfit"):
        keras.utils.set_random_seed(1)
        model = TakesScalar()
        model.compile("sgd", ["mse", "mae"])
        trainer = model if trains == "keras" else kfit.Trainer(model, "one_device")
        histories.append(trainer.fit(data, epochs=2, verbose=0).history["loss"])
    assert histories[0] == pytest.approx(histories[1])
    assert trainer.report().examples == 64


def test_a_slow_hook_for_batches_is_named(tiny: Any) -> None:
    x, y = tiny.data(300)
    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    trainer.fit(x, y, 10, verbose=0, callbacks=[Slow()])
    report = trainer.report()
    assert share(report, "callbacks") > share(report, "steps")
    assert report.single_steps == ("Slow",)
    assert any("`on_train_batch_end`. Slow has hooks" in each for each in report.advice)


@pytest.mark.long
def test_what_a_callback_evaluates_is_time_of_its_hook(tiny: Any) -> None:
    x, y = tiny.data(50)
    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    ends = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: trainer.evaluate(x, y, verbose=0)
    )
    trainer.fit(x, y, 10, verbose=0, callbacks=[ends])
    report = trainer.report()
    assert (report.steps, report.examples) == (5, 50)
    assert report.phases["validation"] == 0
    assert sum(report.phases.values()) == pytest.approx(report.seconds)


def test_a_resumed_training_counts_from_its_first_beginning(tiny: Any, tmp_path: Path) -> None:
    x, y = tiny.data(100)

    def fit(stop_after: int) -> kfit.Report:
        trainer = kfit.Trainer(tiny.model(), strategy="one_device", seed=1)

        class Fails(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch == stop_after:
                    raise KeyError

        backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq=4)
        try:
            trainer.fit(x, y, 10, 3, 0, [backup, Fails()])
        except KeyError:
            time.sleep(0.3)
        return trainer.report()

    first, second = fit(0), fit(99)
    assert "looking for a snapshot" in str(first)
    assert "resuming" not in str(first)
    assert "resuming" in str(second)
    assert "looking for a snapshot" not in str(second)
    assert (first.steps, first.total_steps, first.snapshots) == (10, 10, 2)
    assert first.snapshot_bytes > 1000
    # It resumes from step 8, so that 22 of 30 steps are left.
    assert (second.steps, second.total_steps, second.total_examples) == (22, 30, 300)
    assert (second.restarts, second.restores, second.steps_again) == (1, 1, None)
    assert "an unknown number of steps done again" in str(second)
    assert second.total_seconds > second.seconds + 0.3
    assert second.goodput < 1


@pytest.mark.long
def test_a_snapshot_is_looked_for_and_restored_in_the_time_of_resuming(
    tiny: Any, tmp_path: Path
) -> None:
    class Searches(kfit.callbacks.BackupAndRestore):
        def find_snapshot(self) -> Any:
            time.sleep(0.2)
            return super().find_snapshot()

    class Reads(keras.callbacks.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"pages": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            time.sleep(0.3)

    def fit(epochs: int) -> kfit.Report:
        fits.forget()  # as a program that is started again
        x, y = tiny.data(20)
        trainer = kfit.Trainer(tiny.model(), strategy="one_device", seed=1)
        backup = Searches(tmp_path, delete_checkpoint=False)
        trainer.fit(x, y, 10, epochs, 0, [backup, Reads()])
        return trainer.report()

    assert fit(1).phases["resuming"] >= 0.2
    report = fit(2)
    assert report.restores == 1
    assert report.phases["resuming"] >= 0.5
    assert report.phases["saving"] < 0.5


def test_steps_that_a_killed_attempt_has_lost_are_counted(monkeypatch: Any) -> None:
    first = Account()
    monkeypatch.setenv("KFIT_RUN", "r")
    first.took(8, 80, None)
    first.share_examples([80])
    kept = first.state_dict()
    assert json.loads(json.dumps(kept)) == kept
    # Two attempts have failed: one at step 11, and one that resumed from step 8, at step 10.
    monkeypatch.setenv("KFIT_GENERATION", "2")
    monkeypatch.setenv("KFIT_REACHED", "0:11,0:10")
    second = Account()
    second.restored(kept, 8, complete=False)
    report = second.report()
    assert (report.restarts, report.restores, report.steps_again) == (2, 1, 5)
    assert (report.total_steps, report.total_examples) == (8, 80)
    # A callback returns to a snapshot of this attempt.
    kept = second.state_dict()
    second.took(3, 30, None)
    second.share_examples([30])
    second.restored(kept, 8, complete=False)
    report = second.report()
    assert (report.restarts, report.restores, report.steps_again) == (2, 2, 8)
    assert (report.steps, report.total_steps, report.total_examples) == (3, 8, 80)
    # A snapshot of an earlier version of kfit has no figures.
    third = Account()
    third.restored(None, 8, complete=False)
    assert (third.report().total_steps, third.report().total_examples) == (8, None)


@pytest.mark.parametrize(
    ("reached", "again"),
    [
        ("1:11,1:10", 5),
        ("0:100,1:10", 2),  # the first attempt had not come to this `fit`
        ("1:11,2:1", None),  # the second one had come to a later `fit`, after unknown steps
        ("", None),
    ],
)
def test_lost_steps_are_those_of_the_same_fit(
    monkeypatch: Any, reached: str, again: int | None
) -> None:
    monkeypatch.setenv("KFIT_RUN", "r")
    kept = Account().state_dict(fit=1)
    monkeypatch.setenv("KFIT_GENERATION", "2")
    monkeypatch.setenv("KFIT_REACHED", reached)
    attempt = Attempt.of_environment()
    assert (attempt.lost_since(kept, 8), attempt.fit_of(kept)) == (again, 1)
    monkeypatch.setenv("KFIT_RUN", "another")
    assert Attempt.of_environment().fit_of(kept) is None


def test_a_fit_of_some_seconds_prints_a_line(tiny: Any, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("kfit.report.account._SHORTEST", 0.0)
    x, y = tiny.data(50)
    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    trainer.fit(x, y, 10, verbose=2)
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].startswith("kfit: 5 steps in ")
    assert " examples/s since the first step): " in lines[-1]
    assert re.search(r", rest \d+ %$", lines[-1])
    trainer.fit(x, y, 10, verbose=0)
    assert capfd.readouterr().out == ""


def test_steps_of_the_call_that_was_traced_have_no_rate(tiny: Any) -> None:
    x, y = tiny.data(50)
    model = tiny.model()
    model.compile("sgd", "mse", steps_per_execution=5)
    trainer = kfit.Trainer(model, strategy="one_device")
    trainer.fit(x, y[:, None], 10, verbose=0)
    report = trainer.report()
    assert (report.examples, report.examples_in_tracing) == (50, 50)
    assert report.examples_per_second is report.examples_per_second_per_replica is None
    assert "examples/s" not in f"{report.line}{report}"
    assert dataclasses.replace(report, steps=1).line.startswith("kfit: 1 step in ")
    assert " on " not in report.line
    assert "s on 2 replicas: " in dataclasses.replace(report, num_replicas=2).line
    trainer.fit(x, y[:, None], 10, verbose=0)  # the same graph
    report = trainer.report()
    assert report.examples_in_tracing == 0
    assert report.examples_per_second == pytest.approx(50 / report.seconds_of_training)


def test_a_report_is_text_plain_values_and_summaries(tiny: Any, tmp_path: Path) -> None:
    x, y = tiny.data(50)
    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    trainer.fit(x, y, 10, verbose=0)
    report = trainer.report()
    values = json.loads(report.to_json())
    assert values == report.as_dict()
    assert values["phases"] == report.phases
    assert str(report).startswith("fit: 5 steps in ")
    assert repr(report) == str(report)
    assert " a replica" not in str(report)
    profiled = dataclasses.replace(report, step_parts={"forward pass": 0.001, "metrics": 0.0})
    assert re.search(r"metrics +too small to measure\n", f"{profiled}\n")
    shown = ET.fromstring(f"<div>{report._repr_html_()}</div>")
    words = [" ".join(cell.text for cell in row) for row in shown.iter("tr")]
    words += [f"- {sentence.text}" for sentence in shown.iter("li")]
    assert words == [" ".join(line.split()) for line in str(report).splitlines()]
    report.write(tf.summary.create_file_writer(str(tmp_path)))
    (file,) = tmp_path.iterdir()
    tags = {
        value.tag: event.step
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert tags["kfit/goodput"] == tags["kfit/seconds/steps"] == tags["kfit/report"] == 5
    assert np.isfinite(list(report.phases.values())).all()
