"""Data that Python makes goes on after a restart with the very examples, and the very bits."""

import gc
import itertools
import random
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import Store
from tests.sweeps import only, sweep

EXAMPLES, BATCH, EPOCHS = 20, 4, 3


class CutError(Exception):
    """Ends a training as a kill would: no hook comes after it."""


class Program:
    """A program that can be started as often as a test wants, with the graphs of one model.

    Attributes:
        data: Makes the arguments of `fit` that are data, as the program does at its start.
        callbacks: Makes the user's own callbacks.
    """

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        self.trainer = kfit.Trainer(model, "one_device", seed=5)
        self.model = model
        self.data: Any = dict
        self.callbacks: Any = list
        model.optimizer.build(model.trainable_variables)
        self._fresh = [v.numpy().copy() for v in self.variables]

    @property
    def variables(self) -> list[Any]:
        return [*self.model.variables, *self.model.optimizer.variables]

    def run(self, *callbacks: Any) -> list[np.ndarray]:
        """Starts the program; returns all it has learned."""
        for variable, value in zip(self.variables, self._fresh, strict=True):
            variable.assign(value)
        keras.utils.set_random_seed(3)
        self.trainer._seeds.begin_anew()
        data, own = self.data(), self.callbacks()
        self.trainer.fit(**data, epochs=EPOCHS, verbose=0, callbacks=[*own, *callbacks])
        return [v.numpy() for v in self.variables]

    def cut_at(self, step: int, *callbacks: Any) -> None:
        with pytest.raises(CutError):
            self.run(*callbacks, Cutter(step))
        gc.collect()  # a pipeline that is still read ahead would draw numbers of the next run


class Cutter(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise CutError


@pytest.fixture(scope="module")
def program() -> Program:
    return Program()


def arrays() -> Any:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(EXAMPLES, 3)).astype("float32")
    return x, (x @ draw.normal(size=(3, 2))).astype("float32")


class Rows(keras.utils.PyDataset):
    """Batches of rows in an order of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.x, self.y = arrays()
        self.indices = np.arange(EXAMPLES)

    def __len__(self) -> int:
        return EXAMPLES // BATCH

    def __getitem__(self, index: int) -> Any:
        rows = self.indices[BATCH * index : BATCH * (index + 1)]
        return self.x[rows], self.y[rows]


class Shuffled(Rows):
    def on_epoch_end(self) -> None:
        np.random.shuffle(self.indices)


class ShuffledFirst(Rows):
    def on_epoch_begin(self) -> None:
        np.random.shuffle(self.indices)


class Augmented(Rows):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.normal(0, 0.1, x.shape) * random.choice([0.5, 1.0]), y


class Both(Shuffled, Augmented):
    pass


class Shrinks(Shuffled):
    """Has one batch less after each epoch; a pass has as many as when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 6

    def __len__(self) -> int:
        return self.batches

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.batches -= 1


class InPlace(Rows):
    """The rows themselves are put in another order, by a list."""

    def on_epoch_end(self) -> None:
        order = list(range(EXAMPLES))
        random.shuffle(order)
        self.x, self.y = self.x[order], self.y[order]


class OwnGenerator(Rows):
    made = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(next(self.made))  # another in each process
        self.sampler = Sampler()
        self.parts = [random.Random(4), {"calls": 0}]

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        self.parts[1]["calls"] += 1
        scale = 1 + 0.01 * self.parts[1]["calls"] + 0.1 * self.parts[0].random()
        return x * scale + self.draw.normal(0, 0.1, x.shape), y

    def on_epoch_end(self) -> None:
        self.indices = self.sampler.next()


class Sampler:
    """An object of the program that a data set holds."""

    def __init__(self) -> None:
        self.epoch = 0

    def next(self) -> Any:
        self.epoch += 1
        return np.random.default_rng(self.epoch).permutation(EXAMPLES)


class Says(Rows):
    """Keeps its state where nobody can see it, and says it."""

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(7)
        self.draw = lambda: draw
        self.state_dict = lambda: {"draw": draw.bit_generator.state}
        self.load_state_dict = lambda state: setattr(draw.bit_generator, "state", state["draw"])

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + self.draw().normal(0, 0.1, x.shape), y


