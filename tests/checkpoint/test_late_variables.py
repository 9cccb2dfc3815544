"""Models with a `train_step` of their own: what only a step makes is restored with the rest."""

import hashlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore, RollBack
from kfit.checkpoint import SnapshotMismatchError, Store, fits
from tests.sweeps import only

layers = keras.layers
STEPS = 6


class CutError(Exception):
    """Ends a training as if its process were killed."""


class Cut(keras.callbacks.Callback):
    """Cuts training off after a number of steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise CutError


class Guide(keras.Model):
    """As in Keras' guide: one loss, one optimizer, and a tracker of its own."""

    def __init__(self) -> None:
        super().__init__(name="guide")
        self.dense = layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="seen")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def updated(self) -> Any:
        return self.trainable_variables

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        own = self.updated()
        self.optimizer.apply_gradients(zip(tape.gradient(loss, own), own, strict=True))
        self.tracker.update_state(loss)
        return {"loss": loss, "seen": self.tracker.result()}


class Gan(keras.Model):
    """Two parts, each with an optimizer of its own; no `call`."""

    def __init__(self, built: bool) -> None:
        super().__init__()
        first = [keras.Input((4,))] if built else []
        second = [keras.Input((3,))] if built else []
        self.generator = keras.Sequential([*first, layers.Dense(3)])
        self.discriminator = keras.Sequential([*second, layers.Dense(3), layers.Dense(1)])

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            d_loss = tf.reduce_mean(self.discriminator(self.generator(x)) ** 2)
        own = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, own), own)
        with tf.GradientTape() as tape:
            g_loss = tf.reduce_mean((self.discriminator(self.generator(x)) - 1) ** 2)
        own = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, own), own)
        return {"d_loss": d_loss, "g_loss": g_loss}


def guide(**options: Any) -> keras.Model:
    model = Guide()
    model.compile(keras.optimizers.Adam(0.05), "mse", **options)
    return model


def gan(built: bool = True) -> keras.Model:
    model = Gan(built)
    model.compile(keras.optimizers.Adam(0.05), keras.optimizers.Adam(0.02))
    return model


MODELS = {
    "guide": (guide, 1),
    "guide_eager": (lambda: guide(run_eagerly=True), 1),
    "gan": (gan, 1),
    "gan_not_built": (lambda: gan(built=False), 1),
    "guide_two_replicas": (guide, 2),
    "gan_two_replicas": (gan, 2),
}


def train(make: Any, strategy: Any, *callbacks: Any, validation_split: float = 0.0) -> str:
    """Trains a new model, as a new process does; returns the digest of all it ends with."""
    keras.utils.set_random_seed(3)
    model = make()
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(20, 4)).astype("float32"), draw.normal(size=(20, 3))
    trainer = kfit.Trainer(model, strategy, seed=1)
    options: Any = {"batch_size": 8, "epochs": 2, "verbose": 0}
    options["validation_split"] = validation_split
    history = trainer.fit(x, y, **options, callbacks=list(callbacks)).history
    optimizers = [model.optimizer, *(getattr(model, f"{n}_optimizer", None) for n in "dg")]
    values = [v for o in [model, *optimizers] if o is not None for v in o.variables]
    content = b"".join(np.asarray(v).tobytes() for v in values) + repr(history).encode()
    return hashlib.sha256(content).hexdigest()


class CutAt(keras.callbacks.Callback):
    """Cuts training off when a hook of an epoch is called."""

    def __init__(self, hook: str, epoch: int) -> None:
        super().__init__()
        self.now, self.hook, self.epoch = 0, hook, epoch

    def reached(self, hook: str) -> None:
        if (hook, self.now) == (self.hook, self.epoch):
            raise CutError

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.now = epoch
        self.reached("on_epoch_begin")

    def on_test_begin(self, logs: Any = None) -> None:
        self.reached("on_test_begin")

    def on_train_end(self, logs: Any = None) -> None:
        self.reached("on_train_end")


def averaged() -> keras.Model:
    model = Guide()
    model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5), "mse")
    return model


