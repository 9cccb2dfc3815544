"""The loops call the hooks that Keras calls, with the same arguments, in the same order.

Keras' own `fit` is run beside kfit's and its calls are the expected ones.
"""

import csv
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.training.batch_hooks import watches_batches
from kfit.training.progress_bar import ProgressBar
from tests.sweeps import only, sweep

HOOKS = [
    f"on_{scope}_{moment}"
    for scope in ("epoch", "train", "test", "predict")
    for moment in ("begin", "end", "batch_begin", "batch_end")
    if scope != "epoch" or "batch" not in moment
]


class Recorder(keras.callbacks.Callback):
    """Notes every hook, its index and the names of its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.names: dict[str, set[str]] = {}
        for hook in HOOKS:
            setattr(self, hook, self._noting(hook))

    def _noting(self, hook: str) -> Callable[..., None]:
        indexed = "batch" in hook or "epoch" in hook

        def note(*args: Any, logs: Any = None) -> None:
            *index, logs = args if len(args) > indexed else (*args, logs)
            self.calls.append((hook, *index))
            if logs and hook != "on_predict_batch_end":
                assert all(isinstance(value, float) for value in logs.values())
                self.names.setdefault(hook, set()).update(logs)

        return note


class StopsAt(keras.callbacks.Callback):
    """Sets `stop_training` in one hook, at one index."""

    def __init__(self, hook: str, index: int) -> None:
        super().__init__()
        self.steps = 0

        def stop(now: int, logs: Any = None) -> None:
            if now == index:
                self.model.stop_training = True

        setattr(self, hook, stop)


class AsksForEpoch1(keras.callbacks.Callback):
    """Begins at a later epoch, as Keras' BackupAndRestore does."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model._initial_epoch = 1


class CountsSteps(keras.callbacks.Callback):
    """Counts the batch hooks of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.epochs[-1] += 1


class Pair:
    """The tiny model twice, for Keras and for kfit. Made once a module: tracing takes the time."""

    def __init__(self, tiny: Any, replicas: int, **compiled: Any) -> None:
        self._data = tiny.data(50)
        self.one, self.many = (tiny.model(**compiled) for _ in range(2))
        self._beginning = self.one.get_weights()
        self.trainer = kfit.Trainer(self.many, tiny.strategy(replicas))

    def fresh(self) -> "Pair":
        """Puts both models back to their beginning, without losing what was traced."""
        for model in (self.one, self.many):
            model.set_weights(self._beginning)
            model.optimizer.iterations.assign(0)
            model.optimizer.learning_rate = 0.5
            model._initial_epoch = None  # BackupAndRestore leaves it behind, in Keras too
        return self

    def fit(self, *data: Any, **options: Any) -> tuple[Any, Any, Recorder, Recorder]:
        """Trains both; returns both models, and what hooks were called for each."""
        data = data or self._data
        recorders = Recorder(), Recorder()
        for model, fit, recorder in (
            (self.one, self.one.fit, recorders[0]),
            (self.many, self.trainer.fit, recorders[1]),
        ):
            arguments = {"shuffle": False, "verbose": 0, **options}
            callbacks = [recorder, *arguments.pop("callbacks", list)()]
            fit(
                *(part() if callable(part) else part for part in data),
                callbacks=callbacks,
                **arguments,
            )
            recorder.params = {k: v for k, v in recorder.params.items() if k != "verbose"}
            lengths = {len(values) for values in model.history.history.values()} or {0}
            assert max(lengths) == len(model.history.epoch)
        return self.one, self.many, *recorders


@pytest.fixture(scope="module", params=sweep([2, 1]), ids=["two_replicas", "one_replica"])
def made_once(tiny: Any, request: pytest.FixtureRequest) -> Pair:
    return Pair(tiny, request.param)


@pytest.fixture
def pair(made_once: Pair) -> Pair:
    return made_once.fresh()


def assert_equal(one: Any, many: Any, expected: Recorder, got: Recorder, tiny: Any) -> None:
    """The hooks, the history and the weights are Keras'."""
    assert got.calls == expected.calls
    assert got.names == expected.names
    assert got.params == expected.params
    assert list(many.history.history) == list(one.history.history)
    for name, values in one.history.history.items():
        assert many.history.history[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name
    assert tiny.distance(one, many) < 1e-6


@pytest.mark.long
def test_the_full_list_of_hooks(tiny: Any, strategy: Any) -> None:
    recorder = Recorder()
    x, y = tiny.data(50)
    kfit.Trainer(tiny.model(), strategy).fit(
        x,
        y,
        batch_size=20,
        epochs=2,
        validation_data=tiny.data(30),
        callbacks=[recorder],
        verbose=0,
    )

    def epoch(index: int) -> list[tuple[Any, ...]]:
        return [
            ("on_epoch_begin", index),
            ("on_train_batch_begin", 0),
            ("on_train_batch_end", 0),
            ("on_train_batch_begin", 1),
            ("on_train_batch_end", 1),
            ("on_train_batch_begin", 2),
            ("on_train_batch_end", 2),
            ("on_test_begin",),
            ("on_test_batch_begin", 0),
            ("on_test_batch_end", 0),
            ("on_test_batch_begin", 1),
            ("on_test_batch_end", 1),
            ("on_test_end",),
            ("on_epoch_end", index),
        ]

    assert recorder.calls == [("on_train_begin",), *epoch(0), *epoch(1), ("on_train_end",)]
    names = {"accuracy", "loss"}
    assert recorder.names == {
        "on_train_batch_end": names,
        "on_test_batch_end": names,
        "on_test_end": names,
        "on_epoch_end": names | {"val_accuracy", "val_loss"},
        "on_train_end": names | {"val_accuracy", "val_loss"},
    }


def infinite(tiny: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data(50)).repeat().batch(20)


def unknown_length(tiny: Any) -> tf.data.Dataset:
    x, y = tiny.data(50)
    spec = tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int64)
    rows = lambda: zip(x, y, strict=True)  # noqa: E731
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(20)