class Layered(Rows):
    """Augments by a layer of Keras' own."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = keras.layers.GaussianNoise(0.1, seed=2)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return self.noise(x, training=True).numpy(), y


class Eager(Rows):
    """Draws by functions of TensorFlow and Keras, which are called outside of a graph."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        shuffled = tf.random.shuffle(x).numpy()
        scale = tf.random.get_global_generator().uniform([], 0.5, 1.0).numpy()
        return shuffled + scale * np.asarray(keras.random.normal(x.shape, stddev=0.1)), y


def eager() -> Eager:
    tf.random.set_global_generator(tf.random.Generator.from_seed(2))
    return Eager()


class Held(Rows):
    """Holds its state in objects that are not the program's own, and in iterators."""

    def __init__(self) -> None:
        super().__init__()
        self.space = types.SimpleNamespace(calls=0)
        self.cycle = itertools.cycle([0.5, 1.0, 2.0])
        self.rates = (1 / rate for rate in range(1, 99))

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        self.space.calls += 1
        return x * (next(self.cycle) + next(self.rates) + 0.1 * self.space.calls), y


def generated() -> Iterator[Any]:
    x, y = arrays()
    while True:
        rows = np.random.permutation(EXAMPLES)[:BATCH]
        yield x[rows] * random.random(), y[rows]


class Loader:
    """Shuffles in `__iter__`, as torch's loader does."""

    state_dict: Any = None

    def __init__(self) -> None:
        self.x, self.y = arrays()

    def __len__(self) -> int:
        return EXAMPLES // BATCH

    def __iter__(self) -> Iterator[Any]:
        order = np.random.permutation(EXAMPLES)
        for rows in order.reshape(-1, BATCH):
            yield self.x[rows] + np.random.normal(0, 0.1, (BATCH, 3)), self.y[rows]


TorchLoader = type("DataLoader", (Loader,), {"__module__": "torch.utils.data"})


class Stateful(Loader):
    """Says where it stands, as torchdata's loader does, and goes on from there when iterated."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(5)
        self.order, self.at = np.arange(EXAMPLES), 0

    def state_dict(self) -> Any:
        return {"draw": self.draw.bit_generator.state, "order": self.order, "at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.draw.bit_generator.state = state["draw"]
        self.order, self.at = np.array(state["order"]), state["at"]

    def __iter__(self) -> Iterator[Any]:
        if self.at % EXAMPLES == 0:
            self.order, self.at = self.draw.permutation(EXAMPLES), 0
        while self.at < EXAMPLES:
            rows = self.order[self.at : self.at + BATCH]
            self.at += BATCH
            yield self.x[rows], self.y[rows]


class ToldBefore(Stateful):
    """Takes a state for the iterator that is made next, as torchdata's loader does."""

    told: Any = None

    def __iter__(self) -> Iterator[Any]:
        told, self.told = self.told, None
        if told is not None:
            super().load_state_dict(told)
        return super().__iter__()

    def load_state_dict(self, state: Any) -> None:
        self.told = state


class Slow(Stateful):
    """Is still busy with the next batch, at which it stands already, when training saves."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            time.sleep(0.05)
            yield batch


class Position:
    """An iterator that says where it stands, as grain's do."""

    def __init__(self) -> None:
        self.x, self.y = arrays()
        self.at = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.at += 1
        rows = np.random.default_rng(self.at).permutation(EXAMPLES)[:BATCH]
        return self.x[rows], self.y[rows]

    def get_state(self) -> bytes:
        return str(self.at).encode()

    def set_state(self, state: bytes) -> None:
        self.at = int(state)


class Positions:
    """Data of no known length, as grain's, whose iterators say where they stand."""

    def __iter__(self) -> Iterator[Any]:
        return Pass()


class Pass(Position):
    def __next__(self) -> Any:
        if self.at == 5:
            raise StopIteration
        return super().__next__()


PositionsOfGrain = type("IterDataset", (Positions,), {"__module__": "grain"})


def pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(EXAMPLES)


def with_generator() -> tf.data.Dataset:
    draw = tf.random.Generator.from_seed(4)
    return pipeline().batch(BATCH).map(lambda x, y: (x + draw.normal(tf.shape(x)), y))


def with_layer() -> tf.data.Dataset:
    noise = keras.layers.GaussianNoise(0.1, seed=3)
    return pipeline().batch(BATCH).map(lambda x, y: (noise(x, training=True), y)).prefetch(2)


