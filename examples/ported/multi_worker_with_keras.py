"""Ported from `tutorials/distribute/multi_worker_with_keras`: `fit` on several workers.

The tutorial writes a `TF_CONFIG` for each worker, makes the strategy before any other operation of
TensorFlow and the model in its scope, trains on a `tf.data` pipeline that the workers share, and
gives each worker a folder of its own to save to. A worker that dies is started again by hand;
Keras' `BackupAndRestore` then begins the interrupted epoch again. (Keras 3 itself no longer trains
on several workers.)

With kfit `kfit run` describes the cluster and starts the workers again. The model is made anywhere,
only the chief writes, and training resumes at the step of the last snapshot. A batch of the
pipeline is a global batch, so two workers compute the numbers of one.

kfit run --workers 2 --max-restarts 3 examples/ported/multi_worker_with_keras.py
"""

import argparse
import os

import keras
import tensorflow as tf

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-multi-worker", help="folder of what is saved")
folder = parser.parse_args().folder
BATCH_SIZE = 64  # of all workers together

keras.utils.set_random_seed(1)
train, test = kfit.datasets.digits.load_data()
dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(2000).repeat().batch(BATCH_SIZE)
options = tf.data.Options()
policy = tf.data.experimental.AutoShardPolicy.DATA  # each worker takes its rows of each batch
options.experimental_distribute.auto_shard_policy = policy
dataset = dataset.with_options(options)

layers = keras.layers
model = keras.Sequential([keras.Input((8, 8)), layers.Rescaling(1 / 16)])
model.add(layers.Reshape((8, 8, 1)))
model.add(layers.Conv2D(16, 3, activation="relu"))
model.add(layers.Flatten())
model.add(layers.Dense(64, activation="relu"))
model.add(layers.Dense(10))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])

backup = kfit.callbacks.BackupAndRestore(  # kfit: keras.callbacks.BackupAndRestore
    os.path.join(folder, "backup"), save_freq=50
)
trainer = kfit.Trainer(model)  # kfit: no TF_CONFIG, no strategy, no scope
trainer.fit(dataset, epochs=8, steps_per_epoch=23, verbose=0, callbacks=[backup])  # kfit: model.fit
trainer.save(os.path.join(folder, "digits.keras"))  # kfit: model.save; the chief writes

loaded = keras.models.load_model(os.path.join(folder, "digits.keras"))
loss, accuracy = kfit.evaluate(loaded, *test, verbose=0)  # kfit: loaded.evaluate(*test, verbose=0)
if trainer.is_chief:  # kfit: every worker runs this program
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
