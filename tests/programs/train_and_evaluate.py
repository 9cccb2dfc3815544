"""The digits, on workers and an evaluator, of which some are killed.

python train_and_evaluate.py MODEL_DIR TASK:STEP[:STEP...] ...

`evaluator:20` kills the evaluator while it writes down what it found at step 20, `chief:35` the
chief when it has taken step 35; each the first time only.
"""

import os
import signal
import sys
from typing import Any

import keras

import kfit

MODEL_DIR, *KILLS = sys.argv[1:]


def kill_at(task: str, step: int) -> None:
    """Kills this process, if it is to be killed there and was not yet."""
    marker = f"{MODEL_DIR}/{task}-{step}-was-killed"
    if f"{task}:{step}" in KILLS and not os.path.exists(marker):
        with open(marker, "w"):
            os.kill(os.getpid(), signal.SIGKILL)


class KillChief(kfit.callbacks.TrainingCallback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.training.is_chief:
            kill_at("chief", self.training.progress.step)


class KillEvaluator(kfit.Exporter):
    def export(self, model: Any, directory: str, evaluation: dict[str, Any]) -> None:
        kill_at("evaluator", evaluation["step"])


def make_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8)), layers.Rescaling(1 / 16), layers.Flatten()])
    model.add(layers.Dense(32, activation="relu"))
    model.add(layers.Dropout(0.3))
    model.add(layers.Dense(10))
    return model


def main() -> None:
    trainer = kfit.Trainer(make_model(), "multi_worker")
    trainer.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    outcome = kfit.train_and_evaluate(
        trainer,
        kfit.TrainSpec(
            model_dir=MODEL_DIR,
            input_fn=lambda: kfit.datasets.digits.load_data()[0],
            batch_size=128,
            max_steps=60,
            save_freq=10,
            keep=100,
            verbose=0,
            callbacks=[KillChief()] if any(kill.startswith("chief") for kill in KILLS) else [],
        ),
        kfit.EvalSpec(
            input_fn=lambda: kfit.datasets.digits.load_data()[1],
            batch_size=128,
            exporters=[kfit.BestExporter(monitor="accuracy"), KillEvaluator()],
        ),
    )
    print(f"{len(outcome.evaluations)} evaluations, chief: {trainer.is_chief}")


if __name__ == "__main__":
    main()
