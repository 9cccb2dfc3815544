"""Ported from `guide/migrate/migrating_estimator`: `train_and_evaluate` without an estimator.

The guide replaces a `model_fn` by a Keras model, and `train`, `evaluate` and `train_and_evaluate`
by `fit` and `evaluate`. What the last of these did beyond `fit` is lost: a folder in which the
training lives and resumes, an evaluation of each checkpoint, exporters, an end after `max_steps`.

kfit has this workflow for Keras models: `TrainSpec` and `EvalSpec` take the input functions, and a
`BestExporter` keeps the best model. Started again, the program continues where it was; here it is
run to step 120 and then to step 240.
"""

import argparse
import os

import keras
import tensorflow as tf

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-estimator", help="the `model_dir`")
folder = parser.parse_args().folder
train, test = kfit.datasets.digits.load_data()


def train_input_fn() -> tf.data.Dataset:
    """The data to train on, in global batches; an endless data set needs `steps_per_epoch`."""
    return tf.data.Dataset.from_tensor_slices(train).shuffle(2000, seed=1).batch(64)


def eval_input_fn() -> tf.data.Dataset:
    """The data to evaluate on, in global batches."""
    return tf.data.Dataset.from_tensor_slices(test).batch(64)


def train_and_evaluate(max_steps: int, best: kfit.BestExporter) -> kfit.Trainer:
    """Trains a model up to that step of all runs, and evaluates it at every 60th step."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
    trainer = kfit.Trainer(model)  # kfit: tf.estimator.Estimator(model_fn, model_dir, config)
    train_spec = kfit.TrainSpec(  # kfit: tf.estimator.TrainSpec
        model_dir=folder, input_fn=train_input_fn, max_steps=max_steps, save_freq=60, verbose=0
    )
    eval_spec = kfit.EvalSpec(input_fn=eval_input_fn, exporters=best)  # kfit: tf.estimator.EvalSpec
    kfit.train_and_evaluate(trainer, train_spec, eval_spec)  # kfit: in Keras two calls of `fit`
    return trainer


train_and_evaluate(120, kfit.BestExporter())  # kfit: keeps the best model
trainer = train_and_evaluate(240, kfit.BestExporter())  # kfit: resumes at step 120
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Best model: {os.listdir(os.path.join(folder, 'export'))}")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
