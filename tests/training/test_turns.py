"""Several threads use one model on replicas: each gets the numbers that it would get alone."""

import contextlib
import gc
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.training import turns
from tests.sweeps import only

PATIENCE = 120.0


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """The results of the calls, each made in a thread of its own, all at once."""
    results: list[Any] = [None] * len(calls)
    together = threading.Barrier(len(calls))

    def run(index: int) -> None:
        together.wait(PATIENCE)
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


def test_four_threads_get_the_numbers_of_one(tiny: Any) -> None:
    (x, y), model, strategy = tiny.data(40), tiny.model(), tiny.strategy(2)
    parts = [slice(start, start + 10) for start in range(0, 40, 10)]
    predicted = [model.predict(x[part], verbose=0) for part in parts]
    evaluated = [model.evaluate(x[part], y[part], verbose=0) for part in parts]
    for expected, calls in (
        (predicted, [lambda p=p: kfit.predict(model, x[p], strategy=strategy) for p in parts]),
        (evaluated, [lambda p=p: kfit.evaluate(model, x[p], y[p], 3) for p in parts]),
    ):
        for one, got in zip(expected, in_threads(calls), strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-6)
    assert tiny.is_plain(model)


class InThreads(keras.callbacks.Callback):
    """Evaluates and predicts in threads, in hooks that wait for them."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.results: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.results += in_threads([lambda: self.model.predict(self.x, verbose=0)] * 2)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.results += in_threads([lambda: self.model.evaluate(self.x, self.y, verbose=0)] * 2)


def test_a_hook_may_wait_for_threads(tiny: Any) -> None:
    x, y = tiny.data(20)
    numbers = []
    for strategy in (None, tiny.strategy(2)):
        model, callback = tiny.model(), InThreads(x, y)
        fixed = {"batch_size": 10, "shuffle": False, "verbose": 0, "callbacks": [callback]}
        with kfit.install(strategy) if strategy else tf.name_scope("keras"):
            history = model.fit(x, y, **fixed).history
        numbers.append([*map(np.asarray, callback.results), *model.get_weights()])
        numbers[-1] += [np.asarray(history[name]) for name in sorted(history)]
    for expected, got in zip(*numbers, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


class InNewThread(keras.callbacks.Callback):
    """Evaluates in a thread in the middle of an epoch, and waits for it."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.results: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.results += in_threads([lambda: self.model.evaluate(self.x, self.y, verbose=0)])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.on_epoch_begin(batch)