def generator(tiny: Any) -> Iterator[Any]:
    for batch in range(100):
        yield tiny.data(20 if batch % 3 else 13, seed=batch % 5)


FITS: dict[str, dict[str, Any]] = {
    "validation": {"validation_data": True, "validation_batch_size": 10},
    "validation_split": {"validation_split": 0.3},
    "validation_every_second_epoch": {"epochs": 5, "validation_data": True, "validation_freq": 2},
    "validation_after_some_epochs": {
        "epochs": 4,
        "validation_data": True,
        "validation_freq": [1, 4],
        "validation_steps": 1,
    },
    "initial_epoch": {"initial_epoch": 3, "epochs": 5},
    "no_epoch_left": {"initial_epoch": 5, "epochs": 5},
    "stop_at_the_end_of_an_epoch": {
        "epochs": 5,
        "callbacks": lambda: [StopsAt("on_epoch_end", 1)],
    },
    "stop_at_the_begin_of_an_epoch": {
        "epochs": 4,
        "callbacks": lambda: [StopsAt("on_epoch_begin", 1)],
    },
    "stop_at_a_step": {
        "epochs": 3,
        "validation_data": True,
        "callbacks": lambda: [StopsAt("on_train_batch_end", 1)],
    },
    "part_of_the_arrays": {"steps_per_epoch": 2, "epochs": 4},
    "part_of_the_arrays_from_epoch_1": {"steps_per_epoch": 2, "initial_epoch": 1, "epochs": 4},
    "part_of_the_arrays_from_an_epoch_that_a_callback_asks_for": {
        "steps_per_epoch": 2,
        "epochs": 4,
        "callbacks": lambda: [AsksForEpoch1()],
    },
}
RARE = {"validation_every_second_epoch", "validation_after_some_epochs"}


@pytest.mark.parametrize("name", only(set(FITS) - RARE, FITS))
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_fit_is_keras_fit(tiny: Any, pair: Pair, name: str) -> None:
    options = {"batch_size": 20, "epochs": 2, **FITS[name]}
    if options.get("validation_data"):
        options["validation_data"] = tiny.data(30, seed=1)
    assert_equal(*pair.fit(**options), tiny)


@pytest.mark.parametrize("replicas", sweep([2, 1]))
def test_executions_of_three_steps_are_those_of_keras(tiny: Any, replicas: int) -> None:
    pair = Pair(tiny, replicas, steps_per_execution=3)
    assert_equal(*pair.fit(batch_size=8, epochs=2, validation_data=tiny.data(30, seed=1)), tiny)


