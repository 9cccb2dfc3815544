"""Data are asked for what Keras' own `fit` asks them for, so that the same seed trains the same.

Keras' `fit` is run beside kfit's: its calls, its weights and its metrics are the expected ones.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only, sweep

ROWS, BATCH, EPOCHS = 22, 4, 3


def arrays() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 3)).astype("float32")
    return x, (x @ draw.normal(size=(3, 2))).astype("float32")


class Pair:
    """One model for Keras and one for kfit; made once, since tracing takes the time."""

    def __init__(self) -> None:
        self.models = [self._made() for _ in range(2)]
        self.trainer = kfit.Trainer(self.models[1], "one_device", seed=5)
        self._fresh = [variable.numpy() for variable in self._variables(self.models[0])]

    @staticmethod
    def _made() -> keras.Model:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    @staticmethod
    def _variables(model: keras.Model) -> list[Any]:
        return [*model.variables, *model.optimizer.variables]

    def runs(
        self, method: str, arguments: Callable[[], dict[str, Any]], times: int = 1
    ) -> Iterator[list[Any]]:
        """Runs a program by Keras, then by kfit, from one seed; gives what each has learned.

        The program calls the method several times with the same arguments if told so.
        """
        for model, runner in zip(self.models, (self.models[0], self.trainer), strict=True):
            for variable, value in zip(self._variables(model), self._fresh, strict=True):
                variable.assign(value)
            keras.utils.set_random_seed(3)
            asked = arguments()
            for _ in range(times):
                result = getattr(runner, method)(**asked, verbose=0)
            logs = result.history if method == "fit" else {"result": result}
            learned = [v.numpy() for v in self._variables(model) if v.name != "iteration"]
            yield [*learned, *logs.values()]  # Keras counts a step for data that had ended


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


class Rows(keras.utils.PyDataset):
    """Notes every call in `calls`."""

    def __init__(self, calls: list[str], name: str = "", batches: int | None = 6) -> None:
        super().__init__()
        self.x, self.y = arrays()
        self.calls, self.name, self.batches = calls, name, batches

    @property
    def num_batches(self) -> int | None:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        self.calls.append(f"{self.name}[{index}]")
        rows = np.arange(BATCH * index, BATCH * index + BATCH) % ROWS
        return self.x[rows], self.y[rows]

    def on_epoch_begin(self) -> None:
        self.calls.append(f"{self.name} begins")

    def on_epoch_end(self) -> None:
        self.calls.append(f"{self.name} ends")


class Notes(keras.callbacks.Callback):
    """Notes the hooks around them, and stops training or evaluating where it is told to."""

    def __init__(self, calls: list[str], stop: str = "") -> None:
        super().__init__()
        for hook in ("train_begin", "epoch_begin", "epoch_end", "test_begin", "test_end"):
            setattr(self, f"on_{hook}", lambda *_, hook=hook, **__: calls.append(hook))
        if stop:
            setattr(self, f"on_{stop}_batch_end", self._stop)

    def _stop(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.model.stop_training = self.model.stop_evaluating = True


PROGRAMS: dict[str, tuple[str, Callable[[list[str]], dict[str, Any]]]] = {
    "fit": ("fit", lambda c: {"x": Rows(c, "x")}),
    "fit_and_validate": ("fit", lambda c: {"x": Rows(c, "x"), "validation_data": Rows(c, "v", 3)}),
    "validate_seldom": (
        "fit",
        lambda c: {"x": Rows(c, "x"), "validation_data": Rows(c, "v", 3), "validation_freq": 2},
    ),
    "short_epochs": ("fit", lambda c: {"x": Rows(c, "x"), "steps_per_epoch": 4}),
    "without_end": ("fit", lambda c: {"x": Rows(c, "x", None), "steps_per_epoch": 4}),
    "from_epoch_1": ("fit", lambda c: {"x": Rows(c, "x"), "initial_epoch": 1}),
    "stopped": (
        "fit",
        lambda c: {
            "x": Rows(c, "x"),
            "validation_data": Rows(c, "v", 3),
            "callbacks": [Notes(c, "train")],
        },
    ),
    "validation_stopped": (
        "fit",
        lambda c: {
            "x": Rows(c, "x"),
            "validation_data": Rows(c, "v", 3),
            "callbacks": [Notes(c, "test")],
        },
    ),
    "evaluate": ("evaluate", lambda c: {"x": Rows(c, "x")}),
    "predict": ("predict", lambda c: {"x": Rows(c, "x")}),
}


@pytest.mark.parametrize("program", only(["fit", "stopped", "evaluate"], PROGRAMS))
def test_a_py_dataset_is_called_as_by_keras(pair: Pair, program: str) -> None:
    method, arguments = PROGRAMS[program]
    noted: list[list[str]] = []

    def made() -> dict[str, Any]:
        calls: list[str] = []
        noted.append(calls)
        given = {"callbacks": [Notes(calls)], **arguments(calls)}
        return {"epochs": EPOCHS, "shuffle": False, **given} if method == "fit" else given

    list(pair.runs(method, made))
    of_keras, of_kfit = ([call for call in calls if "[" not in call] for calls in noted)
    assert of_kfit == of_keras
    # What Keras draws ahead of training, and drops, is up to the time that it has.
    first = [call for call in noted[0] if "[" in call][:2]
    assert [call for call in noted[1] if "[" in call][:2] == first


class ByNumpy(Rows):
    """Is shuffled by NumPy, and draws numbers for its batches."""

    def __init__(self) -> None:
        super().__init__([])

    def on_epoch_end(self) -> None:
        order = np.random.permutation(ROWS)
        self.x, self.y = self.x[order], self.y[order]

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.normal(0, 0.1, x.shape), y


class ByPython(Rows):
    """Is shuffled by Python."""

    def __init__(self) -> None:
        super().__init__([])

    def on_epoch_end(self) -> None:
        order = list(range(ROWS))
        random.shuffle(order)
        self.x, self.y = self.x[order], self.y[order]


class Grows(Rows):
    """Has more batches after each epoch, or fewer."""

    def __init__(self, batches: int, more: int) -> None:
        super().__init__([], "", batches)
        self.more = more

    def on_epoch_end(self) -> None:
        assert self.batches is not None
        self.batches = max(1, self.batches + self.more)


def pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(ROWS)


def noisy(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.random.normal(tf.shape(x), stddev=0.1), y


def named_arrays() -> dict[str, np.ndarray]:
    return dict(zip("xy", arrays(), strict=True))


FROM_1: dict[str, int] = {"steps_per_epoch": 4, "initial_epoch": 1, "epochs": 4}
"""An epoch in the midst of a pass of 6 batches, were the passes counted from epoch 0."""
DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "by_numpy": lambda: {"x": ByNumpy(), "validation_data": ByNumpy()},
    "by_python": lambda: {"x": ByPython(), "steps_per_epoch": 6},
    "longer_than_the_pass": lambda: {"x": ByNumpy(), "steps_per_epoch": 8},
    "grows": lambda: {"x": Grows(3, 1), "validation_data": Grows(3, 1)},
    "shrinks": lambda: {"x": Grows(5, -1), "validation_data": Grows(5, -1)},
    "shrinks_within_a_pass": lambda: {"x": Grows(7, -1), "steps_per_epoch": 4},
    "grows_within_a_pass": lambda: {"x": Grows(5, 1), "steps_per_epoch": 4, "epochs": 6},
    "parts_from_epoch_1": lambda: {"x": Rows([]), **FROM_1},
    "parts_from_epoch_1_without_end": lambda: {"x": Rows([], "", None), **FROM_1},
    "parts_from_epoch_1_of_arrays": lambda: {**named_arrays(), "batch_size": BATCH, **FROM_1},
    "parts_from_epoch_1_of_a_pipeline": lambda: {"x": pipeline().batch(BATCH), **FROM_1},
    "pipeline": lambda: {"x": pipeline().batch(BATCH), "validation_data": pipeline().batch(9)},
    "pipeline_in_parts": lambda: {"x": pipeline().batch(BATCH), "steps_per_epoch": 4, "epochs": 5},
    "pipeline_of_exact_length": lambda: {"x": pipeline().batch(BATCH), "steps_per_epoch": 6},
    "pipeline_longer_than_the_pass": lambda: {"x": pipeline().batch(BATCH), "steps_per_epoch": 8},
    "pipeline_of_unknown_length": lambda: {"x": pipeline().filter(lambda x, y: x[0] > 0).batch(2)},
    "pipeline_without_end": lambda: {"x": pipeline().repeat().batch(BATCH), "steps_per_epoch": 4},
    "pipeline_with_noise": lambda: {
        "x": pipeline().batch(BATCH),
        "validation_data": pipeline().map(noisy).batch(BATCH),
        "validation_steps": 3,
    },
}


DAILY = (
    *("by_numpy", "shrinks_within_a_pass", "parts_from_epoch_1_of_arrays", "pipeline"),
    *("pipeline_of_exact_length", "pipeline_of_unknown_length"),
)


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("data", only(DAILY, DATA))
def test_the_same_seed_trains_as_by_keras(pair: Pair, data: str) -> None:
    expected, got = pair.runs("fit", lambda: {"epochs": EPOCHS, "shuffle": False, **DATA[data]()})
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def shuffled_by_a_seed() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(ROWS, seed=1)


def twice(first: tf.data.Dataset) -> tf.data.Dataset:
    """The inputs of one pass over a data set with the targets of another pass over it."""
    return tf.data.Dataset.zip((first, first)).map(lambda one, other: (one[0], other[1]))


CONTINUED: dict[str, Callable[[], dict[str, Any]]] = {
    "one": lambda: {"x": shuffled_by_a_seed().batch(BATCH)},
    "zipped_with_itself": lambda: {"x": twice(shuffled_by_a_seed()).batch(BATCH)},
    "repeated": lambda: {"x": twice(shuffled_by_a_seed()).batch(BATCH).repeat(2)},
}


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("data", only(["one"], CONTINUED))
def test_a_second_fit_is_given_the_passes_that_follow(pair: Pair, data: str) -> None:
    expected, got = pair.runs("fit", lambda: {"epochs": 2, **CONTINUED[data]()}, times=2)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Sees(keras.Model):
    """Notes the structure of what reaches its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1)
        self.seen: set[str] = set()

    def call(self, x: Any) -> Any:
        return self.out(x)

    def note(self, step: str, data: Any) -> Any:
        self.seen.add(f"{step}: {keras.tree.map_structure(lambda _: 0, data)}")
        return tf.reduce_mean(self(keras.tree.flatten(data)[0]))

    def train_step(self, data: Any) -> Any:
        return {"loss": self.note("train", data)}

    def test_step(self, data: Any) -> Any:
        return {"loss": self.note("test", data)}

    def predict_step(self, data: Any) -> Any:
        return self(keras.tree.flatten(data)[0]) + 0 * self.note("predict", data)


