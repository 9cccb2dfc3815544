"""Ported from `guide/migrate/early_stopping`: training ends when it no longer helps.

The guide moves from an early stopping hook of `Estimator` to Keras' `EarlyStopping`, to a callback
of one's own, and to a rule in a loop by hand.

Both callbacks work unchanged with kfit: the logs they see are those of all examples on all
replicas, and equal on all workers, so that all of them stop after the same epoch. This holds even
if a callback stops on one worker only, where the others of a loop by hand would wait for ever.
"""

import keras

import kfit


class StopAtLoss(keras.callbacks.Callback):
    """Stops training when the loss of the validation data is low enough."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self.target = target

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Called by Keras with the logs of the epoch."""
        if logs["val_loss"] < self.target:
            self.model.stop_training = True


def epochs_until_stopped(callback: keras.callbacks.Callback) -> tuple[int, kfit.Trainer]:
    """Trains a new model; returns the number of epochs and the trainer."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    trainer = kfit.Trainer(model)  # kfit: no hook, no loop, no scope
    options = {"epochs": 60, "verbose": 0, "validation_data": test, "callbacks": [callback]}
    return len(trainer.fit(x, y, 64, **options).epoch), trainer  # kfit: model.fit


(x, y), test = kfit.datasets.digits.load_data()
at_target, _ = epochs_until_stopped(StopAtLoss(0.3))
early = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
at_best, trainer = epochs_until_stopped(early)
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Stopped after {at_target} epochs by the target, after {at_best} by EarlyStopping")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
