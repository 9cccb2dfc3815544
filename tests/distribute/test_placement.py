"""A call of one trainer within a call of another one that has the same variables on devices."""

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute import placement
from kfit.model import trainer_of
from tests.sweeps import only, sweep

FIXED = {"batch_size": 8, "shuffle": False, "verbose": 0}
Call = Callable[..., Any]


def sharing_models() -> tuple[keras.Model, keras.Model]:
    """Two models that share a layer."""
    keras.utils.set_random_seed(1)
    shared = keras.layers.Dense(5, activation="tanh")
    models = []
    for _ in range(2):
        model = keras.Sequential([keras.Input((4,)), shared, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss)
        models.append(model)
    return models[0], models[1]


class Calls(keras.callbacks.Callback):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self.call = call

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.call()


def program(x: Any, y: Any, trains_other: bool, outer: Any, inner: Any) -> list[Any]:
    """Trains a model; a hook evaluates it, or trains one that shares a layer. Returns all numbers.

    `outer` and `inner` are `(fit, evaluate)`, each called with a model and data.
    """
    model, other = sharing_models()
    results: list[Any] = []
    if trains_other:
        inner[0](other, x, y, **FIXED)  # so that it has graphs of its own already

    def call() -> None:
        if trains_other:
            results.extend(inner[0](other, x, y, **FIXED).history["loss"])
        else:
            results.append(inner[1](model, x, y, verbose=0))

    history = outer[0](model, x, y, epochs=3, callbacks=[Calls(call)], **FIXED)
    results += [*history.history["loss"], outer[1](model, x, y, verbose=0)]
    assert all(not hasattr(v._value, "values") for v in [*model.variables, *other.variables])
    return [np.asarray(v) for v in [*results, *model.get_weights(), *other.get_weights()]]


KERAS = (keras.Model.fit, keras.Model.evaluate)


def on(strategy: Any) -> tuple[Call, Call]:
    """`fit` and `evaluate` on a strategy."""
    return (
        lambda model, *args, **kwargs: trainer_of(model, strategy).fit(*args, **kwargs),
        lambda model, *args, **kwargs: trainer_of(model, strategy).evaluate(*args, **kwargs),
    )


@pytest.mark.parametrize(
    ("replicas", "trains_other"),
    only([(1, False)], [(1, False), (2, True), (3, False), (3, True)]),
)
def test_a_hook_may_call_another_trainer(tiny: Any, replicas: int, trains_other: bool) -> None:
    x, y = tiny.data(22)
    outer = tiny.strategy(2)
    inner = outer if replicas == 2 else tiny.strategy(replicas)
    expected = program(x, y, trains_other, KERAS, KERAS)
    got = program(x, y, trains_other, on(outer), on(inner))
    assert tiny.distance(expected, got) < 1e-5


@pytest.mark.long
def test_a_call_within_a_call_that_fails_gives_the_variables_back(tiny: Any) -> None:
    x, y = tiny.data(22)
    model, _ = sharing_models()
    expected = keras.Model.fit(sharing_models()[0], x, y, epochs=2, **FIXED).history["loss"]
    inner = kfit.Trainer(model, tiny.strategy(3))

    def call() -> None:
        with pytest.raises(ValueError, match="was made for"):
            inner.evaluate(x[:, :3], y, verbose=0)

    trainer = kfit.Trainer(model, tiny.strategy(2))
    got = trainer.fit(x, y, epochs=2, callbacks=[Calls(call)], **FIXED).history["loss"]
    assert np.allclose(expected, got, atol=1e-5)
    assert tiny.is_plain(model)


def test_what_cannot_be_given_away_is_refused_by_name(tiny: Any) -> None:
    x, y = tiny.data(22)
    made_in_scope = kfit.Trainer(lambda: sharing_models()[0], tiny.strategy(2))
    told: list[str] = []

    def call() -> None:
        with pytest.raises(ValueError, match=r"`strategy` is 'mirrored'.*/kernel'"):
            kfit.Trainer(made_in_scope.model, tiny.strategy(3)).evaluate(x, y, verbose=0)
        thread = threading.Thread(target=from_thread)
        thread.start()
        thread.join()

    def from_thread() -> None:
        try:
            kfit.Trainer(made_in_scope.model, made_in_scope.strategy).fit(x, y, **FIXED)
        except ValueError as error:
            told.append(str(error))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made_in_scope.compile(keras.optimizers.SGD(0.2), loss)
    made_in_scope.fit(x, y, callbacks=[Calls(call)], **FIXED)
    assert ["another thread" in text for text in told] == [True]


class Predicted(keras.utils.PyDataset):
    """Batches that threads of the data set make, by a part of the model that is trained."""

    def __init__(self, part: keras.Model, x: Any, y: Any, **options: Any) -> None:
        super().__init__(**options)
        self.part, self.x, self.y = part, x, y
        self.seen: dict[int, Any] = {}

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(8 * index, 8 * index + 8)
        self.seen[index] = self.part.predict_on_batch(self.x[rows])
        return self.x[rows], self.y[rows]


def with_frozen_part() -> tuple[keras.Model, keras.Model]:
    """A part that no training changes, and a compiled model that has it."""
    keras.utils.set_random_seed(1)
    part = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh")])
    part.trainable = False
    model = keras.Sequential([keras.Input((4,)), part, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss)
    return part, model


def predicting(kind: str, x: Any, y: Any) -> list[Any]:
    """Trains on batches for which a thread predicts; returns all numbers."""
    part, model = with_frozen_part()
    numbers = [part.predict(x, verbose=0)]  # so that it has graphs of its own already
    made = data = Predicted(part, x, y, workers=2 if kind == "several threads" else 1)
    if kind == "graph":
        shapes = tf.TensorSpec((None, 4)), tf.TensorSpec((None,), tf.int64)
        data = tf.data.Dataset.from_generator(
            lambda: map(made.__getitem__, range(3)), output_signature=shapes
        )
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    numbers += [*history["loss"], *(made.seen[index] for index in range(3))]
    return [*numbers, part.predict(x, verbose=0), *model.get_weights(), *part.get_weights()]


@pytest.mark.parametrize("kind", sweep(["one thread", "several threads", "graph"], every=3))
def test_the_data_may_predict_with_a_part_of_the_model(tiny: Any, kind: str) -> None:
    x, y = tiny.data(24)
    x, y = x.astype("float32"), y.astype("int64")
    expected = predicting(kind, x, y)
    with kfit.install(tiny.strategy(2)):
        got = predicting(kind, x, y)
    for one, other in zip(expected, got, strict=True):
        assert np.allclose(one, other, atol=1e-5)


def test_a_part_that_is_trained_is_predicted_with_as_it_is_now(tiny: Any) -> None:
    x, y = tiny.data(24)
    part, model = with_frozen_part()
    part.trainable = True
    model.compile("sgd", model.loss)
    seen: list[Any] = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            thread = threading.Thread(target=lambda: seen.append(part.predict(x, verbose=0)))
            thread.start()
            thread.join()
            seen[-1] -= part(x)

    with kfit.install(tiny.strategy(2)):
        model.fit(x, y, epochs=2, callbacks=[Looks()], **FIXED)
        assert np.allclose(part.predict(x, verbose=0), part(x), atol=1e-6)
    assert len(seen) == 6
    assert np.allclose(seen, 0.0, atol=1e-6)
    assert tiny.is_plain(model)


def test_threads_train_models_that_share_a_frozen_layer(tiny: Any) -> None:
    x, y = tiny.data(24)

    def trained(in_threads: bool) -> tuple[list[Any], keras.Model]:
        part, first = with_frozen_part()
        second = keras.Sequential([keras.Input((4,)), part, keras.layers.Dense(3)])
        second.compile("adam", first.loss)
        threads = [
            threading.Thread(target=partial(model.fit, x, y, epochs=3, **FIXED))
            for model in (first, second)
        ]
        for thread in threads:
            thread.start() if in_threads else thread.run()
        for thread in threads:
            thread.join(120.0) if in_threads else None
            assert not thread.is_alive()
        assert not any(variable.trainable for variable in part.variables)
        return [*first.get_weights(), *second.get_weights()], first

    expected, _ = trained(in_threads=False)
    with kfit.install(tiny.strategy(2)):
        for _ in range(2):
            got, model = trained(in_threads=True)
            assert all(np.allclose(*pair, atol=1e-5) for pair in zip(expected, got, strict=True))
            assert tiny.is_plain(model)


def test_all_models_have_one_strategy_by_name() -> None:
    strategies = {kfit.distribute.as_strategy("mirrored").tf_strategy for _ in range(2)}
    assert len(strategies) == 1


def test_what_left_its_scope_for_another_trainer_has_left_it_for_all(tiny: Any) -> None:
    x, y = tiny.data(16)
    strategy = tiny.strategy(2)
    in_scope = kfit.Trainer(lambda: sharing_models()[0], strategy)
    model = in_scope.model
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss)
    kfit.Trainer(model, "one_device").fit(x, y, **FIXED)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss)
    in_scope.fit(x, y, **FIXED)
    assert tiny.is_plain(model)
    model.fit(x, y, **FIXED)  # Keras' own


