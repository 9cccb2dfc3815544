"""Measures the parts of a step, and whole steps, on workers of this host.

All workers of a launch measure the same at the same time, so that each meets what the others do to
it; the chief's figures are taken. They agree on something before each measurement, which is how
they begin together.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import kfit


class Plan(NamedTuple):
    """What is measured, and how often.

    Attributes:
        workers: Numbers of workers, the first one being 1.
        batches: Examples a worker and step, to measure its computing and its input with.
        sizes: Bytes that are summed over the workers.
        weak: Examples a worker and step of whole steps, however many workers there are.
        strong: Examples a step of whole steps, over all workers.
        states: MB of the states that snapshots are taken of.
        saves: Snapshots of each.
        examples: Examples that a measurement computes, about.
        rounds: Measurements of which the median is taken.
    """

    workers: tuple[int, ...] = (1, 2, 4, 8)
    batches: tuple[int, ...] = (8, 16, 32, 64, 128)
    sizes: tuple[int, ...] = (64, 4_096, 262_144, 1 << 20, 4 << 20, 11_000_000)
    weak: int = 64
    strong: int = 128
    states: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0)
    saves: int = 4
    examples: int = 1024
    rounds: int = 5


QUICK = Plan(
    workers=(1, 2),
    batches=(4, 8),
    sizes=(64, 65_536),
    weak=8,
    strong=8,
    states=(1.0, 3.0),
    saves=1,
    examples=16,
    rounds=1,
)


class Found(NamedTuple):
    """What one number of workers was measured to take; seconds, by examples a worker or bytes.

    Attributes:
        compute: A training step without input and exchange, on a batch that stays.
        input: Drawing a batch.
        exchange: Summing over the workers.
        steps: Whole steps of a plain `fit`.
        held: What a snapshot costs training, by MB of state.
        written: How long one is written, by MB of state.
        gradients: Bytes that a step sums over the workers.
    """

    compute: dict[int, float]
    input: dict[int, float]
    exchange: dict[int, float]
    steps: dict[int, float]
    held: dict[float, float]
    written: dict[float, float]
    gradients: int


def measure(plan: Plan, workers: int, parts: bool) -> Found:
    """Starts workers on this host and measures.

    Args:
        plan: What is measured.
        workers: How many workers.
        parts: Whether computing and input are measured, besides the exchange and whole steps.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return kfit.launch(_on_worker, (plan, workers, parts), workers=workers, env=quiet)


