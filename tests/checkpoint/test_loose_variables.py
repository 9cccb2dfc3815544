"""Variables that Keras does not list are saved, wherever a program keeps them."""

import functools
import time
import types
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint.loose_variables import loose_variables
from kfit.checkpoint.state import entries
from tests.sweeps import only


class CutError(Exception):
    """Ends a training as a kill would."""


class Noise(keras.layers.Layer):
    """Draws from generators of TensorFlow's and Keras', and counts in plain variables."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)
        self.calls = tf.Variable(0.0, trainable=False)
        self.table = {"sums": [tf.Variable([0.0, 0.0], trainable=False)]}
        self.held = Held()
        self.space = types.SimpleNamespace(turn=tf.Variable(0.0, trainable=False))
        self.average = tf.train.ExponentialMovingAverage(0.9)
        self.average.apply([self.calls])
        self.slots = Slots(tf.Variable(0.0, trainable=False))

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        self.table["sums"][0].assign_add([1.0, 2.0])
        self.space.turn.assign_add(0.1)
        self.slots.turn.assign_add(0.2)
        self.average.apply([self.calls])
        drawn = self.generator.normal(tf.shape(x)) + self.held.draw(tf.shape(x))
        turns = self.space.turn + self.slots.turn + self.average.average(self.calls)
        return x + 0.01 * drawn * self.calls + 0.001 * turns * self.table["sums"][0][1]


@dataclass(slots=True)
class Slots:
    turn: tf.Variable


class Held:
    """An object of the program's own."""

    def __init__(self) -> None:
        self.seeds = keras.random.SeedGenerator(5)

    def draw(self, shape: Any) -> Any:
        return keras.random.normal(shape, seed=self.seeds)


class Loss(keras.Loss):
    """Grows with the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(1.0, trainable=False)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.scale.assign(self.scale * 1.1)
        return self.scale * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)


def closed_over() -> Any:
    turn = tf.Variable(0.0, trainable=False)

    def scaled(x: Any) -> Any:
        turn.assign_add(0.1)
        return x * (1.0 + turn)

    return scaled


class Program:
    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        layers = [Noise(), keras.layers.Lambda(closed_over()), keras.layers.Dense(1)]
        self.model = keras.Sequential([keras.Input((2,)), *layers])
        self.model.compile(keras.optimizers.SGD(0.01), Loss())
        self.trainer = kfit.Trainer(self.model, "one_device", seed=1)
        draw = np.random.default_rng(0)
        self.x, self.y = draw.normal(size=(24, 2)), draw.normal(size=(24, 1))
        self.fresh = self.values()

    def values(self) -> list[Any]:
        return [entry.variable.numpy().copy() for entry in entries(self.model)]

    def run(self, *callbacks: Any) -> list[Any]:
        for entry, value in zip(entries(self.model), self.fresh, strict=True):
            entry.variable.assign(value)
        self.trainer._seeds.begin_anew()
        self.trainer.fit(
            self.x, self.y, batch_size=4, epochs=2, verbose=0, callbacks=list(callbacks)
        )
        return self.values()


@pytest.mark.parametrize("cut", only([7], [2, 7, 11]))
def test_they_go_on_with_the_same_bits(tmp_path: Any, cut: int) -> None:
    program = Program()
    names = [entry.name for entry in entries(program.model)]
    for expected in (
        "noise/generator/state",
        "noise/calls",
        "noise/table/sums/0",
        "noise/held/seeds/state",
    ):
        assert expected in names, names
    assert [name for name in names if name.startswith("lambda/function/")]
    assert [name for name in names if name.endswith("/scale")]
    expected_values = program.run()
    assert not np.array_equal(expected_values[0], program.fresh[0])
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    left = iter(range(cut, 0, -1))

    def stop(batch: int, logs: Any) -> None:
        if next(left) == 1:
            raise CutError

    cutter = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with pytest.raises(CutError):
        program.run(cutter, backup)
    assert all(map(np.array_equal, program.run(backup), expected_values))


def test_what_counts_inside_of_the_graph_is_told(tmp_path: Any) -> None:
    class Draws(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x + tf.random.normal(tf.shape(x), seed=1)

    model = keras.Sequential([keras.Input((2,)), Draws(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = kfit.Trainer(model, "one_device")
    x, y = np.zeros((8, 2)), np.zeros((8, 1))
    trainer.fit(x, y, verbose=0)  # nothing is saved, so nothing can be lost
    for folder in ("first", "again"):
        with pytest.warns(UserWarning, match="step draws by TensorFlow's RandomStandardNormal"):
            trainer.fit(x, y, verbose=0, callbacks=[BackupAndRestore(tmp_path / folder)])


class Rare(keras.layers.Layer):
    """Counts in a table what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        self.fixed = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([0], [1.0], tf.int64, tf.float32), 0.0
        )

    def call(self, x: Any) -> Any:
        keys = tf.cast(x[:, 0], tf.int64)
        seen = self.table.lookup(keys) + self.fixed.lookup(keys)
        with tf.control_dependencies([self.table.insert(keys, seen + 1.0)]):
            return x * tf.ensure_shape(tf.reshape(seen, [-1, 1]), [None, 1])


class ReadsMore(keras.Sequential):
    """Takes a batch of other data in each step."""

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.others = iter(tf.data.Dataset.range(3).repeat())

    def train_step(self, data: Any) -> Any:
        scale = tf.cast(next(self.others), tf.float32)
        return super().train_step((data[0] * scale, data[1]))


QUEUE: Any = None


