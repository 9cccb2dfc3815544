"""Training and evaluating in one process: alone, and beside an evaluator that comes later."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import kfit
from kfit.checkpoint.store import SnapshotName, Store
from kfit.evaluation import inline_evaluation
from kfit.evaluation.end_marker import read_end_marker
from kfit.evaluation.inline_evaluation import EvaluatedCheckpoints
from kfit.training.save_points import PeerFailedError

EPOCHS, BATCH_SIZE = 3, 20  # of 101 examples: 6 steps an epoch
EVALUATOR = {"cluster": {"worker": ["w:1", "w:2"]}, "task": {"type": "evaluator", "index": 0}}


class CutError(Exception):
    """Ends a task as if its process were killed."""


class CutAt(kfit.Exporter):
    """Ends the evaluating task while it writes down what it found at some steps, once each."""

    def __init__(self, *steps: int) -> None:
        self._steps = set(steps)

    def export(self, model: Any, directory: str, evaluation: dict[str, Any]) -> None:
        if evaluation["step"] in self._steps:
            self._steps.remove(evaluation["step"])
            raise CutError


class Job:
    """One training, in as many calls as it takes.

    Args:
        tiny: The fixture.
        folder: Its directory.
        replicas: How many replicas train.
    """

    def __init__(self, tiny: Any, folder: Path, replicas: int = 1) -> None:
        self._tiny = tiny
        self.folder = folder
        self._replicas = replicas
        self._trainers: dict[Any, Any] = {}
        self.x, self.y = tiny.data()

    def trainer(self, strategy: Any = None) -> kfit.Trainer:
        """A trainer as it is at the start of a process; its graphs are traced once a kind."""
        if strategy not in self._trainers:
            model = self._tiny.model()
            chosen = strategy or self._tiny.strategy(self._replicas)
            trainer = kfit.Trainer(model, chosen, seed=3)
            self._trainers[strategy] = trainer, model.get_weights()
        trainer, weights = self._trainers[strategy]
        trainer.model.set_weights(weights)
        trainer.model.optimizer.iterations.assign(0)
        trainer._seeds.begin_anew()
        return trainer

    def run(
        self, *, train: Any = None, strategy: Any = None, exporters: Any = (), **evaluate: Any
    ) -> Any:
        """Runs the program once, from the start, and returns its trainer and outcome."""
        self.last = self.trainer(strategy)
        spec = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "verbose": 0, "keep": 100}
        # Not the data of training, or the two could be taken for each other.
        xe, ye = self.x[:37], self.y[:37]
        return kfit.train_and_evaluate(
            self.last,
            kfit.TrainSpec(model_dir=self.folder, x=self.x, y=self.y, **{**spec, **(train or {})}),
            kfit.EvalSpec(
                input_fn=lambda: (xe, ye), batch_size=16, verbose=0, exporters=exporters, **evaluate
            ),
        )

    def lines(self) -> list[dict[str, Any]]:
        with open(self.folder / "eval/evaluations.jsonl") as file:
            return [json.loads(line) for line in file]

    @property
    def names(self) -> list[SnapshotName]:
        return self.store.names()

    @property
    def store(self) -> Store:
        return Store(str(self.folder / "checkpoints"))

    def evaluated_by_hand(self, name: str) -> dict[str, float]:
        """What `evaluate` says of a checkpoint's weights, given to a fresh model one by one."""
        parsed = SnapshotName.parse(name)
        assert parsed is not None
        kept = self.store.read(parsed).state["variables"]
        trainer = self.trainer("one_device")
        trainer.model.set_weights([v["value"] for v in kept if v["part"] == "model"])
        return trainer.evaluate(
            self.x[:37], self.y[:37], batch_size=16, verbose=0, return_dict=True
        )


@pytest.fixture
def job(tiny: Any, tmp_path: Path) -> Job:
    return Job(tiny, tmp_path / "job")


