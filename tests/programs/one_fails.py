"""A hook fails on the chief alone, in one place after the other; the processes live on.

A line `RESULT {...}` of each task says what each `fit` raised, and what the last one, in which
nothing fails, has trained.
"""

import json
import os
from typing import Any

import keras
import numpy as np

import kfit

TASK = json.loads(os.environ["TF_CONFIG"])["task"]
HOOKS = ("train_begin", "epoch_begin", "train_batch_end", "test_end", "epoch_end", "train_end")


class Fails(keras.callbacks.Callback):
    """Raises in one hook of the second epoch, or in one that there is once; on the chief."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self._calls = 0
        if TASK["index"] == 0:
            setattr(self, f"on_{hook}", self._fail if hook.startswith("train_") else self._later)

    def _fail(self, *arguments: Any, **named: Any) -> None:
        raise OSError("no space left")

    def _later(self, *arguments: Any, **named: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self._fail()


class FailsToSave(kfit.callbacks.SaveModel):
    """As where the disk is full."""

    def _write(self) -> None:
        raise OSError("no space left")


def attempt(*callbacks: keras.callbacks.Callback) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(160, dtype="float32").reshape(40, 4) / 160
    data = {"x": x, "y": x.sum(1), "validation_data": (x, x.sum(1))}
    try:
        kfit.fit(model, **data, batch_size=10, epochs=3, verbose=0, callbacks=list(callbacks))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return model.get_weights()[0].ravel().tolist()


def attempt_to_save() -> str:
    """Saves a model in a folder that is a file."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    try:
        kfit.Trainer(model).save(os.path.join(__file__, "model.keras"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def main() -> None:
    told: dict[str, Any] = {"task": TASK["index"]}
    told.update((hook, attempt(Fails(hook))) for hook in HOOKS)
    told["save"] = attempt(FailsToSave("model.keras"))
    told["none"] = attempt()
    told["trainer.save"] = attempt_to_save()
    print("RESULT", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
