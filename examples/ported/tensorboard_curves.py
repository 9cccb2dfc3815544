"""Ported from `guide/migrate/tensorboard`: the curves of a training in TensorBoard.

The guide moves from an Estimator, which writes summaries by itself, to Keras' `TensorBoard`, with
histograms of the weights after each epoch. The callback writes on every task that has it.

kfit's `TensorBoard` takes the same arguments and writes the same curves. On workers only the chief
writes. The curves of steps (`update_freq`) do not need hooks for batches, so many steps still run
in one graph call, and a restart writes no point twice. (Keras' own callback works too.)

python examples/ported/tensorboard_curves.py --folder logs && tensorboard --logdir logs
"""

import argparse
import os

import keras
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-tensorboard", help="where the curves are written")
folder = parser.parse_args().folder

keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])

board = kfit.callbacks.TensorBoard(  # kfit: keras.callbacks.TensorBoard
    folder, histogram_freq=1, update_freq=10
)
trainer = kfit.Trainer(model)  # kfit: no scope
trainer.fit(  # kfit: model.fit
    x, y, 64, epochs=8, validation_data=test, verbose=0, callbacks=[board]
)
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    for run in ("train", "validation"):
        written = EventAccumulator(os.path.join(folder, run), {"tensors": 0}).Reload()
        curves = {tag: len(written.Tensors(tag)) for tag in written.Tags()["tensors"]}
        print(f"{run}: {curves.get('epoch_loss')} epochs, {curves.get('batch_loss', 0)} in between")
        print(f"{run}: {', '.join(sorted(curves))}")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