@pytest.fixture
def as_evaluator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process the evaluator of two workers for as long as a block lasts."""

    @contextlib.contextmanager
    def evaluator() -> Any:
        with monkeypatch.context() as patch:
            patch.setenv("TF_CONFIG", json.dumps(EVALUATOR))
            yield

    return evaluator


@pytest.mark.long
def test_alone_each_checkpoint_is_evaluated_once(job: Job) -> None:
    outcome = job.run(train={"save_freq": 4}, exporters=kfit.BestExporter(monitor="accuracy"))
    lines = job.lines()
    # The last is step 18, which ends an epoch and training.
    assert [(line["step"], line["epoch"]) for line in lines] == [
        (4, 0),
        (8, 1),
        (12, 1),
        (16, 2),
        (18, 3),
    ]
    assert outcome.evaluations == lines
    assert list(outcome.history.history) == ["accuracy", "loss"]
    for line in lines:
        assert line["metrics"] == job.evaluated_by_hand(line["checkpoint"])


@pytest.mark.long
def test_training_is_not_touched_by_evaluations(tiny: Any, tmp_path: Path) -> None:
    weights, histories = [], []
    for name, options in {"alone": {}, "beside": {"evaluator": True}}.items():
        job = Job(tiny, tmp_path / name, replicas=2)
        outcome = job.run(train={"save_freq": 4}, **options)
        weights.append(tiny.weights(job.last.model))
        histories.append(outcome.history.history)
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))
    # The metrics of an epoch too, in whose midst there were evaluations.
    assert histories[0] == histories[1]


class Noise(keras.layers.Layer):
    """Draws from a generator of its own in evaluations as well, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        scale = 1 + 0.01 * self.calls
        return scale * x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)


class Drawn(keras.utils.PyDataset):
    """Draws its batches, and shuffles them, by NumPy's generator and by one that it is given."""

    def __init__(self, x: Any, y: Any, own: Any = None, seconds: float = 0.0) -> None:
        super().__init__()
        self._x, self._y, self._own, self._seconds = x, y, own, seconds
        self.order = np.arange(len(x))

    def __len__(self) -> int:
        return len(self._x) // 10

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._seconds)
        rows = self.order[index * 10 : index * 10 + 10]
        own = 0.0 if self._own is None else self._own.normal(size=(10, 1))
        return self._x[rows] + 0.1 * np.random.normal(size=(10, 4)) + own, self._y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


