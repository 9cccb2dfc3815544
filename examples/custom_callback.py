"""A custom Keras callback, which works unchanged on any number of replicas.

python examples/custom_callback.py
kfit run --workers 2 examples/custom_callback.py
"""

import keras
import numpy as np

import kfit


class StopAtAccuracy(keras.callbacks.Callback):
    """Records the learning rate and the largest weight after each epoch; stops at a target.

    It contains no code for kfit or for replicas. Every worker runs it with the same logs and the
    same weights. If only one worker set `stop_training`, all would still stop at the same step.
    """

    def __init__(self, target: float) -> None:
        super().__init__()
        self.target = target
        self.notes: list[str] = []

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Called by Keras with the logs of the epoch."""
        accuracy = (logs or {})["val_accuracy"]
        rate = float(self.model.optimizer.learning_rate)
        largest = max(float(np.abs(weight).max()) for weight in self.model.get_weights())
        self.notes.append(
            f"Epoch {epoch + 1}: learning rate {rate:.5f}, "
            f"largest weight {largest:.4f}, validation accuracy {accuracy:.2%}"
        )
        if accuracy >= self.target:
            self.model.stop_training = True


def main() -> None:
    """Trains until the target is reached."""
    keras.utils.set_random_seed(1)
    (x, y), test = kfit.datasets.digits.load_data()
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])

    decay = keras.optimizers.schedules.ExponentialDecay(5e-3, decay_steps=24, decay_rate=0.9)
    trainer = kfit.Trainer(model)
    trainer.compile(
        optimizer=keras.optimizers.Adam(decay),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callback = StopAtAccuracy(target=0.93)
    trainer.fit(x, y, 64, epochs=50, verbose=0, validation_data=test, callbacks=[callback])
    if trainer.is_chief:
        print(*callback.notes, sep="\n")


if __name__ == "__main__":
    main()