X = np.ones((6, 2), "float32")


@pytest.mark.parametrize("replicas", sweep([2, 1]))
@pytest.mark.parametrize(
    "x",
    [
        pytest.param(X, id="one", marks=pytest.mark.long),
        pytest.param([X, X], id="list", marks=pytest.mark.long),
        pytest.param((X, X), id="tuple", marks=pytest.mark.long),
        pytest.param({"a": X}, id="dict"),
        pytest.param({"a": [X, X]}, id="deep", marks=pytest.mark.long),
    ],
)
def test_x_alone_reaches_the_steps_as_in_keras(tiny: Any, x: Any, replicas: int) -> None:
    one, many = Sees(), Sees()
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    for model in (one, many):
        model.compile("sgd")
        model(X)
    for each in (one, trainer):
        each.fit(x, batch_size=4, verbose=0)
        each.evaluate(x, batch_size=4, verbose=0)
        each.predict(x, batch_size=4, verbose=0)
    assert {line.replace("[0, 0]", "(0, 0)") for line in one.seen} == {
        line.replace("[0, 0]", "(0, 0)") for line in many.seen
    }


class SeesKinds(Sees):
    """Notes the dtypes of what reaches its steps as well."""

    def note(self, step: str, data: Any) -> Any:
        kinds = keras.tree.map_structure(lambda leaf: getattr(leaf, "dtype", leaf), data)
        self.seen.add(f"{step}: {kinds}")
        return tf.reduce_mean(self(keras.tree.flatten(data)[0]))


