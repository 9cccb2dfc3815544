"""Ported from `guide/migrate/evaluator`: a task of its own evaluates the checkpoints.

The guide moves from `tf.estimator.train_and_evaluate`, in which an evaluator watches the folder of
the checkpoints, to a `SidecarEvaluator` in a program of its own, and to `fit` that validates
between its epochs. The sidecar does not know when training is over unless it is told how many
evaluations there will be, and Keras 3 does not have it.

With kfit it is one program and one call. With `--evaluator` the last task evaluates every
checkpoint once, while the others train; else the tasks that train do it, between their steps. The
files and the numbers are the same. The evaluator ends after the last checkpoint.

python examples/ported/evaluator.py
kfit run --workers 2 --evaluator examples/ported/evaluator.py
"""

import argparse

import keras

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-evaluator", help="checkpoints and evaluations")
folder = parser.parse_args().folder

keras.utils.set_random_seed(1)
(x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])

train_spec = kfit.TrainSpec(  # kfit: the arguments of `fit`, and when to write checkpoints
    model_dir=folder, x=x, y=y, batch_size=64, epochs=9, save_freq=72, verbose=0
)
eval_spec = kfit.EvalSpec(x=x_test, y=y_test, verbose=0)  # kfit: those of `evaluate`
outcome = kfit.train_and_evaluate(kfit.Trainer(model), train_spec, eval_spec)  # kfit: model.fit
for evaluation in outcome.evaluations:  # kfit: on the task that has evaluated
    loss, accuracy = evaluation["metrics"]["loss"], evaluation["metrics"]["accuracy"]
    print(f"Step {evaluation['step']}: loss {loss:.6f}, accuracy {accuracy:.2%}")
if outcome.evaluations:  # kfit: this task, and no other, prints
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