@pytest.mark.parametrize("replicas", only([1], [1, 2]))
def test_what_a_hook_compiles_can_be_used_in_the_hook(tiny: Any, replicas: int) -> None:
    x, y = tiny.data(16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def program(calls: Any) -> list[Any]:
        model, _ = sharing_models()
        results: list[Any] = []

        def call() -> None:
            if not results:
                model.compile(keras.optimizers.Adam(0.1), loss, metrics=["accuracy"])
                results.extend(calls("evaluate", model, x, y, verbose=0))
                results.extend(calls("train_on_batch", model, x[:8], y[:8]))
                model.make_train_function()  # Keras would call None

        options = {"epochs": 2, "callbacks": [Calls(call)], **FIXED}
        history = calls("fit", model, x, y, **options).history
        assert tiny.is_plain(model)
        return [*results, *history["loss"], *history["accuracy"][-1:], *model.get_weights()]

    def on_replicas(name: str, model: keras.Model, *args: Any, **options: Any) -> Any:
        return getattr(trainer_of(model, strategy), name)(*args, **options)

    strategy = tiny.strategy(replicas)
    expected = program(lambda name, *args, **more: getattr(keras.Model, name)(*args, **more))
    got = program(on_replicas)
    assert len(got) == len(expected)
    for found, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def _compile(model: keras.Model) -> None:
    model.compile(keras.optimizers.Adam(0.01), model.loss)


def _replace_optimizer(model: keras.Model) -> None:
    model.optimizer = keras.optimizers.Adam(0.01)


def _trace_anew(model: keras.Model) -> None:
    model.make_train_function(force=True)


def _run_eagerly(model: keras.Model) -> None:
    model.run_eagerly = True


@pytest.mark.parametrize("change", only([_compile], [_compile, _replace_optimizer, _run_eagerly]))
def test_a_hook_replaces_no_variable_on_one_device(
    tiny: Any, change: Callable[[keras.Model], None]
) -> None:
    """Functions that the program has traced, and its other optimizers, refer to the variables."""
    model = tiny.model()
    first = model.optimizer
    first.build(model.trainable_variables)
    before = {id(v): (v, v.value) for v in [*model.variables, *first.variables]}

    class Changes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                change(model)
                _trace_anew(model)

    x, y = tiny.data()
    kfit.Trainer(model, "one_device").fit(x, y, epochs=2, callbacks=[Changes()], **FIXED)
    assert all(variable.value is value for variable, value in before.values())
    first.apply([np.ones(v.shape, "float32") for v in model.trainable_variables])


def test_what_is_compiled_between_predictions_can_be_trained(tiny: Any) -> None:
    x, y = tiny.data(16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model, _ = sharing_models()
    trainer = kfit.Trainer(model, tiny.strategy(2))
    expected = keras.Model.predict(model, x, verbose=0)
    predictions = trainer.predict_iter(x, batch_size=8, verbose=0)
    first = next(predictions)
    model.compile(keras.optimizers.SGD(0.0), loss)
    trained = trainer.train_on_batch(x, y)
    np.testing.assert_allclose([*first, *next(predictions)], expected, atol=1e-5)
    predictions.close()
    np.testing.assert_allclose(trained, loss(y, expected), atol=1e-5)
    assert tiny.is_plain(model)


class Counted(keras.metrics.Metric):
    """Counts examples, from a number that it has at the beginning or is set to."""

    def __init__(self, dtype: str, first: int) -> None:
        super().__init__(name="counted")
        constant = keras.initializers.Constant(first)
        self.number = self.add_variable((), constant, dtype=dtype, name="number")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ones = keras.ops.ones_like(y_true, dtype=self.number.dtype)
        self.number.assign_add(keras.ops.sum(ones))

    def result(self) -> Any:
        return keras.ops.cast(self.number, "float32")

    def reset_state(self) -> None:
        """Goes on counting from call to call."""


@pytest.mark.parametrize(
    ("dtype", "first"), only([("float32", 0.5)], [("float32", 0.5), ("int32", 3)])
)
def test_what_replicas_add_to_begins_with_one_value(tiny: Any, dtype: str, first: int) -> None:
    def numbers(replicas: int) -> list[Any]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        metric = Counted(dtype, first)
        model.compile("sgd", "mse", metrics=[metric])
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        setting = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: metric.number.assign(7 if epoch == 1 else 8)
        )
        x = np.ones((10, 4), "float32")
        found = []
        for callbacks in ([], [setting], []):
            history = trainer.fit(x, x[:, :1], epochs=2, callbacks=callbacks, **FIXED).history
            found += [*history["counted"], float(metric.number)]
        return found

    assert numbers(1) == numbers(3)


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Python's own handler is in force, by which Ctrl-C raises a KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("borrows", "move"),
    only([(True, "take_back")], itertools.product([False, True], ["place", "take_back"])),
)
def test_an_interrupt_waits_until_variables_are_moved(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, move: str, borrows: bool
) -> None:
    (x, y), model = tiny.data(16), tiny.model()
    trainer, other = (kfit.Trainer(model, strategy=tiny.strategy(n)) for n in (2, 1))
    trainer.fit(x, y, **FIXED)
    other.predict(x, verbose=0)
    expected, original = tiny.weights(model), getattr(placement._Pair, move)
    due = [signal.SIGINT] if not borrows else []

    def moved(self: Any, strategy: Any) -> None:
        while due:
            signal.raise_signal(due.pop())
        original(self, strategy)

    class Predicts(keras.callbacks.Callback):
        def on_predict_end(self, logs: Any = None) -> None:
            due.append(signal.SIGINT)
            other.predict(x, verbose=0)

    monkeypatch.setattr(placement._Pair, move, moved)
    with ctrl_c(), pytest.raises(KeyboardInterrupt):
        trainer.predict(x, verbose=0, callbacks=[Predicts()] if borrows else None)
    assert not due
    assert tiny.is_plain(model)
    for got, one in zip(tiny.weights(model), expected, strict=True):
        np.testing.assert_array_equal(got, one)
    trainer.fit(x, y, **FIXED)


