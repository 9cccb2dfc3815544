"""Ported from `tutorials/distribute/keras`: `fit` on all devices of one host.

The tutorial makes and compiles a model in the scope of a `MirroredStrategy`, multiplies the batch
size by the number of replicas, and trains with callbacks: TensorBoard, checkpoints, a schedule of
the learning rate. It then loads the best checkpoint, evaluates it, and saves the model.

With kfit no scope is needed, neither to train nor to load. The batch size is that of all replicas
together and stays as it is. Two devices compute the numbers of one, also if the last batch is
short. On workers only the chief writes files and runs callbacks that are marked by `chief_only`.

python examples/ported/distributed_keras.py --folder digits-keras
"""

import argparse
import os

import keras

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-keras", help="where logs and models are written")
folder = parser.parse_args().folder


def rate_of(epoch: int) -> float:
    """The learning rate of an epoch: it falls in three steps."""
    return 0.2 if epoch < 4 else 0.1 if epoch < 7 else 0.02


class ShowRate(keras.callbacks.Callback):
    """Prints the learning rate after each epoch."""

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Called by Keras after each epoch."""
        print(f"Epoch {epoch + 1}: learning rate {float(self.model.optimizer.learning_rate):.3f}")


keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(momentum=0.9), loss, metrics=["accuracy"])

best = os.path.join(folder, "best.keras")
callbacks = [
    keras.callbacks.TensorBoard(os.path.join(folder, "logs")),
    keras.callbacks.ModelCheckpoint(best, monitor="val_loss", save_best_only=True),
    keras.callbacks.LearningRateScheduler(rate_of),
    kfit.callbacks.chief_only(ShowRate()),  # kfit: on workers, one of them prints
]
trainer = kfit.Trainer(model)  # kfit: the strategy that fits the machine or the cluster
trainer.fit(x, y, 64, epochs=8, verbose=0, validation_data=test, callbacks=callbacks)  # kfit: model
loaded = keras.models.load_model(best)
loss, accuracy = kfit.evaluate(loaded, *test, verbose=0)  # kfit: loaded.evaluate(*test, verbose=0)
trainer.save(os.path.join(folder, "last.keras"))  # kfit: model.save; the chief writes
if trainer.is_chief:  # kfit: every worker runs this program
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
