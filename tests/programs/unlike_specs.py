"""train_and_evaluate with specs that are not the same on all tasks.

    unlike_specs.py FOLDER CASE...

A line `RESULT {...}` of each task says what each case raised, or how many steps and evaluations
there were.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kfit

FOLDER = Path(sys.argv[1])
TASK = json.loads(os.environ["TF_CONFIG"])["task"]
IS_ODD = TASK["type"] == "evaluator" or TASK["index"] == 1
CASES: dict[str, tuple[Any, Any]] = {
    "exporters": ({}, {"exporters": kfit.BestExporter(monitor="acuracy")}),
    "evaluators": ({}, {"evaluator": True}),
    "names": ({"exporters": kfit.BestExporter("a")}, {"exporters": kfit.BestExporter("b")}),
}
"""By name, what differs: on most tasks, and on worker 1 or the evaluator."""


def attempt(name: str) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    x, y = np.ones((40, 4), "float32"), np.arange(40) % 3
    try:
        outcome = kfit.train_and_evaluate(
            kfit.Trainer(model),
            kfit.TrainSpec(model_dir=FOLDER / name, x=x, y=y, batch_size=10, epochs=2, verbose=0),
            kfit.EvalSpec(x=x, y=y, verbose=0, **CASES[name][IS_ODD]),
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [int(model.optimizer.iterations), len(outcome.evaluations)]


def main() -> None:
    task = f"{TASK['type']} {TASK['index']}"
    told = {"task": task, **{name: attempt(name) for name in sys.argv[2:]}}
    print("RESULT", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