def _on_worker(plan: Plan, workers: int, parts: bool) -> Found:
    """Runs on every worker."""
    import keras

    from benchmarks.contestants.work import model
    from kfit.distribute.host_collectives import HostCollectives

    lone = workers == 1
    strategy: Any = kfit.distribute.OneDevice() if lone else kfit.distribute.MultiWorker()
    with strategy.scope():
        host_collectives = HostCollectives(strategy)

    def in_turns(works: Works) -> dict[int, float]:
        """Median seconds of one time of each work, whose turns take turns."""
        for work, _ in works.values():
            work()
        taken: dict[int, list[float]] = {key: [] for key in works}
        for _ in range(plan.rounds):
            for key, (work, times) in works.items():
                host_collectives.any_true(False)
                begun = time.perf_counter()
                work()
                taken[key].append((time.perf_counter() - begun) / times)
        return {key: statistics.median(seconds) for key, seconds in taken.items()}

    gradients = model(keras, "cnn").count_params() * 4
    checked = sorted({plan.weak, plan.strong // workers})
    found = Found(
        compute=in_turns(_compute(plan)) if parts else {},
        input=in_turns(_input(plan, strategy, workers)) if parts else {},
        exchange={} if lone else in_turns(_exchange(plan, strategy, workers)),
        steps={batch: _steps(plan, strategy, batch, workers) for batch in checked},
        held={},
        written={},
        gradients=gradients,
    )
    if lone:
        held, written = _snapshots(plan)
        found = found._replace(held=held, written=written)
    return found


Works = dict[int, tuple[Callable[[], object], int]]
"""By examples or bytes, what is timed, and how many times it does something."""


def _data(examples: int) -> tuple[Any, Any]:
    """Random images and classes, of the tutorial's shapes."""
    import numpy as np

    draw = np.random.default_rng(0)
    x = draw.random((examples, 28, 28, 1), "float32")
    return x, draw.integers(0, 10, examples).astype("int64")


def _compute(plan: Plan) -> Works:
    import keras
    import tensorflow as tf

    from benchmarks.contestants.work import model
    from kfit.steps.allocator import keep_freed_memory

    trained = model(keras, "cnn")
    trained.optimizer.build(trained.trainable_variables)
    trained.evaluate(*_data(4), verbose=0)  # Keras makes its metrics at the first batch

    @tf.function(autograph=False)
    def run(x: Any, y: Any, steps: Any) -> Any:
        def body(done: Any) -> Any:
            trained.train_step((x, y))
            return done + 1

        return tf.while_loop(lambda done: done < steps, body, (tf.constant(0),))

    keep_freed_memory()
    works: Works = {}
    for batch in plan.batches:
        x, y = (tf.constant(part) for part in _data(batch))
        times = max(2, plan.examples // batch)
        works[batch] = partial(run, x, y, tf.constant(times)), times
    return works


def _input(plan: Plan, strategy: Any, workers: int) -> Works:
    import tensorflow as tf

    from kfit.inputs import as_batches

    @tf.function(autograph=False)
    def run(iterator: Any, steps: Any) -> Any:
        def body(done: Any, _: Any) -> Any:
            return done + 1, tf.reduce_sum(iterator.get_next()[0][0])

        return tf.while_loop(lambda done, _: done < steps, body, (tf.constant(0), 0.0))

    works: Works = {}
    x, y = _data(10 * max(plan.batches) * workers)
    for batch in plan.batches:
        times = max(2, plan.examples // batch)
        batches = as_batches(x, y, strategy=strategy, batch_size=batch * workers, shuffle=True)
        with strategy.scope():
            iterator = next(batches.segments(0)).iterator
        works[batch] = partial(run, iterator, tf.constant(times)), times
    return works


def _exchange(plan: Plan, strategy: Any, workers: int) -> Works:
    import tensorflow as tf

    def on_replica(*parts: Any) -> Any:
        # In parts, which are packed for the way, as gradients are.
        return strategy.all_reduce_sum([part / workers for part in parts])

    @tf.function(autograph=False)
    def run(parts: Any, times: Any) -> Any:
        def body(done: Any, parts: Any) -> Any:
            sums = (strategy.local_results(s)[0] for s in strategy.run(on_replica, parts))
            shapes = (part.shape for part in parts)
            return done + 1, tuple(map(tf.ensure_shape, sums, shapes))

        return tf.while_loop(lambda done, _: done < times, body, (tf.constant(0), parts))

    works: Works = {}
    for size in plan.sizes:
        parts = tuple(tf.ones(size // 4 // 4) for _ in range(4))
        times = max(2, min(100, plan.examples * 65_536 // size) // workers)
        works[size] = partial(run, parts, tf.constant(times)), times
    return works


def _steps(plan: Plan, strategy: Any, batch: int, workers: int) -> float:
    """Median seconds of a step in the epochs of one `fit`, but for the first ones."""
    import keras

    from benchmarks.contestants.work import model

    class Epochs(keras.callbacks.Callback):
        seconds: list[float]

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self.begun)

    steps = max(4, 2 * plan.examples // batch // workers)
    x, y = _data(steps * batch * workers)
    epochs = Epochs()
    epochs.seconds = []
    kfit.Trainer(model(keras, "cnn"), strategy).fit(
        x, y, batch_size=batch * workers, epochs=2 + plan.rounds, verbose=0, callbacks=[epochs]
    )
    return statistics.median(epochs.seconds[2:]) / steps


def _snapshots(plan: Plan) -> tuple[dict[float, float], dict[float, float]]:
    """What snapshots cost training, and how long they are written, by MB of state."""
    from benchmarks.snapshots import Held, StepTimes, data_for, model_of

    class Written(Held):
        written: list[float]

        def _write(self, snapshot: Any) -> None:
            begun = time.perf_counter()
            super()._write(snapshot)
            self.written.append(time.perf_counter() - begun)

    held, written = {}, {}
    every = 24
    for megabytes in plan.states:
        model, times = model_of(megabytes), StepTimes()
        with tempfile.TemporaryDirectory() as folder:
            backup = Written(os.path.join(folder, "backup"), save_freq=every)
            backup.seconds, backup.written = [], []
            data = data_for(model, (plan.saves + 1) * every, 8)
            kfit.Trainer(model, "one_device").fit(
                **data, epochs=1, verbose=0, callbacks=[times, backup]
            )
        saves = range(1, plan.saves + 1)
        slower = [_excess(times.seconds[n * every : (n + 1) * every]) for n in saves]
        size = sum(v.numpy().nbytes for v in [*model.variables, *model.optimizer.variables]) / 1e6
        held[size] = statistics.median(
            hold + excess for hold, excess in zip(backup.seconds, slower, strict=False)
        )
        written[size] = statistics.median(backup.written)
    return held, written


def _excess(steps: Sequence[float]) -> float:
    """What the steps after a snapshot took longer than the later ones, while it was written."""
    half = len(steps) // 2
    usual = statistics.median(steps[half:])
    return max(0.0, sum(steps[:half]) - half * usual)
