"""Ported from `guide/migrate/sessionrunhook_callback`: a hook that measures the speed.

The guide turns a `SessionRunHook` that times each `session.run` into a Keras callback with hooks
for batches, `on_train_batch_begin` and `on_train_batch_end`.

Such a callback works unchanged with kfit. Its hooks are called at every step, which costs speed:
without hooks for batches, many steps run in one graph call. `steps_per_execution` sets how many
steps lie between two calls, exactly as in Keras. On workers every task runs the callback; one that
is marked by `chief_only` runs, and here prints, only on the chief.
"""

import time

import keras

import kfit


class Speed(keras.callbacks.Callback):
    """Measures the time between the hooks of a batch, and prints the examples per second."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Forgets an earlier training."""
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Starts the clock."""
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops the clock."""
        self.seconds.append(time.perf_counter() - self.begun)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Prints what was measured after the first call, which traces the graph."""
        calls, steps = len(self.seconds), self.params["epochs"] * self.params["steps"]
        speed = 64 * steps / calls * (calls - 1) / sum(self.seconds[1:])
        print(f"{calls} calls for {steps} steps; {speed:,.0f} examples per second")


keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
speed = kfit.callbacks.chief_only(Speed())  # kfit: on workers, one of them measures and prints
trainer = kfit.Trainer(model)  # kfit: no scope
for steps in (1, 8):
    trainer.compile(  # kfit: model.compile
        keras.optimizers.SGD(0.2), loss, metrics=["accuracy"], steps_per_execution=steps
    )
    trainer.fit(x, y, 64, epochs=5, verbose=0, callbacks=[speed])  # kfit: model.fit
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