class CutAtStep(kfit.callbacks.TrainingCallback):
    """Ends training after a step as if its process were killed."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self._step = step

    def steps_until_due(self) -> int | None:
        return None if self._step is None else max(1, self._step - self.training.progress.step)

    def is_due(self) -> bool:
        return self.training.progress.step == self._step

    def on_due(self) -> None:
        raise CutError


class Draws(kfit.Exporter):
    """Uses the model, and draws from every generator."""

    def export(self, model: Any, directory: str, evaluation: dict[str, Any]) -> None:
        np.random.normal(), random.random(), keras.random.normal(()), tf.random.normal(())
        model.layers[0].calls.assign_add(1.0)
        model.predict(np.zeros((2, 4)), verbose=0)


def _data_of(kind: str, x: Any, y: Any) -> tuple[Any, Any]:
    """The `x` of training, and a function that makes that of an evaluation."""
    if kind == "arrays drawn":
        return (x, y), lambda: (x + np.random.normal(size=x.shape), y)
    own = np.random.default_rng(5) if kind == "one generator" else None
    # While a batch is being made, an evaluation may begin.
    data = Drawn(x, y, own, seconds=0.02 if kind == "two data sets" else 0.0)
    return data, lambda: data if kind == "one data set" else Drawn(x[:20], y[:20], own)


KINDS = ["arrays drawn", "two data sets", "one data set", "one generator"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_as_if_there_had_been_no_evaluation(tmp_path: Path, kind: str) -> None:
    """Nothing that evaluations draw or count is seen by training, with a restart or without."""
    values = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    targets = values.sum(axis=1, keepdims=True)

    def trained(name: str, cut: int | None = None, **options: Any) -> list[Any]:
        keras.utils.set_random_seed(11)
        x, input_fn = _data_of(kind, values, targets)
        layers = [keras.Input((4,)), Noise(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        x, y = x if isinstance(x, tuple) else (x, None)
        size = None if y is None else 10
        spec = kfit.TrainSpec(
            model_dir=tmp_path / name,
            x=x,
            y=y,
            batch_size=size,
            epochs=3,
            save_freq=4,
            callbacks=[CutAtStep(cut)],
            verbose=0,
        )
        evaluate = kfit.EvalSpec(input_fn=input_fn, batch_size=size, verbose=0, **options)
        with contextlib.suppress(CutError):
            kfit.train_and_evaluate(kfit.Trainer(model, "one_device", seed=3), spec, evaluate)
        return model.get_weights()

    beside = trained("beside", evaluator=True)
    inline = {
        "alone": trained("alone"),
        "with an exporter": trained("exporter", exporters=Draws()),
        "killed within an epoch": [trained("killed", cut=9), trained("killed")][-1],
    }
    for name, weights in inline.items():
        assert all(map(np.array_equal, weights, beside)), name


def test_one_shuffle_for_training_and_evaluation_is_warned_of(job: Job) -> None:
    both = tf.data.Dataset.from_tensor_slices((job.x, job.y)).shuffle(101, seed=1)
    fixed = tf.data.Dataset.from_tensor_slices((job.x, job.y)).shuffle(
        101, seed=1, reshuffle_each_iteration=False
    )

    def run(name: str, train: Any, evaluate: Any) -> None:
        kfit.train_and_evaluate(
            job.trainer(),
            kfit.TrainSpec(model_dir=job.folder / name, x=train.batch(20), epochs=1, verbose=0),
            kfit.EvalSpec(x=evaluate.batch(20), verbose=0),
        )

    with pytest.warns(UserWarning, match="Training and evaluation read one `shuffle`"):
        run("both", both.skip(20), both.take(20))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Training and evaluation read")
        run("fixed", fixed.skip(20), fixed.take(20))
        run("apart", both.skip(20), fixed.take(20))


@pytest.mark.long
def test_one_generator_for_training_and_evaluation_is_warned_of(job: Job) -> None:
    def batches() -> Any:
        while True:
            yield job.x[:20], job.y[:20]

    data = batches()
    train = {"x": data, "y": None, "batch_size": None, "steps_per_epoch": 2, "epochs": 1}
    with pytest.warns(UserWarning, match="Training and evaluation read one generator"):
        kfit.train_and_evaluate(
            job.trainer(),
            kfit.TrainSpec(model_dir=job.folder, verbose=0, **train),
            kfit.EvalSpec(x=data, steps=1, verbose=0),
        )


@pytest.mark.long
def test_a_training_that_begins_anew_is_evaluated_anew(
    tiny: Any, tmp_path: Path, as_evaluator: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("alone", "beside"):
        job = Job(tiny, tmp_path / name)
        best = kfit.BestExporter()
        for number in range(2):
            job.run(exporters=best, evaluator=name == "beside")
            if name == "beside":
                with as_evaluator():
                    outcome = job.run(strategy="auto", exporters=best)
            else:
                outcome = job.run(exporters=best)  # once more, when all is done
            assert [e["step"] for e in outcome.evaluations] == [6, 12, 18]
            assert [line["step"] for line in job.lines()] == [6, 12, 18] * (number + 1)
            assert best.best is not None
            assert capsys.readouterr().out.count("has begun anew") == number
            shutil.rmtree(job.folder / "checkpoints")
            os.remove(job.folder / "export/best.keras")


class OwnEvaluate(keras.Sequential):
    """Evaluates in its own way, and adds to what Keras finds."""

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        error = np.mean(np.square(self.predict(x, verbose=0) - y))
        return {**super().evaluate(x, y, **kwargs), "own": float(error)}


@pytest.mark.long
def test_the_models_own_evaluate_is_called_in_both_ways(tmp_path: Path, as_evaluator: Any) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    found: dict[str, Any] = {}

    def run(name: str, *, strategy: str = "one_device", **options: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = OwnEvaluate([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        outcome = kfit.train_and_evaluate(
            kfit.Trainer(model, strategy, seed=3),
            kfit.TrainSpec(model_dir=tmp_path / name, x=x, y=x[:, :1], epochs=3, verbose=0),
            kfit.EvalSpec(x=x, y=x[:, :1], verbose=0, **options),
        )
        return [e["metrics"] for e in outcome.evaluations], model.get_weights()

    found["alone"], weights = run("alone")
    _, others = run("beside", evaluator=True)
    assert all(map(np.array_equal, weights, others))
    with as_evaluator():
        found["beside"], _ = run("beside", strategy="auto")
    assert found["alone"] == found["beside"]
    assert all(e["own"] == pytest.approx(e["loss"], rel=1e-5) for e in found["alone"])
    assert len({e["own"] for e in found["alone"]}) == 3


@pytest.mark.long
def test_two_evaluations_of_one_training_export_apart(job: Job, as_evaluator: Any) -> None:
    job.run(evaluator=True)
    with as_evaluator():
        for name in (None, "other"):
            job.run(strategy="auto", name=name, exporters=kfit.BestExporter())
    assert sorted(path.name for path in job.folder.iterdir()) == [
        *("checkpoints", "eval", "eval_other", "export", "export_other"),
    ]


def test_integers_of_numpy(job: Job) -> None:
    train = {"epochs": np.int64(2), "max_steps": np.int64(8), "batch_size": np.int64(20)}
    outcome = job.run(train={**train, "save_freq": np.int64(4), "keep": np.int64(100)})
    assert [e["step"] for e in outcome.evaluations] == [4, 8]


class TwoOptimizers(keras.Model):
    """A model whose own step builds its optimizers, as that of a GAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.layers.Dense(4), keras.layers.Dense(1)]
        self.both = [keras.optimizers.Adam(), keras.optimizers.Adam()]

    def call(self, x: Any) -> Any:
        return self.parts[1](self.parts[0](x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x))
        for part, optimizer in zip(self.parts, self.both, strict=True):
            gradients = tape.gradient(loss, part.trainable_variables)
            optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.long
