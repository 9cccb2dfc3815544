"""Ported from `tutorials/distribute/save_and_load`: files that know nothing of the strategy.

The tutorial trains in the scope of a `MirroredStrategy`, saves the model as a Keras file and as a
SavedModel, and loads both: without a strategy, in the scope of another one, and to train further.
A SavedModel that is loaded by the low-level API predicts, but trains only with code of one's own.

With kfit a model has ordinary variables before and after each call. So it is saved and loaded as in
plain Keras, never in a scope, and the loaded model trains further on any strategy, with the state
of its optimizer. On workers only the chief writes; a file appears complete, and before any worker
leaves the call that writes it.

python examples/ported/save_and_load.py --folder digits-saved
"""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-saved", help="where the models are written")
folder = parser.parse_args().folder

keras.utils.set_random_seed(1)
(x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])

trainer = kfit.Trainer(model)  # kfit: no scope
trainer.fit(x, y, 64, epochs=4, verbose=0)  # kfit: model.fit
trainer.save(os.path.join(folder, "digits.keras"))  # kfit: model.save; the chief writes
before = trainer.evaluate(x_test, y_test, verbose=0)  # kfit: model.evaluate

loaded = keras.models.load_model(os.path.join(folder, "digits.keras"))
assert loaded.optimizer.iterations == model.optimizer.iterations
again = kfit.Trainer(loaded)  # kfit: no scope
same = np.allclose(before, again.evaluate(x_test, y_test, verbose=0), rtol=1e-6)  # kfit: loaded
serving = os.path.join(folder, "serving")
export = kfit.callbacks.Export(serving)  # kfit: loaded.export(serving) after `fit`, by the chief
again.fit(x, y, 64, epochs=8, initial_epoch=4, verbose=0, callbacks=[export])  # kfit: loaded.fit

served = tf.saved_model.load(serving)  # plain TensorFlow, without Keras or kfit
logits = served.serve(x_test.astype("float32")).numpy()
accuracy = np.mean(logits.argmax(axis=1) == y_test)
loss, _ = again.evaluate(x_test, y_test, verbose=0)  # kfit: loaded.evaluate
if trainer.is_chief:  # kfit: every worker runs this program
    print(f"The loaded model is the saved one: {same}")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
