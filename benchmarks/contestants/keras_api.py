"""kfit, Keras 3 and tf_keras: the same script except for the lines that create the trainer.

Usage: python -m benchmarks.contestants.keras_api LIBRARY WORK [STRATEGY]
LIBRARY is kfit, keras or tf_keras; WORK is import, first, fit, callback, evaluate, predict (of the
MLP), cnn, big, memmap, resnet, growth, a call of `_SHORT`, or big_memory and memmap_memory, which
measure memory; STRATEGY is one_device, mirrored (two devices of the
CPU), mirrored_4 (four) or multi_worker.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import sys
import time
from typing import Any

from benchmarks.contestants import work

LIBRARY, WORK, STRATEGY = (*sys.argv[1:], "one_device")[:3]
DEVICES = [f"CPU:{index}" for index in range({"mirrored": 2, "mirrored_4": 4}.get(STRATEGY, 1))]


def split_the_cpu() -> None:
    """Splits the CPU into the logical devices of the strategy."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in DEVICES]
    tf.config.set_logical_device_configuration(cpu, parts)


def imported() -> Any:
    """Imports the contestant's library, and returns the module of Keras that it uses."""
    if LIBRARY == "kfit":
        importlib.import_module("kfit.trainer")  # `import kfit` alone would not import it
    return importlib.import_module("tf_keras" if LIBRARY == "tf_keras" else "keras")


def trainer(name: str) -> Any:
    """The object with `fit`, `evaluate` and `predict`: a Keras model, or a Trainer of kfit."""
    keras = imported()
    if LIBRARY == "kfit":
        import kfit

        kfit.join_cluster()
        chosen = kfit.distribute.Mirrored(DEVICES) if len(DEVICES) > 1 else STRATEGY
        return kfit.Trainer(work.model(keras, name), chosen)
    import tensorflow as tf

    scope: Any = contextlib.nullcontext()
    if len(DEVICES) > 1:
        scope = tf.distribute.MirroredStrategy(DEVICES).scope()
    elif STRATEGY == "multi_worker":
        scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
    with scope:
        return work.model(keras, name)


class Watch:
    """The hook of a user's callback that is called after every batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps = getattr(self, "steps", 0) + 1


def callback(*hooks: type) -> Any:
    """A callback of the contestant's library, with the hooks of the given classes."""
    return type("Callback", (*hooks, imported().callbacks.Callback), {})()


def first_step() -> float:
    """Seconds from the call of `fit` to the end of its first step."""
    ended: list[float] = []

    class Note:
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ended.append(time.perf_counter())

    trains, (x, y) = trainer("mlp"), work.data("mlp")
    begun = time.perf_counter()
    trains.fit(x, y, batch_size=32, epochs=1, steps_per_epoch=3, callbacks=[callback(Note)])
    return ended[0] - begun


def start_of_resnet() -> float:
    """Processor seconds from the call of `fit` to its end, after one step of ResNet-50."""
    trains, (x, y) = trainer("resnet"), work.data("resnet")
    begun = time.process_time()
    trains.fit(x, y, batch_size=work.size_of("resnet").batch_size, verbose=0)
    return time.process_time() - begun


_SHORT = {
    "train_on_batch": lambda trains, x, y: trains.train_on_batch(x[:32], y[:32]),
    "test_on_batch": lambda trains, x, y: trains.test_on_batch(x[:32], y[:32]),
    "predict_on_batch": lambda trains, x, y: trains.predict_on_batch(x[:32]),
    "fit_1": lambda trains, x, y: trains.fit(x[:32], y[:32], verbose=0),
    "fit_10": lambda trains, x, y: trains.fit(x[:320], y[:320], verbose=0),
    "predict_1": lambda trains, x, y: trains.predict(x[:32], verbose=0),
    "evaluate_10": lambda trains, x, y: trains.evaluate(x[:320], y[:320], verbose=0),
}
"""Short calls on few batches of 32, as loops of a program's own and agents make them."""


def a_call() -> float:
    """The median of the seconds that a short call takes when it is not the first."""
    trains, (x, y) = trainer("mlp"), work.data("mlp")
    calls = [work.timed(lambda: _SHORT[WORK](trains, x, y)) for _ in range(work.CALLS)]
    return statistics.median(calls[work.CALLS // 5 :])


def large() -> tuple[Any, Any]:
    """2 GB of examples and their classes; the examples are in a file if WORK says so."""
    x, y = work.data("big")
    return (work.in_a_file(x) if WORK.startswith("memmap") else x), y


def over_the_data() -> float:
    """MB of the peak memory of an epoch, without the data's size and what was there before."""
    trains, size = trainer("big"), work.size_of("big")
    before = work.peak_memory()
    x, y = large()
    trains.fit(x, y, batch_size=size.batch_size, epochs=1)
    return work.peak_memory() - before - (x.nbytes + y.nbytes) / 2**20


def growth() -> float:
    """MB that a round of calls on one array adds to the peak memory, after a few to warm up."""
    trains, size, (x, y) = trainer("growth"), work.size_of("growth"), work.data("growth")
    peaks = []
    for _ in range(size.epochs):
        trains.fit(x, y, batch_size=size.batch_size, verbose=0)
        trains.evaluate(x, y, batch_size=size.batch_size, verbose=0)
        trains.predict(x, batch_size=size.batch_size, verbose=0)
        peaks.append(work.peak_memory())
    warm = size.epochs // 3
    return (peaks[-1] - peaks[warm - 1]) / (size.epochs - warm)


def a_step() -> float:
    """Seconds per step in the second call, since the first call traces the graphs."""
    name = {"memmap": "big"}.get(WORK, WORK if WORK in ("cnn", "big") else "mlp")
    size = work.size_of(name)
    trains, (x, y) = trainer(name), large() if name == "big" else work.data(name)

    def once(epochs: int) -> None:
        if WORK in ("fit", "callback", "cnn", "big", "memmap"):
            watching = [callback(Watch)] if WORK == "callback" else []
            trains.fit(x, y, batch_size=size.batch_size, epochs=epochs, callbacks=watching)
            return
        for _ in range(epochs):
            if WORK == "evaluate":
                trains.evaluate(x, y, batch_size=size.batch_size)
            else:
                trains.predict(x, batch_size=size.batch_size)

    once(1)
    return work.timed(lambda: once(size.epochs)) / size.epochs / size.steps


def main() -> None:
    """Does the work, and writes its time and memory."""
    if len(DEVICES) > 1:
        split_the_cpu()
    if WORK == "import":
        if LIBRARY == "kfit":
            importlib.import_module("keras")  # kfit needs Keras, which is measured separately
        work.tell(work.timed(imported))
    else:
        whole = {
            "first": first_step,
            "resnet": start_of_resnet,
            "big_memory": over_the_data,
            "memmap_memory": over_the_data,
            "growth": growth,
        }
        work.tell(whole.get(WORK, a_call if WORK in _SHORT else a_step)())


if __name__ == "__main__":
    main()
