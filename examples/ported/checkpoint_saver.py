"""Ported from `guide/migrate/checkpoint_saver`: a file after every so many steps.

The guide moves from `CheckpointSaverHook` to Keras' `ModelCheckpoint`, whose integer `save_freq`
counts batches; it asks for a hook after every step.

kfit's `ModelCheckpoint` saves at exactly these steps too, but has no hook for batches: the steps
in between run in one graph call. It can delete old files, only the chief writes, and a file appears
complete or not at all. These files are models to use. To resume training use `BackupAndRestore`,
which also saves the place in the data and the random numbers (`fault_tolerance.py`).

python examples/ported/checkpoint_saver.py --folder digits-checkpoints
"""

import argparse
import os

import keras

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-checkpoints", help="where the models are written")
folder = parser.parse_args().folder

keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])

saver = kfit.callbacks.ModelCheckpoint(  # kfit: keras.callbacks.ModelCheckpoint
    os.path.join(folder, "step-{step:04d}.keras"),  # kfit: Keras has no field `step`
    save_freq=50,
    max_to_keep=3,  # kfit: Keras keeps all
)
trainer = kfit.Trainer(model)  # kfit: no scope
trainer.fit(x, y, 64, epochs=10, verbose=0, callbacks=[saver])  # kfit: model.fit
saved = sorted(os.listdir(folder))
newest = keras.models.load_model(os.path.join(folder, saved[-1]))
loss, accuracy = kfit.evaluate(newest, *test, verbose=0)  # kfit: newest.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Saved: {', '.join(saved)}; the newest after {int(newest.optimizer.iterations)} steps")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