@pytest.mark.long
def test_a_hook_may_use_another_optimizer_that_the_model_holds(tiny: Any) -> None:
    x, y = tiny.data(16)
    weights = []
    for replicas in (0, 1, 2):
        model = tiny.model()
        model.second = keras.optimizers.SGD(0.1)

        def update(epoch: int, logs: Any, model: Any = model) -> None:
            variables = model.trainable_variables
            model.second.apply([keras.ops.ones(v.shape) for v in variables], variables)

        hook = keras.callbacks.LambdaCallback(on_epoch_end=update)
        trainer = kfit.Trainer(model, tiny.strategy(replicas)) if replicas else model
        trainer.fit(x, y, epochs=2, callbacks=[hook], **FIXED)
        weights.append(model.get_weights())
    for got in weights[1:]:
        assert tiny.distance(got, weights[0]) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("is_built", [False, True])
def test_a_hook_may_use_the_optimizer_that_it_has_just_compiled(tiny: Any, is_built: bool) -> None:
    x, y = tiny.data(16)
    weights = []
    for replicas in (0, 2):
        model, optimizer = tiny.model(), keras.optimizers.SGD(0.1, momentum=0.9)

        def update(epoch: int, logs: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            variables = model.trainable_variables
            if epoch == 0:
                _compile(model)
                model.compile(optimizer, model.loss)
                _trace_anew(model)
                if is_built:
                    optimizer.build(variables)
            optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)

        hook = keras.callbacks.LambdaCallback(on_epoch_end=update)
        trainer = kfit.Trainer(model, tiny.strategy(replicas)) if replicas else model
        trainer.fit(x, y, epochs=2, callbacks=[hook], **FIXED)
        assert tiny.is_plain(model)
        weights.append([*model.get_weights(), *map(np.array, optimizer.variables)])
    assert tiny.distance(*weights) < 1e-5


def test_an_optimizer_that_the_model_does_not_hold_is_refused_in_hooks_on_replicas(
    tiny: Any,
) -> None:
    x, y = tiny.data(16)
    model = tiny.model()
    other = keras.optimizers.SGD(0.1, name="other")

    def update(epoch: int, logs: Any) -> None:
        variables = model.trainable_variables
        other.apply([keras.ops.ones(v.shape) for v in variables], variables)

    hook = keras.callbacks.LambdaCallback(on_epoch_end=update)
    with pytest.raises(ValueError, match=r"'other' updates .* Keep the optimizer in an attribute"):
        kfit.Trainer(model, tiny.strategy(2)).fit(x, y, callbacks=[hook], **FIXED)
    kfit.Trainer(model, "one_device").fit(x, y, callbacks=[hook], **FIXED)
