"""A training with everything in it that has a memory, to be cut off and gone on with."""

import functools
import hashlib
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

EXAMPLES, BATCH_SIZE, EPOCHS = 50, 8, 4
STEPS = 7


class CutError(Exception):
    """Ends a training as if its process were killed: no hook comes after it."""


class Machine:
    """A trainer that begins anew as often as it is asked to, with its graphs traced once.

    Args:
        strategy: An adapter.
        data: Makes the data of one run.
        fit: Further arguments of `fit`.
    """

    def __init__(self, strategy: Any, data: Any = None, **fit: Any) -> None:
        import kfit

        self.model = _model()
        self.trainer = kfit.Trainer(self.model, strategy, seed=5)
        self._data = data or _arrays
        self._fit = {"epochs": EPOCHS, "verbose": 0, **fit}
        self._fresh: Any = None

    def run(self, callbacks: Any = (), **fit: Any) -> None:
        """Trains from the start, as a process that was just started does."""
        self._begin_anew()
        self.trainer._seeds.begin_anew()
        data = self._data()
        self.trainer.fit(**data, **{**self._fit, **fit}, callbacks=list(callbacks))

    @functools.cached_property
    def untouched(self) -> str:
        """The digest of a run that nobody cuts off, without callbacks."""
        self.run()
        return self.digest

    def cut_at(self, step: int, callbacks: Any, **fit: Any) -> None:
        """Trains until `step` steps of this run were taken."""
        with pytest.raises(CutError):
            self.run([*callbacks, _cutter(step)], **fit)

    @property
    def digest(self) -> str:
        """Of weights, optimizer and History, each to the last bit."""
        values = [v.numpy() for v in self.variables]
        history = {k: [float(x) for x in v] for k, v in self.trainer.history.history.items()}
        content = b"".join(v.tobytes() for v in values) + repr(history).encode()
        return hashlib.sha256(content).hexdigest()

    @property
    def variables(self) -> list[Any]:
        """The model's and the optimizer's variables."""
        return [*self.model.variables, *self.model.optimizer.variables]

    def _begin_anew(self) -> None:
        import keras

        from kfit.checkpoint import fits

        fits.forget()

        if self._fresh is None:
            self.model.optimizer.build(self.model.trainable_variables)
            self._fresh = [v.numpy().copy() for v in self.variables]
        for variable, value in zip(self.variables, self._fresh, strict=True):
            variable.assign(value)
        keras.utils.set_random_seed(3)


def _model() -> Any:
    import keras

    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Dense(6), layers.BatchNormalization()])
    model.add(layers.Dropout(0.3))
    model.add(layers.Dense(3))
    model.compile(
        keras.optimizers.Adam(0.02),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def data(examples: int = EXAMPLES) -> Any:
    """Features and labels."""
    draw = np.random.default_rng(0)
    return draw.normal(size=(examples, 4)).astype("float32"), draw.integers(0, 3, examples)


def _arrays() -> Any:
    x, y = data()
    return {"x": x, "y": y, "batch_size": BATCH_SIZE}


def _cutter(step: int) -> Any:
    import keras

    taken = itertools.count(1)  # of this run: no attribute, which would go on after a restart

    class Cutter(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if next(taken) == step:
                raise CutError

        def state_dict(self) -> None:
            """Has no state: it counts the steps of this run."""

        def load_state_dict(self, state: Any) -> None: ...

    return Cutter()


def with_memory(folder: Any) -> list[Any]:
    """Callbacks that remember something, or write files."""
    import keras

    import kfit

    callbacks = keras.callbacks
    return [
        callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        callbacks.CSVLogger(str(folder / "log.csv")),
        kfit.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
        ),
    ]


@pytest.fixture(scope="session")
def training() -> SimpleNamespace:
    """What the tests of the callbacks share."""
    return SimpleNamespace(
        Machine=Machine,
        data=data,
        with_memory=with_memory,
        cutter=_cutter,
        CutError=CutError,
        EXAMPLES=EXAMPLES,
        BATCH_SIZE=BATCH_SIZE,
        EPOCHS=EPOCHS,
        STEPS=STEPS,
    )
