"""Ported from `guide/migrate/saved_model`: a model to be served.

The guide moves from `SavedModelBuilder`, `simple_save` and `export_saved_model` of TensorFlow 1 to
`tf.saved_model.save` and Keras' `export`, with signatures that name inputs and outputs.

kfit changes nothing in these files: a trained model is an ordinary Keras model, whatever the
strategy was. Only the writing differs. On workers all tasks run the program, and `write_path` lets
the chief write, to a path that appears complete or not at all. `kfit.callbacks.Export` does the
same at the end of `fit`, for a model with the usual signature (`save_and_load.py`).

python examples/ported/saved_model.py --folder digits-served
"""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-served", help="where the SavedModel is written")
path = os.path.join(parser.parse_args().folder, "1")

keras.utils.set_random_seed(1)
(x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
trainer = kfit.Trainer(model)  # kfit: no scope
trainer.fit(x, y, 64, epochs=10, verbose=0)  # kfit: model.fit
loss, accuracy = trainer.evaluate(x_test, y_test, verbose=0)  # kfit: model.evaluate


def classify(pictures: tf.Tensor) -> dict:
    """Returns the digit that each picture shows, and the probability that it is this one."""
    probabilities = tf.nn.softmax(model(tf.cast(pictures, "float32")))
    return {"digit": tf.argmax(probabilities, 1), "probability": tf.reduce_max(probabilities, 1)}


with kfit.saving.write_path(path) as aside:  # kfit: the path, on the chief
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("classify", classify, [tf.TensorSpec((None, 8, 8), "uint8", "pictures")])
    archive.write_out(aside, verbose=False)
if trainer.is_chief:  # kfit: the file is there once the chief has left the block
    served = tf.saved_model.load(path).signatures["classify"]
    digits = served(pictures=tf.constant(x_test))["digit"].numpy()
    print(f"Served: {np.mean(digits == y_test):.2%} of the test pictures")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
