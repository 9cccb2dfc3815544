"""That a hook has compiled the model, or set a schedule, is noticed, and when it was."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import pytest

import kfit
from kfit.training.compilation import Compilation
from tests.sweeps import only


def compiles(model: keras.Model) -> None:
    model.compile("sgd", "mse")


def sets_a_schedule(model: keras.Model) -> None:
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)


def sets_a_rate(model: keras.Model) -> None:
    model.optimizer.learning_rate = 0.01


@pytest.mark.parametrize(
    ("change", "hook"),
    only(
        [(compiles, "on_epoch_end"), (sets_a_schedule, "on_train_begin")],
        itertools.product(
            [compiles, sets_a_schedule, sets_a_rate], ["on_train_begin", "on_epoch_end"]
        ),
    ),
)
def test_a_change_is_noticed_with_its_place(
    tiny: Any, hook: str, change: Callable[[keras.Model], None]
) -> None:
    seen: list[Compilation] = []
    told: list[dict[str, bool]] = []

    class Changes(kfit.callbacks.TrainingCallback):
        def on_train_begin(self, logs: Any = None) -> None:
            seen.append(self.training.compilation)
            assert not seen[0].has_begun
            if hook == "on_train_begin":
                change(self.training.model)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            assert seen[0].has_begun
            if hook == "on_epoch_end" and epoch == 0:
                change(self.training.model)
            told.append(seen[0].described())

    x = tiny.data(20)[0]
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options: dict[str, Any] = {"batch_size": 10, "epochs": 2, "verbose": 0}
    kfit.Trainer(model).fit(x, x[:, :1], callbacks=[Changes()], **options)
    is_change = change is not sets_a_rate
    name = "compiled_at_begin" if hook == "on_train_begin" else "compiled_anew"
    assert told == 2 * [{name: True} if is_change else {}]
