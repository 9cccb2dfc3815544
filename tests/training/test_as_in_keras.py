"""What programs see of Keras' loops: structures, logs, stops, random numbers, own methods."""

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only

BATCH = 10


def data(rows: int = 30) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


class Plain(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(x)


def made(cls: type[Any] = Plain, loss: Any = "mse") -> Any:
    keras.utils.set_random_seed(1)
    model = cls()
    model.compile("sgd", loss)
    return model


@pytest.fixture(params=only([2], [1, 2]))
def strategy(request: pytest.FixtureRequest, tiny: Any) -> Any:
    return tiny.strategy(request.param)


class Remembers(keras.callbacks.Callback):
    """Remembers the hooks with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.hooks.append(("epoch begins", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.hooks.append(("epoch ends", epoch, *sorted(logs)))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.hooks.append(("batch", batch, *[round(each, 4) for each in logs.values()]))


class Stops(Remembers):
    """Asks to stop where everything begins."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.stop_training = True

    def on_predict_begin(self, logs: Any = None) -> None:
        self.model.stop_predicting = True

    def on_test_begin(self, logs: Any = None) -> None:
        self.model.stop_evaluating = True


def test_one_batch_follows_where_a_hook_stops_at_the_beginning(strategy: Any) -> None:
    x, y = data()
    seen = []
    one, many = made(), made()
    for trains in (one, kfit.Trainer(many, strategy)):
        stops = Stops()
        options = {"batch_size": BATCH, "verbose": 0, "callbacks": [stops]}
        history = trains.fit(x, y, epochs=3, shuffle=False, **options)
        rows = len(trains.predict(x, **options))
        score = trains.evaluate(x, y, **options)
        seen.append((history.epoch, stops.hooks, rows, round(score, 4)))
    assert seen[0] == seen[1]


def test_a_generator_that_has_ended_stops_training(strategy: Any) -> None:
    x, y = data()

    def batches() -> Iterator[Any]:
        for k in range(0, 30, BATCH):
            yield x[k : k + BATCH], y[k : k + BATCH]

    remembers, trainer = Remembers(), kfit.Trainer(made(), strategy)
    with pytest.warns(UserWarning, match="epochs reads it .* and training stops after this"):
        history = trainer.fit(batches(), epochs=3, verbose=0, callbacks=[remembers])
    assert history.epoch == [0]
    assert len(history.history["loss"]) == 1
    assert [each[0] for each in remembers.hooks] == ["epoch begins", *["batch"] * 3, "epoch ends"]


class ReturnsLoss(Plain):
    """Returns its loss under the name of a metric that it does not update."""

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_the_logs_of_a_batch_are_what_the_step_returned(strategy: Any) -> None:
    x, y = data()
    seen = []
    for place in (None, strategy):
        model, remembers = made(ReturnsLoss), Remembers()
        trains = model if place is None else kfit.Trainer(model, place)
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
        history = trains.fit(x, y, callbacks=[remembers], **options).history
        seen.append((remembers.hooks, history["loss"], round(trains.train_on_batch(x, y), 4)))
    assert seen[0] == seen[1]


class Structures(Plain):
    """Notes the structures that its steps and its `call` get."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, name: str, value: Any) -> None:
        kinds = keras.tree.map_structure(lambda leaf: leaf is not None, value)
        self.notes.append(f"{name}: {kinds}")

    def call(self, x: Any, training: bool = False) -> Any:
        if not isinstance(keras.tree.flatten(x)[0], keras.KerasTensor):
            self.notes.append(f"call: {type(x).__name__}")
        return self.out(x[0] if isinstance(x, (list, tuple)) else x)

    def train_step(self, batch: Any) -> Any:
        self.note("train", batch)
        return super().train_step(batch)

    def test_step(self, batch: Any) -> Any:
        self.note("test", batch)
        return super().test_step(batch)

    def predict_step(self, batch: Any) -> Any:
        self.note("predict", batch)
        return super().predict_step(batch)


@pytest.mark.long
def test_steps_get_the_structures_that_keras_gives_them(tiny: Any) -> None:
    x, y = data()
    w = np.ones(30, "float32")
    notes = []
    for keras_alone in (True, False):
        model = made(Structures)
        trains = model if keras_alone else kfit.Trainer(model, tiny.strategy(1))
        model([x, x])  # built, so that only the calls below make notes
        for inputs in (x, [x, x], (x, x), [[x], x]):
            model.notes.append("new")
            for method, arguments in [
                ("train_on_batch", (inputs, y)),
                ("train_on_batch", (inputs, y, w)),
                ("test_on_batch", (inputs, y)),
                ("predict_on_batch", (inputs,)),
                ("fit", (inputs, y)),
                ("evaluate", (inputs, y)),
                ("predict", (inputs,)),
            ]:
                if inputs is x or not isinstance(inputs[0], list):
                    quiet = {} if method.endswith("batch") else {"verbose": 0}
                    getattr(trains, method)(*arguments, **quiet)
        notes.append(list(dict.fromkeys(model.notes)))
    assert sorted(notes[0]) == sorted(notes[1])


class Gap(Plain):
    """Adds a value to what `evaluate` returns."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        logs = super().evaluate(*args, **kwargs)
        return {**logs, "gap": 2 * logs["loss"]} if kwargs.get("return_dict") else logs


@pytest.mark.long
def test_fit_validates_by_the_models_own_evaluate(strategy: Any) -> None:
    x, y = data()
    seen = []
    for place in (None, strategy):
        model = made(Gap)
        trains = model if place is None else kfit.Trainer(model, place)
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 3}
        stops = keras.callbacks.EarlyStopping("val_gap", mode="min", patience=5)
        for validation in ({"validation_split": 0.3}, {"validation_data": (x, y)}):
            history = trains.fit(x, y, callbacks=[stops], **validation, **options).history
            seen.append({name: np.round(values, 4).tolist() for name, values in history.items()})
    assert seen[:2] == seen[2:]
    assert "val_gap" in seen[0]