def queued(y: Any, p: Any) -> Any:
    QUEUE.enqueue(tf.reduce_mean(p))
    return tf.reduce_mean(tf.square(y - p), axis=-1) * QUEUE.dequeue()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda layers: ReadsMore(layers), r"ReadsMore\.others \(by IteratorGetNext"),
        (lambda layers: keras.Sequential([*layers, Rare()]), r"Rare\.table \(by LookupTableIns"),
        (keras.Sequential, r"QUEUE \(by QueueEnqueueV2\)"),
    ],
)
def test_what_a_step_changes_that_is_no_variable_is_told(
    tmp_path: Any, make: Any, told: str
) -> None:
    global QUEUE
    QUEUE = tf.queue.FIFOQueue(4, [tf.float32], [[]])
    model = make([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", queued if "QUEUE" in told else "mse")
    trainer = kfit.Trainer(model, "one_device")
    with pytest.warns(UserWarning, match=f"step changes {told}.* no variable and is not saved"):
        trainer.fit(
            np.zeros((8, 2)),
            np.zeros((8, 1)),
            batch_size=4,
            verbose=0,
            callbacks=[BackupAndRestore(tmp_path)],
        )


@pytest.mark.long
def test_a_vocabulary_costs_a_save_next_to_nothing() -> None:
    """Each word used to be looked at three times in each save; a ratio, for slow machines."""
    words = [f"word {n}" for n in range(20_000)]
    layer = keras.layers.Lambda(lambda x: x)
    layer.words, layer.places = words, {word: (n, [word]) for n, word in enumerate(words)}
    layer.itself = [layer.words, {}]
    layer.itself[1]["again"] = layer.itself
    layer.late = [words[0], {"held": [tf.Variable(1.0)]}]
    model = keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1)])
    entries(model)
    begun = time.process_time()
    names = [entry.name for entry in entries(model)]
    took = time.process_time() - begun
    begun = time.process_time()
    for _ in range(10):
        [isinstance(word, (str, int)) for word in words]
    assert "lambda/late/1/held/0" in names
    assert took < 40 * (time.process_time() - begun)


SEEDS: Any = None
DRAWS: Any = None
CALLS: Any = None
FACTORS: dict[str, Any] = {}
AUGMENT: Any = None


def make_globals() -> list[Any]:
    """What a script has at its top; here devices are not to be touched when it is imported."""
    global SEEDS, DRAWS, CALLS, AUGMENT
    SEEDS = keras.random.SeedGenerator(5)
    DRAWS = tf.random.Generator.from_seed(9)
    CALLS = keras.Variable(0.0, trainable=False)
    FACTORS["penalty"] = tf.Variable(1.0, trainable=False)
    AUGMENT = keras.Sequential([keras.layers.GaussianNoise(0.1, seed=7)])
    return [SEEDS.state, DRAWS.state, CALLS, FACTORS["penalty"], *AUGMENT.variables]


def jittered(x: Any) -> Any:
    return x + 0.01 * keras.random.normal(tf.shape(x), seed=SEEDS)


def growing(y_true: Any, y_pred: Any) -> Any:
    CALLS.assign(CALLS + 1.0)
    FACTORS["penalty"].assign(FACTORS["penalty"] * 1.1)
    return keras.ops.mean((y_true - y_pred) ** 2) * FACTORS["penalty"] + 0.001 * CALLS


class Augmented(keras.Model):
    """Draws from generators of the module in a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        x = jittered(x) + 0.01 * DRAWS.normal(tf.shape(x), dtype=x.dtype)
        return super().train_step((AUGMENT(x, training=True), y))


@pytest.mark.long
def test_global_variables_of_the_program_go_on_with_the_same_bits(tmp_path: Any) -> None:
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=(24, n)).astype("float32") for n in (2, 1))

    def run(*callbacks: Any) -> list[Any]:
        outside = make_globals()
        keras.utils.set_random_seed(1)
        model = Augmented()
        model.compile("adam", growing)
        trainer = kfit.Trainer(model, "one_device", seed=1)
        trainer.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=list(callbacks))
        return [variable.numpy().copy() for variable in (*model.variables, *outside)]

    expected = run()

    def stop(batch: int, logs: Any) -> None:
        if batch == 3:
            raise CutError

    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.raises(CutError):
        run(keras.callbacks.LambdaCallback(on_train_batch_end=stop), backup)
    assert all(map(np.array_equal, run(backup), expected))


class Penalty:
    def __init__(self) -> None:
        self.weight = tf.Variable(4.0)

    def loss(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean((y_true - y_pred) ** 2) * self.weight


def weighted(y_true: Any, y_pred: Any, weight: Any, *, factor: Any = 1.0) -> Any:
    return keras.ops.mean((y_true - y_pred) ** 2) * weight * factor


def test_variables_in_what_functions_carry() -> None:
    """Arguments of partials, defaults of functions, and objects of methods."""
    variables = [tf.Variable(float(index)) for index in range(4)]
    penalty = Penalty()

    def with_defaults(
        y_true: Any, y_pred: Any, held: Any = variables[2], *, named: Any = variables[3]
    ) -> Any:
        return keras.ops.mean((y_true - y_pred) ** 2) * held * named

    losses: list[Any] = [
        functools.partial(weighted, weight=variables[0], factor=[variables[1]]),
        tf.function(with_defaults),
        penalty.loss,
        functools.partial(penalty.loss),
        functools.partial(weighted, *variables[:2]),
    ]
    expected = [variables[:2], variables[2:], [penalty.weight], [penalty.weight], variables[:2]]
    for loss, wanted in zip(losses, expected, strict=True):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        listed = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        found = dict(loose_variables(model, {id(variable) for variable in listed}))
        assert [id(v) for v in found.values()] == [id(variable) for variable in wanted], found