DATA: dict[str, Any] = {
    "dataset": (
        lambda tiny: tf.data.Dataset.from_tensor_slices(tiny.data(50)).batch(20),
        {"epochs": 2},
    ),
    "part_of_a_dataset": (
        lambda tiny: tf.data.Dataset.from_tensor_slices(tiny.data(50)).batch(10),
        {"epochs": 4, "steps_per_epoch": 2},
    ),
    "infinite_dataset": (infinite, {"epochs": 3, "steps_per_epoch": 4}),
    "generator": (generator, {"epochs": 3, "steps_per_epoch": 4}),
}


@pytest.mark.parametrize("name", only(["dataset", "part_of_a_dataset", "generator"], DATA))
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_fit_is_keras_fit_on(tiny: Any, pair: Pair, name: str) -> None:
    make, options = DATA[name]
    assert_equal(*pair.fit(lambda: make(tiny), **options), tiny)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_unknown_length(tiny: Any, pair: Pair) -> None:
    result = pair.fit(lambda: unknown_length(tiny), epochs=3)
    for recorder in result[2:]:
        recorder.calls = without_begun(recorder.calls)
    assert_equal(*result, tiny)
    assert int(pair.many.optimizer.iterations) == 9


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_executions_over_data_of_any_length(tiny: Any, replicas: int) -> None:
    pair = Pair(tiny, replicas, steps_per_execution=2)
    assert_equal(*pair.fit(lambda: infinite(tiny), epochs=2, steps_per_epoch=5), tiny)
    result = pair.fresh().fit(lambda: unknown_length(tiny), epochs=2)
    for recorder in result[2:]:
        recorder.calls = without_begun(recorder.calls)
    assert_equal(*result, tiny)