class Same(keras.utils.PyDataset):
    """Two equal batches."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch = batch

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.batch


PARTS = {
    "four": (X, X, X, X),
    "none_at_the_end": (X, X, None),
    "none_in_the_middle": (X, None, X),
    "none_within": ({"a": X, "b": None}, X),
    "dtypes": (X.astype("float64"), X.astype("float16"), X.astype("int8")),
}


@pytest.mark.parametrize("replicas", sweep([2, 1]))
@pytest.mark.parametrize("parts", only(["dtypes"], PARTS))
def test_what_python_makes_reaches_the_steps_as_in_keras(
    tiny: Any, parts: str, replicas: int
) -> None:
    batch = PARTS[parts]
    made: list[Callable[[], Any]] = [lambda: (each for each in [batch, batch]), lambda: Same(batch)]
    one, many = SeesKinds(), SeesKinds()
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    for model in (one, many):
        model.compile("sgd")
        model(X)
    # Keras fails on a PyDataset of such parts.
    for make in made if parts == "dtypes" else made[:1]:
        for each in (one, trainer):
            each.fit(make(), shuffle=False, verbose=0)
            each.evaluate(make(), verbose=0)
            each.predict(make(), verbose=0)
    assert many.seen == one.seen


class Dicts(keras.utils.PyDataset):
    """Batches that are dicts, which only a model's own step can take apart."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full((4, 3), index, "float32"), "y": np.ones((4, 1), "float32")}


class TakesDicts(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step((data["x"], data["y"]))


@pytest.mark.parametrize("replicas", sweep([1, 2]))
def test_a_dict_of_a_py_dataset_reaches_the_step_as_it_is(tiny: Any, replicas: int) -> None:
    losses = []
    for fit in (keras.Model.fit, kfit.fit):
        keras.utils.set_random_seed(1)
        model = TakesDicts([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        options = {"strategy": tiny.strategy(replicas)} if fit is kfit.fit else {}
        history = fit(model, Dicts(), epochs=2, shuffle=False, verbose=0, **options)
        losses.append(history.history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