@pytest.mark.long
def test_any_hook_may_wait_for_a_thread_that_it_starts(tiny: Any) -> None:
    x, y = tiny.data(20)
    numbers = []
    for strategy in (None, tiny.strategy(2)):
        model, callback = tiny.model(), InNewThread(x, y)
        fixed = {"batch_size": 10, "shuffle": False, "verbose": 0, "callbacks": [callback]}
        with kfit.install(strategy) if strategy else tf.name_scope("keras"):
            model.fit(x, y, **fixed)
        numbers.append([*map(np.asarray, callback.results), *model.get_weights()])
    for expected, got in zip(*numbers, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


class InPool(keras.callbacks.Callback):
    """Evaluates in a thread that was there before training, in a hook that waits for it."""

    def __init__(self, pool: ThreadPoolExecutor, x: Any, y: Any) -> None:
        super().__init__()
        self.pool, self.x, self.y = pool, x, y
        self.results: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        evaluation = self.pool.submit(self.model.evaluate, self.x, self.y, verbose=0)
        self.results.append(evaluation.result(PATIENCE))


@pytest.mark.long
def test_a_hook_may_wait_for_an_older_thread_that_evaluates(tiny: Any) -> None:
    x, y = tiny.data(20)
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result(PATIENCE)
    callback = InPool(pool, x, y)
    model = tiny.model()
    with kfit.install(tiny.strategy(2)):
        model.fit(x, y, epochs=2, verbose=0, callbacks=[callback])
        last = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(callback.results[-1], last)


class InLaterHook(keras.callbacks.Callback):
    """Evaluates in a thread that one hook has started, and for which another one waits."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.may_begin = threading.Event()
        self.results: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.thread = threading.Thread(target=self.evaluate, daemon=True)
        self.thread.start()

    def evaluate(self) -> None:
        self.may_begin.wait(PATIENCE)
        self.results.append(self.model.evaluate(self.x, self.y, verbose=0))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.may_begin.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.mark.long
def test_a_hook_may_wait_for_a_thread_that_an_earlier_hook_has_started(tiny: Any) -> None:
    x, y = tiny.data(20)
    numbers = []
    for strategy in (None, tiny.strategy(2)):
        model, callback = tiny.model(), InLaterHook(x, y)
        fixed = {"batch_size": 10, "shuffle": False, "verbose": 0, "callbacks": [callback]}
        with kfit.install(strategy) if strategy else tf.name_scope("keras"):
            history = model.fit(x, y, **fixed).history
        numbers.append([*map(np.asarray, callback.results), *model.get_weights()])
        numbers[-1] += [np.asarray(history[name]) for name in sorted(history)]
    for expected, got in zip(*numbers, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


class InOlderThread(keras.callbacks.Callback):
    """Evaluates or trains in the middle of an epoch, in a thread that was there before training."""

    def __init__(self, pool: ThreadPoolExecutor, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self.pool, self.call = pool, call
        self.results: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.results.append(self.pool.submit(self.call, self.model).result(PATIENCE))


@pytest.mark.parametrize("purpose", only(["evaluate"], ["evaluate", "train"]))
def test_what_a_hook_has_long_kept_waiting_begins_with_a_warning(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    x, y = tiny.data(20)
    fixed: Any = {"batch_size": 10, "shuffle": False, "verbose": 0}

    def call(model: Any) -> Any:
        if purpose == "evaluate":
            return model.evaluate(x, y, verbose=0)
        return [each[-1] for each in model.fit(x, y, **fixed).history.values()]

    monkeypatch.setattr(turns, "_PATIENCE", 0.3)
    pool, numbers = ThreadPoolExecutor(1), []
    pool.submit(int).result(PATIENCE)
    for strategy in (None, tiny.strategy(2)):
        model, callback = tiny.model(), InOlderThread(pool, call)
        with contextlib.ExitStack() as stack:
            if strategy is not None:
                stack.enter_context(kfit.install(strategy))
                text = f"'ThreadPoolExecutor.*' uses the model to {purpose} while the thread"
                stack.enter_context(pytest.warns(UserWarning, match=text))
            history = model.fit(x, y, callbacks=[callback], **fixed).history
        numbers.append([*map(np.asarray, callback.results), *model.get_weights()])
        numbers[-1] += [np.asarray(history[name]) for name in sorted(history)]
    for expected, got in zip(*numbers, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_training_may_wait_for_what_a_thread_predicts(tiny: Any) -> None:
    (x, y), model = tiny.data(8), tiny.model()
    model.compile(keras.optimizers.SGD(0.0), model.loss)  # so that the numbers do not depend on
    made: queue.Queue[Any] = queue.Queue()  # which thread comes first
    weights = np.exp(model.predict(x, verbose=0)).mean(axis=-1)
    plain, weighted = (
        model.evaluate(x, y, sample_weight=each, verbose=0, return_dict=True)["loss"]
        for each in (None, weights)
    )

    def make() -> Any:
        for _ in range(8):
            made.put((x, y, np.exp(kfit.predict(model, x, verbose=0)).mean(axis=-1)))

    def batches() -> Iterator[Any]:
        yield x, y, np.ones(8, "float32")  # of these kfit takes the shapes
        while True:
            yield made.get(timeout=PATIENCE)

    def train() -> Any:
        return kfit.fit(model, batches(), steps_per_epoch=4, verbose=0).history["loss"]

    kfit.predict(model, x, verbose=0, strategy=tiny.strategy(2))
    _, losses = in_threads([make, train])
    np.testing.assert_allclose(losses, [(plain + 3 * weighted) / 4], rtol=1e-4)
    left = [made.get_nowait()[2] for _ in range(made.qsize())]
    assert 1 <= len(left) <= 5
    np.testing.assert_allclose(left, [weights] * len(left), rtol=1e-4)


class Predicted(keras.utils.PyDataset):
    """Batches that threads of the data set make, by the model that is predicted with."""

    def __init__(self, model: Any, x: Any) -> None:
        super().__init__(workers=2)
        self.model, self.x = model, x

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.x + kfit.predict(self.model, self.x, verbose=0).mean(),)


def test_a_prediction_may_wait_for_what_its_data_predicts(tiny: Any) -> None:
    (x, _), model = tiny.data(8), tiny.model()
    expected = model.predict(x + model.predict(x, verbose=0).mean(), verbose=0)
    kfit.predict(model, x, verbose=0, strategy=tiny.strategy(2))
    [got] = in_threads([lambda: kfit.predict(model, Predicted(model, x), verbose=0)])
    np.testing.assert_allclose(got, np.concatenate([expected] * 2), rtol=1e-4, atol=1e-6)


def test_one_thread_may_iterate_over_several_predictions(tiny: Any) -> None:
    (x, _), model = tiny.data(12), tiny.model()
    expected = [model.predict(each, verbose=0) for each in (x, -x[:8])]
    trainer = kfit.Trainer(model, strategy=tiny.strategy(2))
    got: list[list[Any]] = [[], []]

    def take_turns() -> None:
        iterators = [trainer.predict_iter(each, 4, 0) for each in (x, -x[:8])]
        left = [iterators[1], iterators[0]]  # the first that begins also ends first
        got[1].append(next(iterators[1]))
        got[0].append(next(iterators[0]))
        while left:
            for iterator in list(left):
                try:
                    got[iterators.index(iterator)].append(next(iterator))
                except StopIteration:
                    left.remove(iterator)

    assert in_threads([take_turns]) == [None]
    for one, parts in zip(expected, got, strict=True):
        np.testing.assert_allclose(np.concatenate(parts), one, rtol=1e-4, atol=1e-6)
    assert tiny.is_plain(model)


class Collecting(keras.callbacks.Callback):
    """Lets the garbage collector run in the middle of training."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        gc.collect()


@pytest.mark.long
def test_a_prediction_that_was_left_may_be_collected_in_training(tiny: Any) -> None:
    (x, y), weights = tiny.data(8), []
    for leaves in (False, True):
        model = tiny.model()
        trainer = kfit.Trainer(model, strategy=tiny.strategy(2), seed=1)

        def leave(trainer: kfit.Trainer = trainer) -> None:
            parts = [trainer.predict_iter(x, 4, 0)]
            next(parts[0])
            parts.append(parts)  # type: ignore[arg-type]  # only the garbage collector ends it

        def train(trainer: kfit.Trainer = trainer, leaves: bool = leaves) -> None:
            gc.collect()
            gc.disable()
            try:
                if leaves:
                    leave()
                trainer.fit(x, y, 4, verbose=0, shuffle=False, callbacks=[Collecting()])
            finally:
                gc.enable()

        assert in_threads([train]) == [None]
        assert tiny.is_plain(model)
        weights.append(model.get_weights())
    for expected, got in zip(*weights, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