@pytest.mark.long
@pytest.mark.parametrize(("steps_per_epoch", "whole_pass"), [(3, 17), (5, 10)])
def test_whole_executions_of_a_number_of_steps(
    tiny: Any, steps_per_epoch: int, whole_pass: int
) -> None:
    pair = Pair(tiny, 1, steps_per_execution=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as that the data ran out
        for batch_size in (None, whole_pass, 4):
            options = {"steps_per_epoch": steps_per_epoch, "batch_size": batch_size, "epochs": 2}
            assert_equal(*pair.fresh().fit(**options), tiny)


def without_begun(calls: list[Any]) -> list[Any]:
    """Calls without a batch that was begun and for which there was no data any more: Keras begins
    one more an epoch than kfit, which knows the length from the second epoch on."""
    return [
        call
        for call, after in zip(calls, [*calls[1:], ("",)], strict=True)
        if call[0] != "on_train_batch_begin" or after[0] == "on_train_batch_end"
    ]


def test_one_replica_takes_the_very_steps_of_keras(tiny: Any) -> None:
    pair = Pair(tiny, 1)
    one, many, *_ = pair.fit(batch_size=20, epochs=3, validation_data=tiny.data(30, seed=1))
    assert tiny.distance(one, many) == 0.0
    assert many.history.history == one.history.history


def test_stops_at_the_very_step(tiny: Any, pair: Pair) -> None:
    stop = StopsAt("on_train_batch_end", 1)
    pair.trainer.fit(*tiny.data(50), batch_size=20, epochs=4, callbacks=[stop], verbose=0)
    assert int(pair.many.optimizer.iterations) == 2
    assert len(pair.trainer.history.history["loss"]) == 1


@pytest.mark.parametrize(
    ("batches", "steps_per_epoch", "epochs", "steps"),
    sweep([(3, 5, 1, [3]), (7, 5, 2, [5, 2]), (6, 3, 2, [3, 3])]),
)
def test_a_data_set_that_runs_out_warns(
    tiny: Any, batches: int, steps_per_epoch: int, epochs: int, steps: list[int]
) -> None:
    ds = tf.data.Dataset.from_tensor_slices(tiny.data(10 * batches)).batch(10)
    counts = CountsSteps()
    trainer = kfit.Trainer(tiny.model(), "one_device")
    options = {"steps_per_epoch": steps_per_epoch, "epochs": epochs, "verbose": 0}
    if batches % steps_per_epoch:
        with pytest.warns(UserWarning, match="ran out of data"):
            trainer.fit(ds, callbacks=[counts], **options)
    else:
        trainer.fit(ds, callbacks=[counts], **options)
    assert counts.epochs == steps


@pytest.mark.long
def test_a_generator_that_runs_out_warns(tiny: Any) -> None:
    counts = CountsSteps()
    three = iter([tiny.data(10) for _ in range(3)])
    with pytest.warns(UserWarning, match="ran out of data"):
        kfit.Trainer(tiny.model(), "one_device").fit(
            three, steps_per_epoch=5, callbacks=[counts], verbose=0
        )
    assert counts.epochs == [3]


def test_a_data_set_without_end_needs_a_number_of_steps(tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"`steps_per_epoch`.*never ends"):
        kfit.Trainer(tiny.model(), "one_device").fit(infinite(tiny), verbose=0)


def test_evaluate_and_predict_call_the_hooks_of_keras(tiny: Any, pair: Pair) -> None:
    x, y = tiny.data(50)
    expected, got = Recorder(), Recorder()
    pair.one.evaluate(x, y, batch_size=20, callbacks=[expected], verbose=0)
    pair.one.predict(x, batch_size=20, callbacks=[expected], verbose=0)
    pair.trainer.evaluate(x, y, batch_size=20, callbacks=[got], verbose=0)
    pair.trainer.predict(x, batch_size=20, callbacks=[got], verbose=0)
    assert got.calls == expected.calls
    assert got.names == expected.names


def test_steps_of_evaluate_and_predict(tiny: Any, pair: Pair) -> None:
    x, y = tiny.data(50)
    expected = pair.one.evaluate(x[:40], y[:40], batch_size=20, verbose=0)
    got = pair.trainer.evaluate(x, y, batch_size=20, steps=2, verbose=0)
    assert got == pytest.approx(expected, rel=1e-5)
    predicted = pair.trainer.predict(infinite(tiny).map(lambda x, y: x), steps=3, verbose=0)
    expected = pair.one.predict(np.concatenate([x, x])[:60], verbose=0)
    np.testing.assert_allclose(predicted, expected, atol=1e-6)


def test_a_callback_may_stop_evaluate_and_predict(tiny: Any, pair: Pair) -> None:
    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_evaluating = batch == 1

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_predicting = batch == 1

    x, y = tiny.data(50)
    recorder = Recorder()
    pair.trainer.evaluate(x, y, batch_size=20, callbacks=[Stop(), recorder], verbose=0)
    outputs = pair.trainer.predict(x, batch_size=20, callbacks=[Stop(), recorder], verbose=0)
    assert recorder.calls.count(("on_test_batch_end", 1)) == 1
    assert ("on_test_batch_begin", 2) not in recorder.calls
    assert outputs.shape == (40, 3)


# What the logs hold, and how often.


def test_many_steps_go_into_one_execution_where_nobody_watches(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    bar = keras.callbacks.ProgbarLogger
    monkeypatch.setattr(
        bar, "on_train_batch_end", lambda self, batch, logs=None: seen.append(batch)
    )
    trainer = kfit.Trainer(tiny.model(), "one_device")
    trainer.fit(*tiny.data(400), batch_size=2, callbacks=[bar()], epochs=2, verbose=0)
    assert seen.count(199) == 2
    assert len(seen) < 100
    assert int(trainer.model.optimizer.iterations) == 400


def test_who_watches_batches(tmp_path: Path) -> None:
    callbacks = keras.callbacks
    file = str(tmp_path / "a.keras")

    class Own(callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    watching = [
        Own(),
        callbacks.TerminateOnNaN(),
        callbacks.ModelCheckpoint(file, save_freq=3),
        callbacks.TensorBoard(tmp_path, update_freq=2),
        callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
        type(
            "OwnBar", (callbacks.ProgbarLogger,), {"on_train_batch_begin": Own.on_train_batch_end}
        )(),
        type("OwnOfKfit", (ProgressBar,), {"on_train_batch_end": Own.on_train_batch_end})(int),
    ]
    sleeping = [
        callbacks.ProgbarLogger(),
        type("Renamed", (callbacks.ProgbarLogger,), {"on_epoch_end": Own.on_train_batch_end})(),
        ProgressBar(int),
        callbacks.EarlyStopping(),
        callbacks.ModelCheckpoint(file),
        callbacks.BackupAndRestore(tmp_path),
        callbacks.TensorBoard(tmp_path),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    ]
    assert [watches_batches(callback, "train") for callback in watching] == [True] * len(watching)
    assert [watches_batches(callback, "train") for callback in sleeping] == [False] * len(sleeping)
    assert not watches_batches(Own(), "test")


@pytest.mark.parametrize("hook", only(["on_epoch_begin"], ["on_train_begin", "on_epoch_begin"]))
def test_a_batch_hook_that_another_hook_puts_on_a_callback_is_called_at_every_batch(
    tiny: Any, pair: Pair, hook: str
) -> None:
    class Late(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.batches: list[int] = []
            setattr(self, hook, self._put)

        def _put(self, *_: Any) -> None:
            self.on_train_batch_end = self._note

        def _note(self, batch: int, logs: Any = None) -> None:
            self.batches.append(batch)

    late = Late()
    pair.trainer.fit(*tiny.data(50), batch_size=5, epochs=2, callbacks=[late], verbose=0)
    assert late.batches == 2 * list(range(10))
    assert pair.trainer._account.watching == ("Late",)


@pytest.mark.long
def test_a_batch_hook_that_is_put_on_a_callback_in_evaluate_and_predict(
    tiny: Any, pair: Pair
) -> None:
    seen: dict[str, list[int]] = {"test": [], "predict": []}

    class Late(keras.callbacks.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            self.on_test_batch_end = lambda batch, logs=None: seen["test"].append(batch)

        def on_predict_begin(self, logs: Any = None) -> None:
            self.on_predict_batch_end = lambda batch, logs=None: seen["predict"].append(batch)

    x, y = tiny.data(50)
    pair.trainer.evaluate(x, y, batch_size=5, callbacks=[Late()], verbose=0)
    pair.trainer.predict(x, batch_size=5, callbacks=[Late()], verbose=0)
    assert seen == {"test": list(range(10)), "predict": list(range(10))}


def test_batch_logs_are_the_means_so_far(tiny: Any, pair: Pair) -> None:
    losses: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    pair.many.optimizer.learning_rate = 0.0
    x, y = tiny.data(50)
    pair.trainer.fit(x, y, batch_size=20, shuffle=False, callbacks=[note], verbose=0)
    expected = [pair.one.evaluate(x[:n], y[:n], verbose=0)[0] for n in (20, 40, 50)]
    assert losses == pytest.approx(expected, rel=1e-5)


# Keras' own callbacks, unchanged.


@pytest.fixture
def fitting(tiny: Any, pair: Pair) -> Callable[..., Any]:
    """Trains with callbacks on nine steps, and returns the trainer."""

    def fit(*callbacks: Any, **options: Any) -> Any:
        fixed = {"batch_size": 20, "epochs": 3, "verbose": 0, "shuffle": False}
        fixed["validation_data"] = tiny.data(30, seed=1)
        data = options.pop("data", tiny.data(50))
        pair.trainer.fit(*data, callbacks=list(callbacks), **{**fixed, **options})
        return pair.trainer

    return fit


def test_early_stopping_restores_the_best_weights(tiny: Any, fitting: Any) -> None:
    kept: list[Any] = []

    class Spoil(keras.callbacks.Callback):
        """Makes every epoch but the first one useless."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch:
                self.model.set_weights([w * 0 - 3 for w in self.model.get_weights()])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            kept.append(self.model.get_weights())

    stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    trainer = fitting(Spoil(), stop, epochs=9)
    assert stop.stopped_epoch == 2
    assert len(trainer.history.history["loss"]) == 3
    assert tiny.distance(kept[0], trainer.model) == 0.0


def test_reduce_lr_on_plateau(fitting: Any) -> None:
    plateau = keras.callbacks.ReduceLROnPlateau(factor=0.1, patience=1, min_delta=100.0)
    trainer = fitting(plateau)
    assert trainer.history.history["learning_rate"] == pytest.approx([0.5, 0.5, 0.05])


def test_learning_rate_scheduler(tiny: Any, pair: Pair) -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    assert_equal(*pair.fit(batch_size=20, epochs=3, callbacks=lambda: [schedule]), tiny)
    rates = pair.trainer.history.history["learning_rate"]
    assert rates == pytest.approx([0.25, 0.125, 0.0625])
    assert float(pair.many.optimizer.learning_rate) == pytest.approx(0.0625)


def test_csv_logger(fitting: Any, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    trainer = fitting(keras.callbacks.CSVLogger(file))
    rows = list(csv.DictReader(file.open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    for name, values in trainer.history.history.items():
        assert [float(row[name]) for row in rows] == pytest.approx(values)


def test_terminate_on_nan(tiny: Any, fitting: Any) -> None:
    steps: list[int] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: steps.append(b))
    x, y = tiny.data(50)
    x[25] = np.nan
    fitting(note, keras.callbacks.TerminateOnNaN(), data=(x, y))
    assert steps == [0, 1]


@pytest.mark.parametrize("only_weights", [False, True])
def test_model_checkpoint(tiny: Any, fitting: Any, tmp_path: Path, only_weights: bool) -> None:
    name = "{epoch}.weights.h5" if only_weights else "{epoch}.keras"
    every_epoch = keras.callbacks.ModelCheckpoint(
        tmp_path / name, save_weights_only=only_weights, monitor="val_loss", verbose=0
    )
    trainer = fitting(every_epoch)
    saved = sorted(file.name for file in tmp_path.iterdir())
    assert saved == [name.format(epoch=epoch) for epoch in (1, 2, 3)]
    if only_weights:
        loaded = tiny.model(seed=9)
        loaded.load_weights(tmp_path / saved[-1])
    else:
        loaded = keras.saving.load_model(tmp_path / saved[-1])
        assert int(loaded.optimizer.iterations) == 9
    assert tiny.distance(loaded, trainer.model) == 0.0


@pytest.mark.long
def test_model_checkpoint_between_batches(fitting: Any, tmp_path: Path) -> None:
    fitting(keras.callbacks.ModelCheckpoint(tmp_path / "{batch}.keras", save_freq=2), epochs=2)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.keras", "2.keras", "3.keras"]


def test_backup_and_restore_of_keras(tiny: Any, pair: Pair, fitting: Any, tmp_path: Path) -> None:
    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise RuntimeError("as if it were killed")

    with pytest.raises(RuntimeError, match="as if"):
        fitting(backup(), Fail(), epochs=4)
    pair.many.set_weights(tiny.model(seed=5).get_weights())
    assert fitting(backup(), epochs=4).history.epoch == [2, 3]
    resumed = pair.many.get_weights()
    pair.fresh()
    assert tiny.distance(resumed, fitting(epochs=4).model) == 0.0


@pytest.mark.long
def test_tensor_board(fitting: Any, tmp_path: Path) -> None:
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    fitting(board)
    for part in ("train", "validation"):
        events = [
            tf.compat.v1.Event.FromString(record.numpy())
            for file in (tmp_path / part).glob("*.v2")
            for record in tf.data.TFRecordDataset(str(file))
        ]
        steps = {(v.tag, e.step) for e in events for v in e.summary.value}
        assert {("epoch_loss", epoch) for epoch in range(3)} <= steps
        if part == "train":
            assert {("batch_loss", step) for step in range(1, 9)} <= steps


def test_lambda_callback(fitting: Any) -> None:
    calls: list[Any] = []
    fitting(
        keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: calls.append("begin"),
            on_epoch_end=lambda epoch, logs: calls.append((epoch, sorted(logs))),
            on_train_batch_end=lambda batch, logs: calls.append(batch),
            on_train_end=lambda logs: calls.append("end"),
        ),
        epochs=1,
    )
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert calls == ["begin", 0, 1, 2, (0, names), "end"]


@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_bar(fitting: Any, capsys: pytest.CaptureFixture[str], verbose: int) -> None:
    fitting(verbose=verbose, epochs=2)
    printed = capsys.readouterr().out
    assert "Epoch 1/2" in printed
    assert "Epoch 2/2" in printed
    assert "3/3" in printed
    assert printed.count("val_accuracy") == 2


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_swap_ema_weights(tiny: Any, replicas: int) -> None:
    optimizer = {"class_name": "SGD", "config": {"use_ema": True, "ema_momentum": 0.5}}
    pair = Pair(tiny, replicas, optimizer=optimizer)
    result = pair.fit(
        batch_size=20,
        epochs=3,
        validation_data=tiny.data(30, seed=1),
        callbacks=lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    )
    assert_equal(*result, tiny)


def test_a_callback_may_read_and_write_weights(tiny: Any, fitting: Any) -> None:
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.before = self.model.get_weights()
            self.model.set_weights([w / 2 for w in self.before])
            self.after = self.model.get_weights()

    halve = Halve()
    trainer = fitting(halve)
    assert tiny.distance([w / 2 for w in halve.before], halve.after) == 0.0
    assert tiny.distance(halve.after, trainer.model) == 0.0


def test_the_lists_of_keras_are_complete() -> None:
    """A callback that Keras adds later needs a test here."""
    tested = {
        "BackupAndRestore",
        "CSVLogger",
        "Callback",
        "CallbackList",
        "EarlyStopping",
        "History",
        "LambdaCallback",
        "LearningRateScheduler",
        "ModelCheckpoint",
        "ProgbarLogger",
        "ReduceLROnPlateau",
        "SwapEMAWeights",
        "TensorBoard",
        "TerminateOnNaN",
    }
    needs_more = {"OrbaxCheckpoint", "RemoteMonitor", "MonitorCallback"}
    public = {name for name in dir(keras.callbacks) if name[0].isupper()}
    assert public - needs_more == tested


def test_the_history_is_made_of_numbers(tiny: Any, fitting: Any) -> None:
    history = fitting().history.history
    assert {type(value) for values in history.values() for value in values} == {float}
    assert all(math.isfinite(value) for values in history.values() for value in values)


@pytest.mark.parametrize("mode", sweep(["train", "test"]))
def test_compile_in_a_batch_hook_is_refused(tiny: Any, mode: str) -> None:
    """Keras' own `fit` fails there, too: "'NoneType' object is not callable"."""

    def compiles(batch: int, logs: Any = None) -> None:
        model.compile("sgd", model.loss, metrics=["accuracy"])

    model, (x, y) = tiny.model(), tiny.data(32)
    hook = keras.callbacks.Callback()
    setattr(hook, f"on_{mode}_batch_end", compiles)
    call = {"train": kfit.fit, "test": kfit.evaluate}[mode]
    with pytest.raises(ValueError, match=f"among the steps.*on_{mode}_batch_end"):
        call(model, x, y, 8, strategy="one_device", callbacks=[hook], verbose=0)


def test_python_code_of_an_eager_step_stops_training_after_that_step(tiny: Any) -> None:
    class Stops(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.count = keras.layers.Dense(3), 0

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            self.count += 1
            self.stop_training = self.count >= 3
            return super().train_step(data)

    def steps_of(trainer_of: Any) -> int:
        model = Stops()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, run_eagerly=True)
        trainer_of(model).fit(*tiny.data(40), batch_size=4, epochs=2, verbose=0)
        return model.count

    assert steps_of(lambda model: kfit.Trainer(model, "one_device")) == steps_of(lambda m: m)


@pytest.mark.parametrize("mode", sweep(["train", "test"]))
def test_python_code_in_a_graph_stops_after_its_step(tiny: Any, mode: str) -> None:
    class Stops(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.count = keras.layers.Dense(3), 0

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def count_step(self) -> None:
            self.count += 1
            if self.count >= 5:
                self.stop_training = self.stop_evaluating = True

        def train_step(self, data: Any) -> Any:
            tf.py_function(self.count_step, [], [])
            return super().train_step(data)

        def test_step(self, data: Any) -> Any:
            tf.py_function(self.count_step, [], [])
            return super().test_step(data)

    def steps_of(trainer_of: Any) -> int:
        model = Stops()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        trainer = trainer_of(model)
        call = trainer.fit if mode == "train" else trainer.evaluate
        call(*tiny.data(80), batch_size=4, verbose=0)
        return model.count

    assert steps_of(lambda model: kfit.Trainer(model, "one_device")) == steps_of(lambda m: m) == 5
