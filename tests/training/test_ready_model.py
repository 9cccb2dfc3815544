"""A model made ready for a call: on the devices within, a plain Keras model before and after."""

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.factory import as_strategy
from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.inputs import as_batches
from kfit.training.ready_model import ReadyModel
from tests.sweeps import only

X, Y = np.zeros((8, 3), np.float32), np.zeros((8, 1), np.float32)


class OwnStep(keras.Sequential):
    """A model whose training step needs no targets."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": 0.0}


def compiled(kind: type[keras.Sequential] = keras.Sequential, inputs: int = 3) -> keras.Model:
    model = kind([keras.Input((inputs,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def strategy() -> Strategy:
    return as_strategy("mirrored", compiled(), ["CPU:0", "CPU:1"])


def ready(model: keras.Model, strategy: Strategy) -> ReadyModel:
    return ReadyModel(model, strategy, Heartbeat.of_environment())


def test_the_variables_are_on_the_devices_within_the_context_only(strategy: Strategy) -> None:
    model = compiled()
    batches = as_batches(X, Y, strategy=strategy, batch_size=4)
    made = ready(model, strategy)
    with made.working(batches, "train"):
        assert len(model.weights[0].value.values) == 2
        made.build_optimizer()
        assert len(model.optimizer.variables[-1].value.values) == 2
    assert not hasattr(model.weights[0].value, "values")


def test_an_evaluation_builds_no_optimizer(strategy: Strategy) -> None:
    model = compiled()
    with ready(model, strategy).working(as_batches(X, Y, strategy=strategy), "evaluate"):
        assert not model.optimizer.built


@pytest.mark.parametrize("restores", [False, True])
def test_the_first_eager_step_of_one_replica_builds(restores: bool) -> None:
    """Unless a snapshot may be restored before it."""
    model, alone = compiled(), as_strategy("one_device", compiled())
    model.run_eagerly = True
    batches = as_batches(X, Y, strategy=alone, batch_size=4)
    made = ready(model, alone)
    with made.working(batches, "train", restores=restores):
        made.build_optimizer()
        assert model.optimizer.built == restores


def _set_momentum(model: keras.Model) -> None:
    model.optimizer.momentum = 0.9


def _build_with_momentum(model: keras.Model) -> None:
    _set_momentum(model)
    model.optimizer.build(model.trainable_variables)


def _set_average(model: keras.Model) -> None:
    model.optimizer.use_ema = True


def _set_window(model: keras.Model) -> None:
    model.optimizer.gradient_accumulation_steps = 2


def _freeze(model: keras.Model) -> None:
    model.layers[0].trainable = False


class ChangesOptimizer(keras.callbacks.Callback):
    """Changes the optimizer in one hook, at its first call."""

    def __init__(self, hook: str, change: Callable[[keras.Model], None]) -> None:
        super().__init__()
        self._change: Callable[[keras.Model], None] | None = change
        setattr(self, hook, self._called)

    def _called(self, *arguments: Any, **options: Any) -> None:
        change, self._change = self._change, None
        if change is not None:
            assert not self.model.optimizer.built
            change(self.model)


HOOKS = [
    ("on_train_begin", _set_momentum),
    ("on_epoch_begin", _set_average),
    ("on_train_batch_begin", _set_window),
    ("on_train_begin", _build_with_momentum),
    ("on_train_begin", _freeze),
]
MIRRORED = "CPU:0 CPU:1"


@pytest.mark.parametrize(
    ("hook", "change", "on"),
    only(
        [
            ("on_train_begin", _set_momentum, "CPU:0"),
            ("on_epoch_begin", _set_average, MIRRORED),
            ("on_train_begin", _freeze, MIRRORED),
        ],
        [(*each, on) for each in HOOKS for on in ("CPU:0", MIRRORED)],
    ),
)
def test_hooks_decide_on_the_slots_of_the_optimizer(
    hook: str, change: Callable[[keras.Model], None], on: str
) -> None:
    """As in Keras, which builds it in the first step."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    y = x.sum(1, keepdims=True)

    def trained(fit: Callable[[keras.Model], Callable[..., Any]]) -> keras.Model:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        fit(model)(x, y, **options, callbacks=[ChangesOptimizer(hook, change)])
        return model

    alone = trained(lambda model: model.fit)
    other = trained(lambda model: kfit.Trainer(model, kfit.distribute.Mirrored(on.split())).fit)
    assert len(other.optimizer.variables) == len(alone.optimizer.variables)
    for weight, expected in zip(other.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_an_eager_training_that_reads_values_resumes(tmp_path: Path) -> None:
    def loss(y: Any, y_pred: Any) -> Any:
        assert np.isfinite(y_pred.numpy()).all()
        return keras.ops.mean((y - y_pred) ** 2, axis=-1)

    def trained(failing: bool) -> None:
        def begin(epoch: int, logs: Any) -> None:
            if failing and epoch == 2:
                raise InterruptedError
            begun.append(epoch)

        model = compiled()
        model.compile("adam", loss, run_eagerly=True)
        backup = kfit.callbacks.BackupAndRestore(tmp_path)
        callbacks = [backup, keras.callbacks.LambdaCallback(on_epoch_begin=begin)]
        kfit.fit(model, X, Y, epochs=4, strategy="one_device", verbose=0, callbacks=callbacks)

    begun: list[int] = []
    with pytest.raises(InterruptedError):
        trained(failing=True)
    trained(failing=False)
    assert begun == [0, 1, 2, 3]


def test_the_data_is_closed_also_after_an_error(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    batches = as_batches(X, Y, strategy=strategy, batch_size=4)
    monkeypatch.setattr(batches, "close", lambda: closed.append(True))
    with (
        pytest.raises(RuntimeError, match="of the call"),
        ready(compiled(), strategy).working(batches, "train"),
    ):
        raise RuntimeError("of the call")
    assert closed == [True]


def test_wrong_data_is_named_while_the_model_is_built(strategy: Strategy) -> None:
    batches = as_batches(X, Y, strategy=strategy, batch_size=4)
    with (
        pytest.raises(ValueError, match="`x`"),
        ready(compiled(inputs=5), strategy).working(batches, "train"),
    ):
        pass


def test_a_step_of_the_models_own_may_need_no_targets(strategy: Strategy) -> None:
    batches = as_batches(X, None, strategy=strategy, batch_size=4)
    ready(compiled(OwnStep), strategy).require_targets(batches, "train_step")
    with pytest.raises(ValueError, match="`y`"):
        ready(compiled(), strategy).require_targets(batches, "train_step")


@pytest.mark.parametrize(
    ("is_own", "replicas"),
    only([(False, 2)], itertools.product([False, True], [1, 2])),
)
def test_a_prediction_leaves_the_loss_and_the_metrics_to_the_training(
    tiny: Any, replicas: int, is_own: bool
) -> None:
    """The targets of its data may be others, by which "accuracy" would be another metric."""

    class OwnPrediction(keras.Sequential):
        def predict_step(self, data: Any) -> Any:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            return self(x, training=False)

    kind = OwnPrediction if is_own else keras.Sequential
    model = kind([keras.Input((3,)), keras.layers.Dense(4, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    ids = tf.data.Dataset.from_tensor_slices((X, np.arange(8)[:, None])).batch(5)
    trainer.predict(ids, verbose=0)
    one_hot = np.eye(4, dtype="float32")[np.arange(8) % 4]
    assert trainer.evaluate(X, one_hot, verbose=0)[1] == pytest.approx(
        float(np.mean(np.argmax(model.predict(X, verbose=0), 1) == np.arange(8) % 4))
    )


class Drawn(keras.layers.Layer):
    """A layer that draws the seeds of its weights when it is built, with a weight for each input.

    Layers made in `build`, and those of MultiHeadAttention, draw their seeds then, too.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="random_normal")
        self.scale = self.add_weight(shape=shape[1:], initializer="random_normal", name="scale")

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x * self.scale, self.kernel)


class OfParts(keras.Model):
    """A model of three layers, the last of which its `call` uses for inference only."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Drawn(3), Drawn(3), Drawn(1)

    def call(self, x: Any) -> Any:
        return self.three(self.one(x))

    def learned(self, loss: Callable[[], Any]) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            value = loss()
        weights = self.trainable_variables
        pairs = zip(tape.gradient(value, weights), weights, strict=True)
        self.optimizer.apply_gradients((g, w) for g, w in pairs if g is not None)
        return {"loss": value}


class Pretext(OfParts):
    """Its training decodes what it has encoded, and leaves the head of `call` alone."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.learned(lambda: keras.ops.mean((self.two(self.one(x)) - x) ** 2))


class Student(OfParts):
    """Its training calls the teacher first; `call` is the student."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([Drawn(2), Drawn(1)])

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        taught = self.three(self.two(x))
        return self.learned(lambda: keras.ops.mean((self(x, training=True) - taught) ** 2))


class Generating(OfParts):
    """Its `call` generates from a latent vector, which has fewer numbers than the data."""

    def call(self, latent: Any) -> Any:
        return self.one(latent)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.learned(lambda: keras.ops.mean(self.two(x) - self.two(self.one(x[:, :2]))))


class Windowed(OfParts):
    """Its training cuts windows out of the data, and its `call` takes a window."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.learned(lambda: keras.ops.mean((self(x[:, 1:], training=True) - y) ** 2))


class Auxiliary(OfParts):
    """Only training calls the second layer, before the last one; only inference the first one."""

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(keras.ops.mean(self.two(x)))
        else:
            x = self.one(x)
        return self.three(x)


class LossFirst(OfParts):
    """Its loss calls a layer, and its metrics another one, which is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.three.trainable = False

    def call(self, x: Any) -> Any:
        return self.one(x)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, weights: Any, training: Any = None) -> Any:
        return keras.ops.mean((self.two(y_pred) - y) ** 2)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.three(y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)


class OtherSteps(OfParts):
    """Its evaluation and its prediction call the layers from the last to the first."""

    def test_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        loss = keras.ops.mean((self.one(self.two(x)) - y) ** 2)
        self.metrics[0].update_state(loss)
        return {"loss": loss}

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.one(self.three(x))


class Outer(OfParts):
    """Its training calls a model within it, and a layer of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = OfParts(), OfParts()

    def call(self, x: Any) -> Any:
        return self.other(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.learned(lambda: keras.ops.mean(self.other.two(x) * self.inner(x)))


def _fitted(trainer: Any) -> None:
    trainer.fit(X, Y, batch_size=4, shuffle=False, verbose=0)


def _fitted_twice(trainer: Any) -> None:
    _fitted(trainer)
    _fitted(trainer)  # builds nothing more


def _fitted_with_validation(trainer: Any) -> None:
    trainer.fit(X, Y, batch_size=4, shuffle=False, verbose=0, validation_data=(X, Y))


def _trained_on_a_batch(trainer: Any) -> None:
    trainer.train_on_batch(X, Y)


def _evaluated(trainer: Any) -> None:
    trainer.evaluate(X, Y, verbose=0)


def _predicted(trainer: Any) -> None:
    trainer.predict(X, verbose=0)


BUILT: dict[str, tuple[type[OfParts], Callable[[Any], None], bool]] = {
    "pretext": (Pretext, _fitted_twice, False),
    "auxiliary": (Auxiliary, _fitted, False),
    "pretext, eager": (Pretext, _fitted, True),
    "student": (Student, _fitted_with_validation, False),
    "generating": (Generating, _fitted, False),
    "auxiliary, validated": (Auxiliary, _fitted_with_validation, False),
    "windowed": (Windowed, _trained_on_a_batch, False),
    "pretext, validated": (Pretext, _fitted_with_validation, False),
    "evaluated": (OtherSteps, _evaluated, False),
    "loss first": (LossFirst, _trained_on_a_batch, False),
    "predicted": (OtherSteps, _predicted, False),
    "auxiliary, eager": (Auxiliary, _fitted, True),
    "outer": (Outer, _trained_on_a_batch, False),
    "evaluated by Keras": (Auxiliary, _evaluated, False),
}


DAILY = ("pretext", "generating", "auxiliary, validated", "evaluated")


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param({name: BUILT[name] for name in DAILY}, id="some"),
        pytest.param(
            {name: case for name, case in BUILT.items() if name not in DAILY},
            id="others",
            marks=pytest.mark.long,
        ),
    ],
)
def test_layers_are_built_in_the_order_of_the_first_step(tiny: Any, cases: dict[str, Any]) -> None:
    """So they draw the same initial weights as in Keras, and have the same paths."""

    def built(name: str, replicas: int) -> dict[str, Any]:
        kind, use, eager = cases[name]
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        model = kind()
        model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=eager)
        use(kfit.Trainer(model, tiny.strategy(replicas)) if replicas else model)
        return {each.path: each.numpy() for each in model.weights}

    wrong = []
    for name in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, *others = [built(name, replicas) for replicas in (0, 1, 2)]
        for replicas, found in enumerate(others, 1):
            if list(found) != list(expected):
                wrong.append((name, replicas, list(expected), list(found)))
            elif not all(np.array_equal(found[path], expected[path]) for path in expected):
                wrong.append((name, replicas, "other values"))
    assert wrong == []


def test_a_function_of_tensorflow_keeps_no_trace_of_the_building(tiny: Any) -> None:
    """The trace updates no weights, and a later training of Keras would use it."""

    class Decorated(Pretext):
        @tf.function
        def train_step(self, data: Any) -> dict[str, Any]:
            return Pretext.train_step(self, data)

    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model = Decorated()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(4)
    kfit.Trainer(model, tiny.strategy(2)).fit(data, verbose=0)
    before = model.get_weights()
    model.fit(data, verbose=0)
    assert tiny.distance(before, model) > 0


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_that_its_step_builds_resumes(tmp_path: Path, tiny: Any, replicas: int) -> None:
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def trained(folder: str, *, until: int) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = Pretext()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        backup = kfit.callbacks.BackupAndRestore(tmp_path / folder, delete_checkpoint=False)
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        trainer.fit(x, Y, epochs=until, batch_size=4, verbose=0, callbacks=[backup])
        return model

    whole = trained("whole", until=3)
    trained("parts", until=1)
    assert tiny.distance(whole, trained("parts", until=3)) < 1e-6


class FailsFirst(keras.Sequential):
    """A model whose own step fails while it builds the layers, until it is mended."""

    mended = False

    def train_step(self, data: Any) -> Any:
        x, y = data
        prediction = self(x, training=True)
        if not self.mended:
            raise RuntimeError("the error of the step")
        return {"mean": keras.ops.mean(prediction - y)}


def test_the_error_of_a_step_that_builds_is_raised(strategy: Strategy) -> None:
    model = FailsFirst([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the error of the step"):
            kfit.fit(model, X, Y, batch_size=4, verbose=0, strategy=strategy)
    model.mended = True
    weights = model.get_weights()
    assert np.ptp(weights[0]) > 0  # drawn, as if the step had not failed
    kfit.fit(model, X, Y, batch_size=4, verbose=0, strategy=strategy)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)
