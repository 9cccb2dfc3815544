"""Trains on the workers and evaluates in a separate task, as `tf.estimator.train_and_evaluate` did.

python examples/train_and_evaluate.py                                 one process does both
kfit run --workers 2 --evaluator examples/train_and_evaluate.py       two workers and an evaluator

You can kill any task and run it again: it resumes, and no checkpoint is evaluated twice.
"""

import argparse

import keras

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--model-dir", default="digits-job", help="folder of this training")
parser.add_argument("--max-steps", type=int, default=300)
options = parser.parse_args()


def training_data():  # called only on tasks that train
    """The digits to train on."""
    return kfit.datasets.digits.load_data()[0]


def test_data():  # called only on the task that evaluates
    """The digits to evaluate on."""
    return kfit.datasets.digits.load_data()[1]


keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential([keras.Input((8, 8)), layers.Rescaling(1 / 16), layers.Flatten()])
model.add(layers.Dense(128, activation="relu"))
model.add(layers.Dropout(0.3))
model.add(layers.Dense(10))
trainer = kfit.Trainer(model)
trainer.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
best = kfit.BestExporter(monitor="accuracy")
outcome = kfit.train_and_evaluate(
    trainer,
    kfit.TrainSpec(
        model_dir=options.model_dir,
        input_fn=training_data,
        batch_size=64,
        max_steps=options.max_steps,
        save_freq=75,
        verbose=2,
    ),
    kfit.EvalSpec(input_fn=test_data, exporters=best),
)
if outcome.evaluations:
    print(f"Best accuracy: {best.best:.2%}, at step {best.best_step}")