@pytest.mark.parametrize("save_freq", [1, pytest.param("epoch", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("hook", "epoch"),
    only(
        [("on_test_begin", 0)],
        [("on_test_begin", 0), ("on_epoch_begin", 1), ("on_test_begin", 1), ("on_train_end", 1)],
    ),
)
def test_hooks_before_the_next_step_may_need_them(
    tiny: Any, tmp_path: Any, hook: str, epoch: int, save_freq: Any
) -> None:
    """The averages are the optimizer's variables, which Keras' callback swaps with the weights."""

    def trained(*callbacks: Any) -> str:
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        return train(averaged, tiny.strategy(1), swap, *callbacks, validation_split=0.2)

    expected = trained()
    with pytest.raises(CutError):
        trained(BackupAndRestore(tmp_path, save_freq), CutAt(hook, epoch))
    assert trained(BackupAndRestore(tmp_path, save_freq)) == expected


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_it_ends_with_the_same_bits(tiny: Any, tmp_path: Any, kind: str) -> None:
    make, replicas = MODELS[kind]
    expected = train(make, tiny.strategy(replicas))
    for cut in range(2, STEPS):
        backup = BackupAndRestore(tmp_path / str(cut), save_freq=1)
        with pytest.raises(CutError):
            train(make, tiny.strategy(replicas), backup, Cut(cut))
        assert Store(str(tmp_path / str(cut))).names()
        assert train(make, tiny.strategy(replicas), backup) == expected, f"cut at {cut}"


@pytest.mark.long
def test_where_no_step_is_left_an_optimizer_without_slots_is_built(
    tiny: Any, tmp_path: Any
) -> None:
    """Only a step builds it; what comes after a `fit` that was finished may call it."""
    for _ in range(2):
        model = Guide()
        model.compile(keras.optimizers.SGD(0.05), "mse")
        backup = BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        trainer = kfit.Trainer(model, tiny.strategy(2), seed=1)
        fits.forget()  # as in a new process
        trainer.fit(np.ones((8, 4)), np.ones((8, 3)), epochs=1, verbose=0, callbacks=[backup])
        assert model.optimizer.built
        assert int(model.optimizer.iterations) == 1


def test_other_slots_are_named_before_the_first_step(tiny: Any, tmp_path: Any) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.raises(CutError):
        train(guide, tiny.strategy(1), backup, Cut(4))

    class Less(Guide):
        def updated(self) -> Any:
            return [self.dense.kernel]

    Less.__qualname__ = Guide.__qualname__  # the program has changed this class

    def less() -> keras.Model:
        model = Less()
        model.compile(keras.optimizers.Adam(0.05), "mse")
        return model

    with pytest.raises(SnapshotMismatchError, match=r"bias_momentum .* is only in the snapshot"):
        train(less, tiny.strategy(1), backup, Cut(1))


def test_going_back_to_before_the_first_step(tiny: Any) -> None:
    """The state before any step has no slots yet; going back to it makes them new."""

    seen: list[int] = []  # no attribute, which would go back as well

    class Poison(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)
            if seen.count(1) == 1 and batch == 1:
                self.model.dense.kernel.assign(self.model.dense.kernel * np.nan)

    expected = train(guide, tiny.strategy(1))
    with pytest.warns(UserWarning, match="going back to step 0"):
        found = train(guide, tiny.strategy(1), Poison(), RollBack(skip=False))
    assert found == expected


def endless() -> Any:
    """A generator of batches that differ."""
    draw = np.random.default_rng(0)
    while True:
        yield draw.normal(size=(4, 4)).astype("float32"), np.zeros((4, 3), "float32")


class Draws(keras.utils.PyDataset):
    """Batches that are drawn from NumPy's global generator."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.random.normal(size=(4, 4)).astype("float32"), np.zeros((4, 3), "float32")


def rows() -> Any:
    """A pipeline whose passes have other orders."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(12, 4)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, np.zeros((12, 3), "float32"))).shuffle(12, 1)


DATA = {
    "generator": lambda strategy: endless(),
    "py_dataset": lambda strategy: Draws(),
    "pipeline": lambda strategy: rows().batch(4),
    "distributed": lambda strategy: strategy.distribute_dataset(rows().batch(4)),
    "function": lambda strategy: lambda context: rows().batch(2).repeat(),
}


@pytest.mark.long
@pytest.mark.parametrize("replicas", [2, 1])
@pytest.mark.parametrize("data", DATA)
def test_making_them_takes_no_batch_of_the_next_fit(
    tiny: Any, tmp_path: Any, data: str, replicas: int
) -> None:
    def program(folder: Any, fails: bool) -> Any:
        fits.forget()  # as in a new process
        keras.utils.set_random_seed(3)
        trainer = kfit.Trainer(gan(), tiny.strategy(replicas), seed=1)
        x = DATA[data](trainer.strategy)
        options: Any = {"epochs": 1, "steps_per_epoch": 3, "verbose": 0}
        trainer.fit(x, **options, callbacks=[BackupAndRestore(folder / "1")])
        if fails:
            raise CutError
        return trainer.fit(x, **options, callbacks=[BackupAndRestore(folder / "2")]).history

    expected = program(tmp_path / "untouched", fails=False)
    with pytest.raises(CutError):
        program(tmp_path / "cut", fails=True)
    assert program(tmp_path / "cut", fails=False) == expected
