"""Ported from `guide/migrate/logging_stop_hook`: log every n steps, stop at a step.

The guide turns `LoggingTensorHook` and `StopAtStepHook` into Keras callbacks that look at the
number of the batch in `on_train_batch_end`.

Such callbacks work unchanged with kfit (here `StopAtStep`). Those that need not see every
step may be a `TrainingCallback`: it says how many steps it can wait, these run in one graph call,
and `on_due` is called after exactly this step, on all workers (here `LogEvery`). The logs are those
of all examples of the epoch so far, on all replicas.

python examples/ported/logging_stop_hook.py
"""

import keras

import kfit


class LogEvery(kfit.callbacks.TrainingCallback):  # kfit: keras.callbacks.Callback
    """Prints the loss after every 50 steps."""

    def steps_until_due(self) -> int:  # kfit: no hook for batches
        """Returns how many steps may be taken before `is_due` is asked."""
        return 50 - self.training.progress.step % 50

    def is_due(self) -> bool:
        """Returns whether to call `on_due` now."""
        return self.training.progress.step % 50 == 0

    def on_due(self) -> None:
        """Prints the loss of the epoch so far; only the chief does."""
        if self.training.is_chief:
            step, logs = self.training.progress.step, self.training.logs
            print(f"Step {step}: loss {logs['loss']:.6f}")


class StopAtStep(keras.callbacks.Callback):
    """Stops training after 210 steps, in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Called by Keras after each step."""
        if int(self.model.optimizer.iterations) == 210:
            self.model.stop_training = True


keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
trainer = kfit.Trainer(model)  # kfit: no scope
callbacks = [LogEvery(), StopAtStep()]
trainer.fit(x, y, 64, epochs=20, verbose=0, callbacks=callbacks)  # kfit: model.fit
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Stopped at step {int(model.optimizer.iterations)}")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