class OnlyTrains(Plain):
    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            raise NotImplementedError("this model cannot be used outside of training")
        return self.out(x)


def test_a_model_that_can_only_be_called_in_training(tiny: Any, strategy: Any) -> None:
    (x, y), one, many = data(), made(OnlyTrains), made(OnlyTrains)
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    one.fit(x, y, **options)
    kfit.Trainer(many, strategy).fit(x, y, **options)
    assert tiny.distance(one, many) < 1e-5


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(("fit",), marks=pytest.mark.long),
        ("fit", "draw"),
        pytest.param(("draw", "fit"), marks=pytest.mark.long),
        ("fit", "fit"),
    ],
    ids=["steps0", "steps1", "steps2", "steps3"],
)
def test_random_numbers_after_fit_are_those_after_keras_fit(strategy: Any, steps: Any) -> None:
    """Python's `random`, initial weights of the next model, `keras.random` without a seed."""
    x, y = data()
    seen = []
    for place in (None, strategy):
        model = made()
        model.build((None, 4))
        trains = model if place is None else kfit.Trainer(model, place)
        for step in steps:
            if step == "fit":
                trains.fit(x, y, batch_size=BATCH, verbose=0)
            else:
                keras.random.normal((2,))
        after = random.random()
        following = keras.layers.Dense(2)
        following.build((None, 3))
        drawn = keras.random.normal((3,)).numpy().tolist()
        seen.append((after, following.get_weights()[0].tolist(), drawn, random.random()))
    assert seen[0] == seen[1]


@pytest.mark.long
def test_the_order_is_the_same_under_the_same_seed() -> None:
    x, y = data()

    def losses(trainer: kfit.Trainer) -> list[float]:
        remembers = Remembers()
        trainer.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[remembers])
        return [each[2] for each in remembers.hooks if each[0] == "batch"]

    def program(seed: int) -> list[list[float]]:
        model = made()
        model.compile(keras.optimizers.SGD(0.0), "mse")  # the losses are those of the batches alone
        model.build((None, 4))
        keras.utils.set_random_seed(seed)  # `made` has set another one
        trainer = kfit.Trainer(model, "one_device")
        return [losses(trainer), losses(trainer)]

    first, second = program(3), program(3)
    assert first == second
    assert first[0] != first[1]  # each `fit` has an order of its own
    assert program(4)[0] not in first


class HasNoCall(keras.Model):
    """A model of which only the step calls the layers."""

    def __init__(self, net: keras.Model) -> None:
        super().__init__()
        self.net = net

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.net(x, training=True)))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.long
def test_a_model_without_a_call_whose_layers_cannot_be_built(tiny: Any) -> None:
    model = HasNoCall(keras.Sequential([keras.layers.Dense(1, name="late")]))
    model.compile("sgd")
    data = np.ones((6, 3), "float32"), np.ones((6, 1), "float32")
    with pytest.raises(ValueError, match=r"has no `call` by which kfit could build .*'late'"):
        kfit.Trainer(model, tiny.strategy(2)).predict(data[0], verbose=0)
    for replicas in (2, 1):
        kfit.Trainer(model, tiny.strategy(replicas)).fit(*data, verbose=0)
    assert len(model.trainable_variables) == 2


class Lookahead(keras.optimizers.SGD):
    """Moves slow weights, which begin as the weights, towards the fast ones."""

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.slow = [self.add_variable_from_reference(v, "slow") for v in variables]
        for slow, variable in zip(self.slow, variables, strict=True):
            slow.assign(variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        self.assign(slow, 0.5 * slow + 0.5 * variable)
        self.assign(variable, slow)


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
@pytest.mark.parametrize("name", only(["Lookahead"], ["Lookahead", "ScheduleFreeAdamW"]))
def test_slots_begin_with_the_weights_that_a_build_assigns(
    tiny: Any, name: str, replicas: int
) -> None:
    """Keras loses them in the graph that it throws away, if nobody calls `build` before `fit`."""
    cls = Lookahead if name == "Lookahead" else getattr(keras.optimizers, name, None)
    if cls is None:
        pytest.skip(f"This version of Keras has no {name}.")
    one, two = (tiny.model(optimizer=cls(0.1)) for _ in range(2))
    x, y = tiny.data(16)
    one.optimizer.build(one.trainable_variables)
    one.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    strategy = tiny.strategy(replicas) if replicas > 1 else "one_device"
    kfit.fit(two, x, y, batch_size=8, shuffle=False, verbose=0, strategy=strategy)
    assert tiny.distance(one, two) < 1e-5