def test_optimizers_that_a_step_builds_are_exported_by_an_evaluator(
    tmp_path: Path, as_evaluator: Any
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    seen: dict[bool, list[Any]] = {}

    class Noted(kfit.Exporter):
        def export(self, model: Any, directory: str, evaluation: dict[str, Any]) -> None:
            slots = [v.numpy() for optimizer in model.both for v in optimizer.variables]
            seen.setdefault(beside, []).append(slots)

    def run(name: str, strategy: str, evaluator: bool | None) -> None:
        model = TwoOptimizers()
        model.compile(loss="mse")
        kfit.train_and_evaluate(
            kfit.Trainer(model, strategy, seed=3),
            kfit.TrainSpec(model_dir=tmp_path / name, x=x, y=x[:, :1], epochs=2, verbose=0),
            kfit.EvalSpec(x=x, y=x[:, :1], verbose=0, exporters=Noted(), evaluator=evaluator),
        )

    for beside in (False, True):
        keras.utils.set_random_seed(1)
        run(str(beside), "one_device", beside)
    with as_evaluator():
        run("True", "auto", None)
    assert len(seen[True][0]) > 4
    for alone, other in zip(seen[False], seen[True], strict=True):
        assert all(map(np.array_equal, alone, other))


@pytest.mark.long
def test_tensorboard_of_an_eval_spec(tiny: Any, tmp_path: Path, as_evaluator: Any) -> None:
    def points(folder: Path) -> Any:
        events = EventAccumulator(str(folder / "tb/validation"), size_guidance={"tensors": 0})
        return [e.step for e in events.Reload().Tensors("evaluation_loss_vs_iterations")]

    for name in ("alone", "beside"):
        job = Job(tiny, tmp_path / name)
        board = kfit.callbacks.TensorBoard(job.folder / "tb")
        job.run(callbacks=board, evaluator=name == "beside")
        if name == "beside":
            with as_evaluator():
                job.run(strategy="auto", callbacks=[board])
        assert points(job.folder) == [6, 12, 18], name


def test_an_evaluator_finds_what_the_tasks_that_train_would(
    tiny: Any, tmp_path: Path, as_evaluator: Any
) -> None:
    found = []
    for name in ("alone", "beside"):
        job = Job(tiny, tmp_path / name)
        best = kfit.BestExporter(monitor="accuracy")
        job.run(train={"save_freq": 4}, exporters=best, evaluator=name == "beside")
        if name == "beside":
            assert not (job.folder / "eval").exists()
            with as_evaluator():
                outcome = job.run(train={"save_freq": 4}, strategy="auto", exporters=best)
            assert outcome.history is None
            assert outcome.evaluations == job.lines()
        exported = keras.saving.load_model(job.folder / "export/best.keras")
        found.append([(line["step"], line["epoch"], line["metrics"]) for line in job.lines()])
        state = [*exported.get_weights(), *(v.numpy() for v in exported.optimizer.variables)]
        found.append([best.best_step, [value.tolist() for value in state]])
    assert found[0] == found[2]
    assert found[1] == found[3]
    # The best is the best, and its file holds the weights that were evaluated.
    step = found[1][0]
    accuracies = {step: metrics["accuracy"] for step, _, metrics in found[0]}
    assert accuracies[step] == max(accuracies.values())
    assert len(set(accuracies.values())) > 1
    xe, ye = job.x[:37], job.y[:37]
    assert exported.evaluate(xe, ye, verbose=0, return_dict=True)["accuracy"] == pytest.approx(
        accuracies[step]
    )


def test_an_evaluator_that_is_killed_again_and_again(job: Job, as_evaluator: Any) -> None:
    job.run(train={"save_freq": 4}, evaluator=True)
    cut = CutAt(4, 12, 18)
    with as_evaluator():
        for _ in range(3):
            with pytest.raises(CutError):
                job.run(exporters=cut)
        outcome = job.run(exporters=cut)
        assert [e["step"] for e in outcome.evaluations] == [4, 8, 12, 16, 18]
        # And once more, when all is done.
        assert job.run(exporters=cut).evaluations == outcome.evaluations
    assert job.lines() == outcome.evaluations


def test_alone_cut_between_a_checkpoint_and_its_evaluation(job: Job) -> None:
    options = {"train": {"save_freq": 4}, "exporters": CutAt(8, 18)}
    for _ in range(2):
        with pytest.raises(CutError):
            job.run(**options)
    outcome = job.run(**options)
    assert [line["step"] for line in job.lines()] == [4, 8, 12, 16, 18]
    assert outcome.evaluations == job.lines()
    for line in job.lines():
        assert line["metrics"] == job.evaluated_by_hand(line["checkpoint"])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_metric_that_there_is_not_is_named_before_training(
    tiny: Any, tmp_path: Path, replicas: int
) -> None:
    job = Job(tiny, tmp_path / "job", replicas)
    with pytest.raises(ValueError, match=r"\['accuracy', 'loss'\].* Received: 'acuracy'"):
        job.run(exporters=kfit.BestExporter(monitor="acuracy"))
    assert int(job.last.model.optimizer.iterations) == 0
    assert job.names == []


def test_a_chief_that_cannot_write_ends_all_tasks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another task, of which only what it is told by the chief and asks of it counts.
    specs = (
        kfit.TrainSpec(model_dir=job.folder, x=job.x, y=job.y, epochs=1),
        kfit.EvalSpec(x=job.x, y=job.y),
    )
    other = EvaluatedCheckpoints(job.trainer(), *specs)
    collectives = SimpleNamespace(any_true=lambda own: True)
    other.training = SimpleNamespace(
        is_chief=False,
        strategy=SimpleNamespace(host_collectives=collectives),
        call=SimpleNamespace(graphs=SimpleNamespace(has_default=lambda step: True)),
    )
    monkeypatch.setattr(inline_evaluation, "evaluate_aside", lambda *args, **kwargs: {"loss": 1.0})
    monkeypatch.setattr(inline_evaluation, "set_aside", lambda *args, **kwargs: nullcontext())
    with pytest.raises(PeerFailedError, match="could not write down or export"):
        other.on_saved()


@pytest.mark.long
def test_a_signal_in_an_evaluation_stops_training_there(job: Job) -> None:
    class Preempt(keras.callbacks.Callback):
        """Tells this process to stop in an evaluation of step 8, as often as told."""

        times = 2

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 0 and self.times and [name.step for name in job.names] == [4, 8]:
                self.times -= 1
                os.kill(os.getpid(), signal.SIGTERM)

    options = {"train": {"save_freq": 4}, "callbacks": [Preempt()]}
    for _ in range(2):  # where training is at step 8, and where it goes on from there
        with pytest.raises(SystemExit) as stopped:
            job.run(**options)
        assert stopped.value.code == 143
        assert [line["step"] for line in job.lines()] == [4]
    job.run(**options)
    assert [line["step"] for line in job.lines()] == [4, 8, 12, 16, 18]
    # What it went on from was saved already.
    assert [name.step for name in job.names] == [4, 8, 12, 16, 18]


def test_a_damaged_checkpoint_is_passed_over_loudly(job: Job, as_evaluator: Any) -> None:
    job.run(evaluator=True)
    torn = job.folder / "checkpoints" / str(job.names[1]) / "arrays.h5"
    torn.write_bytes(torn.read_bytes()[:-100])
    with as_evaluator(), pytest.warns(UserWarning, match=r"step-12 is damaged and NOT evaluated"):
        outcome = job.run()
    assert [e["step"] for e in outcome.evaluations] == [6, 18]


@pytest.mark.long
def test_a_folder_that_a_stranger_makes_hides_no_checkpoint(
    job: Job, as_evaluator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFIT_BACKUP_KEY", "k" * 32)
    job.run(train={"epochs": 1}, evaluator=True)
    first = job.folder / "checkpoints" / str(job.names[0])
    # One is empty; others are copies of one that is signed, and has the step of the last.
    (first.parent / "g9999-00000001-step-1").mkdir()
    (first.parent / "g9999-00000002-step-18").mkdir()
    shutil.copytree(first, first.parent / "g9999-00000003-step-6")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job.run(evaluator=True)
    marker = read_end_marker(str(first.parent))
    assert marker is not None
    assert marker.last is not None
    assert (marker.last.lock_count < 9999, marker.last.step) == (False, 18)
    with as_evaluator(), pytest.warns(UserWarning, match="NOT evaluated") as caught:
        outcome = job.run()
    assert [e["step"] for e in outcome.evaluations] == [6, 12, 18]
    assert len([each for each in caught if "NOT evaluated" in str(each.message)]) == 3


@pytest.mark.long
def test_a_folder_that_a_stranger_makes_meanwhile(job: Job) -> None:
    class Makes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                (job.folder / "checkpoints/g9999-00000001-step-12").mkdir()

    job.run(train={"callbacks": [Makes()]})
    assert [line["step"] for line in job.lines()] == [6, 12, 18]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_what_cannot_be_read_is_passed_over_loudly(job: Job, as_evaluator: Any, kind: str) -> None:
    job.run(evaluator=True)
    manifest = job.folder / "checkpoints" / str(job.names[1]) / "manifest.json"
    manifest.unlink()
    make: dict[str, Any] = {
        "fifo": os.mkfifo,
        "link": lambda path: os.symlink("/etc/hostname", path),
        "folder": os.mkdir,
    }
    make[kind](manifest)
    with as_evaluator(), pytest.warns(UserWarning, match=r"step-12 is damaged and NOT evaluated"):
        outcome = job.run()
    assert [e["step"] for e in outcome.evaluations] == [6, 18]


def test_a_checkpoint_of_another_model(job: Job, as_evaluator: Any) -> None:
    job.run(evaluator=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(loss="sparse_categorical_crossentropy")
    trainer = kfit.Trainer(model)
    message = (
        rf"(?s)step 6 in {re.escape(str(job.folder))}\S+, must be of this model"
        r".*model: sequential/dense/kernel is \(4, 3\)"
    )
    with as_evaluator(), pytest.raises(kfit.checkpoint.SnapshotMismatchError, match=message):
        kfit.train_and_evaluate(
            trainer,
            kfit.TrainSpec(model_dir=job.folder, x=job.x, y=job.y, epochs=EPOCHS),
            kfit.EvalSpec(x=job.x, y=job.y),
        )


def test_checkpoints_wait_for_an_evaluator(job: Job, as_evaluator: Any) -> None:
    train = {"keep": 2, "save_freq": 4}
    job.run(train=train, evaluator=True)
    assert [name.step for name in job.names] == [4, 8, 12, 16, 18]
    with as_evaluator():
        job.run(train=train)
    job.run(train={**train, "epochs": 4}, evaluator=True)
    # Those that were evaluated go; what comes then waits again.
    assert [name.step for name in job.names] == [20, 24, 24]  # before an epoch's end and after it
    with as_evaluator():
        outcome = job.run(train={**train, "epochs": 4})
    assert [e["step"] for e in outcome.evaluations] == [4, 8, 12, 16, 18, 20, 24]


@pytest.mark.long
def test_newest_only_keeps_none(job: Job, as_evaluator: Any) -> None:
    job.run(train={"keep": 2, "save_freq": 4}, evaluator=True, newest_only=True)
    assert [name.step for name in job.names] == [16, 18]
    with as_evaluator():
        outcome = job.run(newest_only=True)
    assert [e["step"] for e in outcome.evaluations] == [18]


def test_throttled_alone_under_a_name(job: Job) -> None:
    outcome = job.run(train={"save_freq": 4}, throttle_secs=1000, name="other")
    assert [e["step"] for e in outcome.evaluations] == [4, 18]
    assert (job.folder / "eval_other/evaluations.jsonl").exists()
    assert not (job.folder / "eval").exists()


@pytest.mark.long
def test_max_steps(job: Job) -> None:
    def train(steps: int) -> list[int]:
        outcome = job.run(train={"epochs": None, "max_steps": steps})
        assert int(job.last.model.optimizer.iterations) == (steps if steps > 10 else 15)
        return [e["step"] for e in outcome.evaluations]

    assert train(15) == [6, 12, 15]
    assert train(15) == [6, 12, 15]
    assert train(20) == [6, 12, 15, 20]  # another epoch begins at 15
    assert train(33)[-2:] == [32, 33]  # epochs of 6, 6, 3, 5, 6, 6 and 1 steps


def test_the_evaluator_task(
    job: Job, as_evaluator: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with as_evaluator():
        adapter = kfit.distribute.MultiWorker(bytes_per_pack=1)
        for strategy in ("auto", "multi_worker", "parameter_server", adapter):
            trainer = job.trainer(strategy)
            assert isinstance(trainer.strategy, kfit.distribute.OneDevice)
            assert not trainer.is_chief
            said = capfd.readouterr().out
            assert "the evaluator stands outside of the cluster of the workers" in said
        with pytest.raises(kfit.distribute.ClusterError, match=r"kfit\.train_and_evaluate"):
            trainer.fit(job.x, job.y)
        trainer.evaluate(job.x, job.y, verbose=0)
        trainer.save(tmp_path / "model.keras")
        assert not (tmp_path / "model.keras").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None), "`trainer` must be a kfit.Trainer"),
        (("trainer", None, None), "`train_spec` must be a kfit.TrainSpec"),
    ],
)
def test_refuses(job: Job, arguments: Any, message: str) -> None:
    trainer, *specs = arguments
    with pytest.raises(ValueError, match=message):
        kfit.train_and_evaluate(job.trainer() if trainer else None, *specs)
