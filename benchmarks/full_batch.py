"""Measures what exactness costs on full batches: kfit's step against a plain `strategy.run` loop.

python -m benchmarks.full_batch            two models, several rounds; needs an otherwise idle host
python -m benchmarks.full_batch --quick    little work, to test the benchmark; its figures mean
                                           nothing

Both train the same Keras model with the same optimizer, metrics and batches on two mirrored CPU
replicas, with many steps in one graph call. The plain loop is hand-written: `strategy.run` of the
model's own `train_step` within a `tf.while_loop`. kfit's loop is the execution that `fit` calls.
They run alternately, so that other load on the host affects both alike.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.contestants.work import model

REPLICAS = 2


class Setting(NamedTuple):
    """A model and its global batches.

    Attributes:
        name: Its name in the output.
        build: Gets the keras module; returns a compiled model.
        shape: Shape of an example.
        batch_size: The global batch size.
        steps: Steps that one graph call takes.
    """

    name: str
    build: Callable[[Any], Any]
    shape: tuple[int, ...]
    batch_size: int
    steps: int


SETTINGS = [
    Setting("MLP 64-128-10, Adam, batch 32", partial(model, work="mlp"), (64,), 32, 2000),
    Setting(
        "CNN 28x28-conv32-128-10, SGD, batch 128", partial(model, work="cnn"), (28, 28, 1), 128, 40
    ),
]


def plain_loop(model: Any, strategy: Any, batch_size: int) -> Callable[[Any, Any], Any]:
    """A graph function that takes `steps` steps as Keras does, and returns the metrics."""
    import tensorflow as tf

    own = batch_size // REPLICAS

    def on_replica(element: Any) -> None:
        first = own * tf.distribute.get_replica_context().replica_id_in_sync_group
        model.train_step(tuple(part[first : first + own] for part in element))

    @tf.function(autograph=False)
    def run(iterator: Any, steps: Any) -> Any:
        def body(done: Any) -> Any:
            strategy.run(on_replica, (next(iterator),))
            return done + 1

        tf.while_loop(lambda done: done < steps, body, (tf.constant(0, tf.int64),))
        return model.get_metrics_result()

    return run


def seconds_a_step(setting: Setting, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds per step of kfit and of the plain loop, one value of each per round."""
    import keras
    import numpy as np
    import tensorflow as tf

    import kfit
    from kfit.inputs import as_batches

    strategy = kfit.distribute.Mirrored([f"CPU:{i}" for i in range(REPLICAS)])
    draw = np.random.default_rng(0)
    x = draw.normal(size=(8 * setting.batch_size, *setting.shape)).astype("float32")
    y = draw.integers(0, 10, len(x))

    def batches() -> Any:
        return as_batches(x, y, strategy=strategy, batch_size=setting.batch_size, steps=8)

    trainer = kfit.Trainer(setting.build(keras), strategy)
    with strategy.scope():
        plain_model = setting.build(keras)
        plain_model.optimizer.build(plain_model.trainable_variables)
        plain_model.evaluate(x[: setting.batch_size], y[: setting.batch_size], verbose=0)
    plain = plain_loop(plain_model, strategy.tf_strategy, setting.batch_size)
    of_kfit, of_plain = batches(), batches()

    # These attributes are private; with public ones the hooks of `fit` would be measured as well.
    with trainer._ready.working(of_kfit, "train"):
        segment = next(of_kfit.segments(0))
        execution = trainer._ready.graphs.execution("train_step")
        stream = next(of_plain.segments(0)).iterator

        def take_kfit() -> Any:
            return execution.run(segment, steps).logs["loss"].numpy()

        def take_plain() -> Any:
            with strategy.scope():
                return plain(stream, tf.constant(steps, tf.int64))["loss"].numpy()

        takers = [take_kfit, take_plain]
        times: dict[Any, list[float]] = {taker: [] for taker in takers}
        for turn in range(rounds + 1):
            for taker in takers if turn % 2 else reversed(takers):
                begun = time.perf_counter()
                taker()
                times[taker].append((time.perf_counter() - begun) / steps)
    return times[take_kfit][1:], times[take_plain][1:]  # the first round traces


def main() -> None:
    """Prints medians, their spread (quartiles) and the ratio for each setting."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    quick = "--quick" in sys.argv[1:]
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * REPLICAS)
    for setting in SETTINGS:
        rounds, steps = (2, 2) if quick else (20, setting.steps)
        load = os.getloadavg()[0]
        kfit_times, plain_times = seconds_a_step(setting, rounds, steps)
        ratios = [a / b for a, b in zip(kfit_times, plain_times, strict=True)]
        print(f"{setting.name}: {rounds} rounds of {steps} steps, load before {load:.2f}")
        for name, times in (("kfit", kfit_times), ("plain", plain_times)):
            print(f"  {name:6}{_spread([1e6 * t for t in times])} µs a step")
        print(
            f"  ratio {_spread(ratios, 3)}, of the medians "
            f"{statistics.median(kfit_times) / statistics.median(plain_times):.3f}",
            flush=True,
        )


def _spread(values: list[float], digits: int = 0) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