def with_none() -> tf.data.Dataset:
    return with_layer().map(lambda x, y: (x, y, None))


def with_unseeded_layer() -> tf.data.Dataset:
    noise = keras.layers.GaussianNoise(0.1, seed=next(OwnGenerator.made))
    return pipeline().batch(BATCH).map(lambda x, y: (noise(x, training=True), y))


def with_operation() -> tf.data.Dataset:
    return pipeline().batch(BATCH).map(lambda x, y: (x * tf.random.uniform([]), y))


def with_cache() -> tf.data.Dataset:
    """Keeps the order and the noise of its first pass, and shuffles that again in each."""
    draw = tf.random.Generator.from_seed(4)
    noisy = pipeline().map(lambda x, y: (x + draw.normal([3]), y))
    return noisy.cache().shuffle(EXAMPLES).batch(BATCH)


def anew(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Says that the Python code of a pipeline keeps nothing from pass to pass."""
    options = tf.data.Options()
    policy = tf.data.experimental.ExternalStatePolicy
    options.experimental_external_state_policy = policy.IGNORE
    return dataset.with_options(options)


PASSES: list[int] = []
"""Rows that were read in each pass of `of_python`."""


def of_python() -> tf.data.Dataset:
    x, y = arrays()

    def rows() -> Iterator[Any]:
        PASSES.append(0)
        for row in np.random.permutation(EXAMPLES):
            PASSES[-1] += 1
            yield x[row] * random.random(), y[row]

    signature = (tf.TensorSpec([3], "float32"), tf.TensorSpec([2], "float32"))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)


KINDS = {
    "pipeline_with_generator": lambda: {"x": with_generator()},
    "pipeline_with_layer": lambda: {"x": with_layer()},
    "pipeline_with_unseeded_layer": lambda: {"x": with_unseeded_layer()},
    "pipeline_with_layer_short_epochs": lambda: {"x": with_layer(), "steps_per_epoch": 3},
    "pipeline_with_none": lambda: {"x": with_none(), "validation_data": with_none()},
    "endless_pipeline": lambda: {"x": with_layer().repeat(), "steps_per_epoch": 4},
    "pipeline_with_operation": lambda: {"x": with_operation()},
    "pipeline_of_python": lambda: {"x": of_python()},
    "pipeline_of_python_anew": lambda: {"x": anew(of_python())},
    "pipeline_of_python_validates": lambda: {
        "x": pipeline().batch(BATCH),
        "validation_data": anew(of_python()),
    },
    "pipeline_with_cache": lambda: {"x": with_cache(), "validation_data": with_cache()},
    "shuffled": lambda: {"x": Shuffled()},
    "shuffled_first": lambda: {"x": ShuffledFirst()},
    "augmented": lambda: {"x": Augmented()},
    "augmented_in_threads_of_one": lambda: {"x": Augmented(workers=1), "shuffle": True},
    "both": lambda: {"x": Both()},
    "both_short_epochs": lambda: {"x": Both(), "steps_per_epoch": 3},
    "both_short_epochs_from_epoch_1": lambda: {
        "x": Both(),
        "steps_per_epoch": 3,
        "initial_epoch": 1,
    },
    "pipeline_short_epochs_from_epoch_1": lambda: {
        "x": with_layer(),
        "steps_per_epoch": 3,
        "initial_epoch": 1,
    },
    "shrinks": lambda: {"x": Shrinks(), "steps_per_epoch": 2},
    "in_place": lambda: {"x": InPlace()},
    "own_generator": lambda: {"x": OwnGenerator()},
    "says": lambda: {"x": Says()},
    "layered": lambda: {"x": Layered()},
    "eager": lambda: {"x": eager()},
    "held": lambda: {"x": Held()},
    "generator": lambda: {"x": generated(), "steps_per_epoch": 4},
    "generator_that_ends": lambda: {"x": itertools.islice(generated(), 12)},
    "loader": lambda: {"x": TorchLoader()},
    "loader_short_epochs": lambda: {"x": TorchLoader(), "steps_per_epoch": 3},
    "stateful_loader": lambda: {"x": Stateful()},
    "slow_loader": lambda: {"x": Slow()},
    "told_before": lambda: {"x": ToldBefore()},
    "positions_of_passes": lambda: {"x": PositionsOfGrain()},
    "position": lambda: {"x": Position(), "steps_per_epoch": 4},
    "augmented_validation": lambda: {"x": Both(), "validation_data": Both()},
}


DAILY = ("both_short_epochs", "pipeline_with_layer")
UNSEEDED = ("own_generator", "pipeline_with_unseeded_layer")
"""Those that draw other numbers in each process: what was cut off before its first save begins
anew, with numbers of its own."""
SOME = (2, 9)
"""Steps to cut at: among those looked at beforehand, and within a later epoch."""


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param(lambda total: [c for c in SOME if c <= total], id="some"),
        pytest.param(lambda total: range(1, total + 1), id="each", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("save_freq", [1, pytest.param("epoch", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", only(DAILY, KINDS))
def test_it_goes_on_with_the_same_bits(
    program: Program, tmp_path: Any, kind: str, save_freq: Any, cuts: Any
) -> None:
    OwnGenerator.made = itertools.count()
    program.data, program.callbacks = KINDS[kind], list
    expected = program.run()
    total = int(program.model.optimizer.iterations.numpy())
    for cut in cuts(total):
        OwnGenerator.made = itertools.count()
        backup = BackupAndRestore(tmp_path / str(cut), save_freq=save_freq)
        program.cut_at(cut, backup)
        if kind in UNSEEDED and not Store(str(tmp_path / str(cut))).names():
            assert cut <= (total // EPOCHS if save_freq == "epoch" else save_freq)
            continue
        got = program.run(backup)
        assert all(map(np.array_equal, got, expected)), f"cut at step {cut}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("made", "passes"),
    [(of_python, 2), pytest.param(lambda: anew(of_python()), 1, marks=pytest.mark.long)],
)
def test_python_that_begins_anew_is_read_in_its_last_pass_only(
    program: Program, tmp_path: Any, made: Any, passes: int
) -> None:
    program.data, program.callbacks = lambda: {"x": made()}, list
    expected = program.run()
    backup = BackupAndRestore(tmp_path, save_freq=1)
    program.cut_at(8, backup)  # 5 steps an epoch
    PASSES.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = program.run(backup)
    assert all(map(np.array_equal, got, expected))
    assert len(PASSES) == passes + 1  # and the last epoch's
    told = [str(w.message) for w in caught if "read again from its start, 5 b" in str(w.message)]
    assert len(told) == passes - 1


class Level(keras.callbacks.Callback):
    """Makes the data harder in each epoch."""

    value = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.value += 1


def drawing_more(level: Level) -> tf.data.Dataset:
    """Draws more numbers for each batch on a higher level."""
    x, y = arrays()
    draw = np.random.default_rng(4)

    def noisy(rows: Any) -> Any:
        return rows + sum(draw.normal(size=rows.shape) for _ in range(level.value + 1))

    mapped = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    return mapped.map(
        lambda x, y: (tf.ensure_shape(tf.py_function(noisy, [x], x.dtype), x.shape), y)
    )


def getting_shorter(level: Level) -> tf.data.Dataset:
    """Yields fewer batches on a higher level; the first ones are the same on each."""
    x, y = arrays()

    def batches() -> Iterator[Any]:
        for _ in range(6 - 2 * level.value):
            yield x[:BATCH], y[:BATCH]

    signature = (tf.TensorSpec([BATCH, 3], "float32"), tf.TensorSpec([BATCH, 2], "float32"))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


@pytest.mark.parametrize("made", sweep([drawing_more, getting_shorter]))
def test_a_pipeline_that_yields_others_when_it_is_read_again_is_told(
    program: Program, tmp_path: Any, made: Any
) -> None:
    levels: list[Level] = []

    def data() -> Any:
        levels[:] = [Level()]
        return {"x": made(levels[0])}

    program.data, program.callbacks = data, lambda: list(levels)
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    program.cut_at(12, backup)  # in the last epoch
    with pytest.warns(UserWarning, match="did not yield the same batches again"):
        program.run(backup)


@pytest.mark.long
def test_a_pass_that_has_become_shorter_is_told(program: Program, tmp_path: Any) -> None:
    lengths = iter((5, 2))
    x, y = arrays()

    def data() -> Any:
        length = next(lengths)
        signature = (tf.TensorSpec([BATCH, 3], "float32"), tf.TensorSpec([BATCH, 2], "float32"))
        rows = lambda: iter([(x[:BATCH], y[:BATCH])] * length)  # noqa: E731
        return {"x": tf.data.Dataset.from_generator(rows, output_signature=signature)}

    program.data, program.callbacks = data, list
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    program.cut_at(4, backup)
    with pytest.warns(UserWarning, match="did not yield the same batches again"):
        program.run(backup)


def test_what_a_pipeline_draws_in_no_order_is_told(program: Program, tmp_path: Any) -> None:
    draw = tf.random.Generator.from_seed(4)

    def parallel() -> Any:
        noisy = (
            pipeline()
            .batch(BATCH)
            .map(lambda x, y: (x + draw.normal(tf.shape(x)), y), num_parallel_calls=2)
        )
        return {"x": noisy}

    def shuffled() -> Any:
        tf.random.set_seed(None)
        return {"x": pipeline().batch(BATCH)}

    backup = BackupAndRestore(tmp_path / "backup")
    for data, says in ((parallel, "num_parallel_calls"), (shuffled, "`shuffle` without a seed")):
        program.data, program.callbacks = data, list
        with pytest.warns(UserWarning, match=says):
            program.run(backup)


def test_threads_that_draw_are_told(program: Program, tmp_path: Any) -> None:
    program.data, program.callbacks = lambda: {"x": Augmented(workers=2)}, list
    with pytest.warns(UserWarning, match="draws random numbers in `__getitem__` on 2 threads"):
        program.run(BackupAndRestore(tmp_path / "backup"))


def test_a_generator_that_yields_others_is_told(program: Program, tmp_path: Any) -> None:
    made = itertools.count()

    def other() -> Iterator[Any]:
        draw = np.random.default_rng(next(made))
        x, y = arrays()
        while True:
            rows = draw.permutation(EXAMPLES)[:BATCH]
            yield x[rows], y[rows]

    program.data = lambda: {"x": other(), "steps_per_epoch": 4}
    program.callbacks = list
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    program.cut_at(6, backup)
    with pytest.warns(UserWarning, match="did not yield the same batches again"):
        program.run(backup)


def test_half_a_state_of_data_is_refused(program: Program) -> None:
    class Half(Rows):
        def state_dict(self) -> Any:
            return {}

    program.data, program.callbacks = lambda: {"x": Half()}, list
    with pytest.raises(ValueError, match="a Half, has `state_dict` and not `load_state_dict`"):
        program.run()


def test_what_a_data_set_changes_and_nobody_can_save_is_told(
    program: Program, tmp_path: Any
) -> None:
    class Framed(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.frame = pd.DataFrame({"row": self.indices})

        def on_epoch_end(self) -> None:
            self.frame = self.frame.sample(frac=1)

    program.data, program.callbacks = lambda: {"x": Framed()}, list
    with pytest.warns(UserWarning, match="a Framed, changes frame .a DataFrame. in training"):
        program.run(BackupAndRestore(tmp_path / "backup"))


class WithModel(Rows):
    """Holds the model, as one does to draw by its predictions."""

    model: Any = None

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.layers = list(model.layers)


class Knows(keras.callbacks.Callback):
    """Holds the data that it is trained on."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self.held = data


@pytest.mark.long
def test_data_that_hold_the_model_and_a_callback_that_holds_the_data(
    program: Program, tmp_path: Any
) -> None:
    def of_model() -> Any:
        return {"x": WithModel(program.model)}

    def known() -> Any:
        OwnGenerator.made = itertools.count()
        data = OwnGenerator()
        program.callbacks = lambda: [Knows(data)]
        return {"x": data}

    for data in (of_model, known):
        program.data, program.callbacks = data, list
        expected = program.run()
        backup = BackupAndRestore(tmp_path / data.__name__, save_freq=2)
        program.cut_at(8, backup)
        got = program.run(backup)
        assert all(map(np.array_equal, got, expected)), data.__name__


@pytest.mark.long
def test_a_cache_of_objects_is_told_and_training_goes_on(program: Program, tmp_path: Any) -> None:
    class Cached(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[int, Any] = {}

        def __getitem__(self, index: int) -> Any:
            self.cache.setdefault(index, (object(), index))
            return super().__getitem__(index)

    program.data, program.callbacks = lambda: {"x": Cached()}, list
    expected = program.run()
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.warns(UserWarning, match=r"a Cached, changes cache .a \w+. in training"):
        program.cut_at(8, backup)
    got = program.run(backup)
    assert all(map(np.array_equal, got, expected))


def of_files() -> tf.data.Dataset:
    """Files in another order in each pass, read in turns, and their rows shuffled again."""
    rows = tf.data.Dataset.from_tensor_slices(arrays())
    files = tf.data.Dataset.range(4).shuffle(4)
    return files.interleave(lambda file: rows.shard(4, file), num_parallel_calls=2).shuffle(5)


LATE = {
    "behind_a_shuffle": lambda: of_files().batch(BATCH),
    "behind_two": lambda: pipeline().shuffle(3).batch(BATCH).shuffle(2),
    "copied": lambda: pipeline().apply(tf.data.experimental.copy_to_device("cpu:0")).batch(BATCH),
    "repeated": lambda: pipeline().repeat(2).batch(BATCH),
    "in_the_second_part": lambda: (
        tf.data.Dataset.from_tensor_slices(arrays()).take(4).concatenate(pipeline()).batch(BATCH)
    ),
    "in_a_function": lambda: captured(pipeline()).batch(BATCH),
    "random": lambda: random_numbers().shuffle(5).batch(BATCH),
    "read_twice": lambda: tf.data.Dataset.zip(*[pipeline()] * 2).map(lambda a, b: a).batch(BATCH),
}

LATE_DAILY = ("in_a_function",)


def captured(rows: tf.data.Dataset) -> tf.data.Dataset:
    return tf.data.Dataset.range(2).flat_map(lambda _: rows)


def random_numbers() -> tf.data.Dataset:
    numbers = tf.data.Dataset.random(rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(pipeline(), numbers).map(
        lambda row, number: (row[0] * tf.cast(number % 7, tf.float32), row[1])
    )


@pytest.mark.parametrize(
    "kind",
    only(LATE_DAILY, LATE),
)
def test_shuffles_that_begin_late_go_on(program: Program, tmp_path: Any, kind: str) -> None:
    program.data, program.callbacks = lambda: {"x": LATE[kind]()}, list
    expected = program.run()
    backup = BackupAndRestore(tmp_path, save_freq=1)
    program.cut_at(int(program.model.optimizer.iterations.numpy()) - 2, backup)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = program.run(backup)
    assert all(map(np.array_equal, got, expected))
    told = [w for w in caught if "put the `shuffle` after these" in str(w.message).lower()]
    assert bool(told) == (kind in ("repeated", "in_the_second_part", "in_a_function"))


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(EXAMPLES, seed=3)


class Reads(keras.callbacks.Callback):
    """A monitor that reads the training data as well."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.read = read

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.read()

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: Any) -> None:
        pass


def parts_of_one_shuffle(program: Program) -> Any:
    base = shuffled()
    parts = {"x": base.skip(4).batch(BATCH), "validation_data": base.take(4).batch(BATCH)}
    return parts, lambda: None


def evaluated_without_augmentation(program: Program) -> Any:
    base = shuffled()
    plain = base.batch(BATCH)
    augmented = base.map(lambda x, y: (x * 1.1, y)).batch(BATCH)
    return {"x": augmented}, lambda: program.trainer.evaluate(plain, verbose=0)


def read_by_a_hook(program: Program) -> Any:
    data = shuffled().batch(BATCH)
    return {"x": data}, lambda: (next(iter(data)), list(data.take(1).as_numpy_iterator()))


def evaluated_by_keras(program: Program) -> Any:
    data = shuffled().batch(BATCH)
    return {"x": data}, lambda: keras.Model.evaluate(program.model, data, verbose=0)


ALSO_READ = (
    parts_of_one_shuffle,
    evaluated_without_augmentation,
    read_by_a_hook,
    evaluated_by_keras,
)


@pytest.mark.long  # `callbacks/test_one_data_set.py` validates on the training data every day
@pytest.mark.parametrize("kind", ALSO_READ)
def test_what_is_read_beside_the_training_draws_from_one_sequence_of_orders(
    program: Program, tmp_path: Any, kind: Any
) -> None:
    made: list[Any] = []

    def data() -> Any:
        made[:] = kind(program)
        return made[0]

    program.data, program.callbacks = data, lambda: [Reads(lambda: made[1]())]
    expected = program.run()
    steps = int(program.model.optimizer.iterations.numpy())
    for cut in (2, steps // 2 + 1, steps - 1):
        backup = BackupAndRestore(tmp_path / str(cut), save_freq=1)
        program.cut_at(cut, backup)
        got = program.run(backup)
        assert all(map(np.array_equal, got, expected)), f"cut at step {cut} of {steps}"


def test_parts_of_one_shuffle_that_shuffle_again_are_told(program: Program, tmp_path: Any) -> None:
    def data() -> Any:
        base = shuffled()
        train = base.skip(4).shuffle(EXAMPLES, seed=4).batch(BATCH)
        return {"x": train, "validation_data": base.take(4).batch(BATCH)}

    program.data, program.callbacks = data, list
    with pytest.warns(UserWarning, match="read one `shuffle`, and at least one of them has others"):
        program.run(BackupAndRestore(tmp_path))


def own_data_set(program: Program) -> Any:
    data = shuffled().batch(BATCH)
    return lambda: next(iter(data))


def taken_from_own_data_set(program: Program) -> Any:
    data = pipeline().batch(BATCH).shuffle(3)
    return lambda: list(data.take(1))


def evaluated_own_data_set(program: Program) -> Any:
    data = shuffled().batch(BATCH)
    return lambda: program.model.evaluate(data, verbose=0)


def made_anew(program: Program) -> Any:
    return lambda: next(iter(shuffled().batch(BATCH)))


def in_one_order(program: Program) -> Any:
    data = tf.data.Dataset.range(4).shuffle(4, seed=3, reshuffle_each_iteration=False)
    return lambda: next(iter(data))


@pytest.mark.parametrize(
    ("made", "is_told"),
    [
        (own_data_set, True),
        (taken_from_own_data_set, True),
        (evaluated_own_data_set, True),
        (made_anew, False),
        (in_one_order, False),
    ],
)
def test_a_shuffled_data_set_that_only_hooks_read_is_told(
    program: Program, tmp_path: Any, made: Any, is_told: bool
) -> None:
    read = made(program)
    x, y = arrays()
    program.data, program.callbacks = lambda: {"x": x, "y": y}, lambda: [Reads(read)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program.run(BackupAndRestore(tmp_path))
    told = [str(w.message) for w in caught if "A hook reads a tf.data" in str(w.message)]
    assert len(told) == is_told


def repeated(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.repeat().batch(BATCH)


def shuffled_again(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.shuffle(EXAMPLES, seed=4).batch(BATCH)


def in_batches(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.batch(BATCH)


@pytest.mark.parametrize("reader", ["hook", "validation"])
@pytest.mark.parametrize(
    ("pipeline", "is_told"), [(repeated, True), (shuffled_again, True), (in_batches, False)]
)
def test_a_second_reader_of_a_shuffle_that_draws_late_is_told(
    program: Program, tmp_path: Any, pipeline: Any, is_told: bool, reader: str
) -> None:
    data = pipeline(shuffled())
    steps = {"steps_per_epoch": 2}
    if reader == "hook":
        program.data = lambda: {"x": data, **steps}
        program.callbacks = lambda: [Reads(lambda: next(iter(data)))]
    else:
        program.data = lambda: {"x": data, "validation_data": data, "validation_steps": 1, **steps}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program.run(BackupAndRestore(tmp_path))
    told = [each for each in caught if "would see other orders" in str(each.message)]
    assert bool(told) == is_told


def test_a_fit_that_saves_within_a_hook_of_one_is_told(program: Program, tmp_path: Any) -> None:
    x, y = arrays()

    def fit() -> None:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        inner = BackupAndRestore(tmp_path / "inner")
        kfit.fit(model, x, y, strategy="one_device", callbacks=[inner], verbose=0)

    program.data, program.callbacks = lambda: {"x": x, "y": y}, lambda: [Reads(fit)]
    with pytest.warns(UserWarning, match="calls another `fit` that does, too"):
        program.run(BackupAndRestore(tmp_path / "outer"))


def endless(data: tf.data.Dataset) -> Iterator[Any]:
    while True:
        yield from data


def test_a_generator_that_reads_a_shuffled_data_set_is_no_hook(
    program: Program, tmp_path: Any
) -> None:
    program.data, program.callbacks = (
        lambda: {"x": endless(shuffled().batch(BATCH)), "steps_per_epoch": EXAMPLES // BATCH},
        list,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "A hook reads a tf.data")
        program.run(BackupAndRestore(tmp_path))


DRAW = np.random.default_rng(4)
"""A generator at the top of a file, as many programs have it."""


class Noisy(Rows):
    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + DRAW.normal(0, 0.1, x.shape), y


class Draws(keras.callbacks.Callback):
    """A monitor that draws from the generator of the data, and keeps what it has drawn."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw
        self.drawn: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.drawn.append(float(np.sum(self.draw())))


class DrawsByAttribute(Draws):
    def __init__(self, held: Any, draw: Any) -> None:
        super().__init__(draw)
        self.held = held


def two_py_datasets() -> Any:
    global DRAW
    DRAW = np.random.default_rng(4)
    return {"x": Noisy(), "validation_data": Noisy()}, []


def pipeline_drawing_from(noise: Any) -> tf.data.Dataset:
    noisy = pipeline().batch(BATCH).map(lambda x, y: (x + noise(tf.shape(x)), y))
    return noisy.prefetch(4)


def two_pipelines() -> Any:
    draw = tf.random.Generator.from_seed(4)
    made = [pipeline_drawing_from(draw.normal) for _ in range(2)]
    return {"x": made[0], "validation_data": made[1]}, []


def two_pipelines_in_epochs_of_their_length() -> Any:
    data, callbacks = two_pipelines()
    return {**data, "steps_per_epoch": EXAMPLES // BATCH}, callbacks


def pipeline_and_hook() -> Any:
    draw = tf.random.Generator.from_seed(4)
    data = {"x": pipeline_drawing_from(draw.normal)}
    return data, [DrawsByAttribute(draw, lambda: draw.normal([2]))]


def pipeline_and_hook_with_layer() -> Any:
    noise = keras.layers.GaussianNoise(0.1, seed=3)

    def draw(shape: Any = (2, 3)) -> Any:
        return noise(tf.zeros(shape), training=True)

    return {"x": pipeline_drawing_from(draw)}, [DrawsByAttribute(noise, draw)]


SHARED = (
    two_py_datasets,
    two_pipelines,
    two_pipelines_in_epochs_of_their_length,
    pipeline_and_hook,
    pipeline_and_hook_with_layer,
)


@pytest.mark.parametrize("made", only([two_py_datasets, pipeline_and_hook], SHARED))
def test_what_draws_from_one_generator_goes_on_with_the_same_numbers(
    program: Program, tmp_path: Any, made: Any
) -> None:
    parts: list[Any] = []

    def data() -> Any:
        parts[:] = made()
        return parts[0]

    def learned(*callbacks: Any) -> Any:
        weights = program.run(*callbacks)
        return [*weights, program.model.history.history.get("val_loss"), *drawn()]

    def drawn() -> list[Any]:
        return [each.drawn for each in parts[1]]

    program.data, program.callbacks = data, lambda: parts[1]
    expected = learned()
    for cut in (3, 9):
        backup = BackupAndRestore(tmp_path / str(cut), save_freq=1)
        program.cut_at(cut, backup)
        got = learned(backup)
        assert all(map(np.array_equal, got, expected)), f"cut at step {cut}"


def parts_of_one_shuffle_with_noise() -> Any:
    noise = keras.layers.GaussianNoise(0.1, seed=3)
    base = shuffled().map(lambda x, y: (noise(x, training=True), y))
    return {"x": base.skip(4).batch(BATCH), "validation_data": base.take(4).batch(2)}


def test_parts_of_one_shuffle_with_noise_go_on_in_their_orders(
    program: Program, tmp_path: Any
) -> None:
    program.data, program.callbacks = parts_of_one_shuffle_with_noise, list
    expected = [*program.run(), program.model.history.history["val_loss"]]
    steps = int(program.model.optimizer.iterations.numpy()) // EPOCHS
    backup = BackupAndRestore(tmp_path, save_freq=1)
    program.cut_at(steps + 2, backup)
    got = [*program.run(backup), program.model.history.history["val_loss"]]
    assert all(map(np.array_equal, got, expected))
