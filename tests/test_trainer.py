"""The Trainer takes any model, trains it in place, and gives it back as a plain Keras model."""

import copy
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from kfit.distribute.factory import tell_choice
from tests.sweeps import only

# Models made outside of any scope, from what `(4,)` features to 3 logits take.


def sequential() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(3)])


def sequential_without_input() -> keras.Model:
    return keras.Sequential([layers.Dense(6, "tanh"), layers.Dense(3)])


def functional_with_shared_layer() -> keras.Model:
    x = keras.Input((4,))
    shared = layers.Dense(4, "tanh")
    return keras.Model(x, layers.Dense(3)(shared(shared(x))))


def with_lambda() -> keras.Model:
    double = layers.Lambda(lambda x: x * 2)
    return keras.Sequential([keras.Input((4,)), double, layers.Dense(3)])


class Subclassed(keras.Model):
    """Builds its layers when it first sees data, one of them in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(5, "tanh"), layers.Dropout(0.0)]
        self.out = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return self.out(x)


class WithOwnVariable(keras.layers.Layer):
    """A layer that counts its calls in training, in a variable of its own."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign(self.calls + 1)
        return x * self.scale


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((4,)), WithOwnVariable(), layers.Dense(5, "tanh")])
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(3)(inner(x)))


MODELS = [
    sequential,
    sequential_without_input,
    functional_with_shared_layer,
    with_lambda,
    Subclassed,
    nested,
]


def compiled(make: Callable[[], keras.Model], optimizer: Any = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.2, momentum=0.5), loss, metrics=["accuracy"])
    return model


FIXED = {"batch_size": 20, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize("make", only([sequential], MODELS), ids=lambda make: make.__name__)
def test_any_model_is_trained_in_place(tiny: Any, make: Callable[[], keras.Model]) -> None:
    x, y = tiny.data(50)
    one, many = compiled(make), compiled(make)
    one.fit(x, y, epochs=2, **FIXED)
    trainer = kfit.Trainer(many, tiny.strategy(2))
    trainer.fit(x, y, epochs=2, **FIXED)
    assert trainer.model is many
    assert tiny.distance(one, many) < 1e-6
    # It is a plain Keras model again.
    assert tiny.is_plain(many)
    np.testing.assert_allclose(many(x[:5]), one(x[:5]), atol=1e-5)


@pytest.mark.parametrize(
    "make", only([Subclassed], [sequential_without_input, Subclassed]), ids=lambda m: m.__name__
)
def test_initial_weights_are_those_of_keras_under_the_same_seed(tiny: Any, make: Any) -> None:
    """Of models that are built by their first batch, of layers that draw without a seed, too."""
    x, y = tiny.data(8)
    trained = []
    for strategy in (None, tiny.strategy(1), tiny.strategy(2)):
        keras.utils.set_random_seed(1)
        model = make()
        model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=strategy is None)
        target = keras.utils.to_categorical(y, 3)
        if strategy is None:
            model.fit(x, target, verbose=0)
        else:
            kfit.Trainer(model, strategy).fit(x, target, verbose=0)
        trained.append(model)
    assert tiny.distance(trained[0], trained[1]) == tiny.distance(trained[0], trained[2]) == 0.0


def test_keras_goes_on_with_what_kfit_trained(tiny: Any) -> None:
    x, y = tiny.data(50)
    one, many = compiled(sequential), compiled(sequential)
    trainer = kfit.Trainer(many, tiny.strategy(2))
    for fits in (one.fit, one.fit, one.fit), (trainer.fit, many.fit, trainer.fit):
        for fit in fits:
            fit(x, y, **FIXED)
    assert tiny.distance(one, many) < 1e-6
    expected = one.predict(x, verbose=0)
    np.testing.assert_allclose(many.predict(x, verbose=0), expected, atol=1e-5)
    assert many.evaluate(x, y, verbose=0) == pytest.approx(one.evaluate(x, y, verbose=0), rel=1e-5)


def test_what_only_the_model_has_is_found_there(tiny: Any) -> None:
    trainer: Any = kfit.Trainer(tiny.model(), "one_device")
    for name in ("summary", "layers", "get_weights"):
        with pytest.raises(AttributeError, match=rf"but its model has: `trainer\.model\.{name}`"):
            getattr(trainer, name)
    with pytest.raises(AttributeError, match=r"'load': `keras\.models\.load_model\(path\)` reads"):
        trainer.load  # noqa: B018
    with pytest.raises(AttributeError, match=r"'Trainer' object has no attribute 'fitt'$"):
        trainer.fitt  # noqa: B018
    assert copy.copy(trainer).model is trainer.model


def test_references_to_variables_stay_good(tiny: Any) -> None:
    model = tiny.model()
    kernel = model.layers[0].kernel
    plain = kernel.value
    trainer = kfit.Trainer(model, tiny.strategy(2))
    seen: list[Any] = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(kernel.numpy())
    )
    trainer.fit(*tiny.data(50), callbacks=[watch], **FIXED)
    assert model.layers[0].kernel is kernel
    assert kernel.value is plain
    np.testing.assert_array_equal(seen[-1], kernel.numpy())
    assert not np.array_equal(seen[0], seen[-1])
    # What is written through a reference between two calls is where training goes on.
    kernel.assign(kernel * 0 + 7)
    model.optimizer.learning_rate = 0.0
    trainer.fit(*tiny.data(50), **FIXED)
    np.testing.assert_array_equal(kernel.numpy(), np.full((4, 8), 7.0))


@pytest.mark.long
def test_a_model_given_as_a_function_is_built_in_scope(tiny: Any) -> None:
    scopes: list[Any] = []

    def build() -> keras.Model:
        scopes.append(tf.distribute.get_strategy())
        return compiled(sequential)

    trainer = kfit.Trainer(build, tiny.strategy(2))
    assert scopes == [trainer.strategy.tf_strategy]
    trainer.fit(*tiny.data(50), epochs=2, **FIXED)
    one = compiled(sequential)
    one.fit(*tiny.data(50), epochs=2, **FIXED)
    assert tiny.distance(one, trainer.model) < 1e-6
    np.testing.assert_allclose(
        trainer.model.predict(tiny.data(50)[0], verbose=0),
        one.predict(tiny.data(50)[0], verbose=0),
        atol=1e-5,
    )


@pytest.mark.long
def test_all_of_it_in_the_scope_of_the_default_strategy(tiny: Any) -> None:
    """Programs take the strategy of `tf.distribute.get_strategy()` where there is no TPU."""
    one = compiled(sequential)
    one.fit(*tiny.data(50), epochs=2, **FIXED)
    with tf.distribute.get_strategy().scope():
        model = compiled(sequential)
        trainer = kfit.Trainer(model, tiny.strategy(2))
        trainer.fit(*tiny.data(50), epochs=2, **FIXED)
        trainer.evaluate(*tiny.data(50), verbose=0)
        variable = tf.Variable(1.0)
    assert trainer.num_replicas == 2
    assert not isinstance(variable, tf.distribute.DistributedValues)
    assert tiny.distance(one, model) < 1e-6


def test_a_model_made_in_the_scope_of_a_strategy(tiny: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        model = compiled(sequential)
    trainer = kfit.Trainer(model, strategy)
    assert trainer.num_replicas == 2
    trainer.fit(*tiny.data(50), epochs=2, **FIXED)
    one = compiled(sequential)
    one.fit(*tiny.data(50), epochs=2, **FIXED)
    assert tiny.distance(one, model) < 1e-6


@pytest.mark.long
def test_an_optimizer_put_in_place_of_another_is_used(tiny: Any, strategy: Any) -> None:
    x, y = tiny.data(50)
    one, many = compiled(sequential), compiled(sequential)
    trainer = kfit.Trainer(many, strategy)
    for model, fit in ((one, one.fit), (many, trainer.fit)):
        fit(x, y, **FIXED)
        model.optimizer = keras.optimizers.SGD(0.02)
        one.train_function = None  # Keras would go on with the old one, which it has traced
        fit(x, y, **FIXED)
        assert int(model.optimizer.iterations) > 0
    assert tiny.distance(one, many) < 1e-6


# What was there before is kept.


@pytest.mark.long
def test_training_goes_on_from_the_optimizer_state_of_keras(tiny: Any) -> None:
    def adam() -> keras.Model:
        return compiled(sequential, keras.optimizers.Adam(0.01, epsilon=1e-3))

    x, y = tiny.data(50)
    one, many = adam(), adam()
    for model in (one, many):
        model.fit(x, y, epochs=2, **FIXED)
    one.fit(x, y, epochs=2, **FIXED)
    kfit.Trainer(many, tiny.strategy(2)).fit(x, y, epochs=2, **FIXED)
    assert int(many.optimizer.iterations) == int(one.optimizer.iterations) == 12
    assert tiny.distance(one, many) < 1e-6
    states = [[v.numpy() for v in model.optimizer.variables] for model in (one, many)]
    assert tiny.distance(*states) < 1e-6
    # And back: Keras goes on from kfit's.
    for model in (one, many):
        model.fit(x, y, **FIXED)
    assert tiny.distance(one, many) < 1e-6


@pytest.mark.long
def test_what_was_compiled_is_kept(tiny: Any) -> None:
    model = sequential()
    options = {"loss_weights": [0.5], "weighted_metrics": ["accuracy"], "run_eagerly": False}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss, steps_per_execution=2, **options)
    before = model.optimizer, model.loss, model.get_compile_config(), model.steps_per_execution
    kfit.Trainer(model, tiny.strategy(2)).fit(*tiny.data(50), **FIXED)
    after = model.optimizer, model.loss, model.get_compile_config(), model.steps_per_execution
    assert after == before


@pytest.mark.long
def test_compile_is_keras_compile(tiny: Any) -> None:
    trainer = kfit.Trainer(sequential(), tiny.strategy(2))
    trainer.model.set_weights(compiled(sequential).get_weights())
    model = compiled(sequential)
    trainer.compile(
        model.optimizer.from_config(model.optimizer.get_config()), model.loss, metrics=["accuracy"]
    )
    x, y = tiny.data(50)
    trainer.fit(x, y, **FIXED)
    model.fit(x, y, **FIXED)
    assert tiny.distance(model, trainer.model) < 1e-6
    # Compiling anew starts a new optimizer and other metrics.
    trainer.compile(
        "sgd", trainer.model.loss, metrics=["accuracy", "sparse_top_k_categorical_accuracy"]
    )
    history = trainer.fit(x, y, **FIXED).history
    assert set(history) == {"accuracy", "loss", "sparse_top_k_categorical_accuracy"}
    assert int(trainer.model.optimizer.iterations) == 3


@pytest.mark.long
def test_a_model_that_a_trainer_has_compiled_is_a_plain_one(tiny: Any) -> None:
    """Keras can train it, and evaluate it, before the first call of the trainer."""

    def program(strategy: Any) -> list[float]:
        keras.utils.set_random_seed(1)
        model = sequential()
        trainer = model if strategy is None else kfit.Trainer(model, strategy)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trainer.compile("adam", loss, metrics=["accuracy"])
        assert tiny.is_plain(model)
        x, y = tiny.data()
        results = [*model.evaluate(x, y, verbose=0), *model.train_on_batch(x, y)]
        return results + trainer.fit(x, y, shuffle=False, verbose=0).history["loss"]

    np.testing.assert_allclose(program(tiny.strategy(2)), program(None), rtol=1e-4)


@pytest.mark.long
def test_freezing_a_layer_between_fits(tiny: Any) -> None:
    x, y = tiny.data(50)
    model = compiled(sequential)
    trainer = kfit.Trainer(model, tiny.strategy(2))
    trainer.fit(x, y, **FIXED)
    frozen, other = model.layers[0].get_weights(), model.layers[1].get_weights()
    model.layers[0].trainable = False
    trainer.compile(keras.optimizers.SGD(0.2), model.loss)
    trainer.fit(x, y, **FIXED)
    assert tiny.distance(frozen, model.layers[0].get_weights()) == 0.0
    assert tiny.distance(other, model.layers[1].get_weights()) > 1e-4


@pytest.mark.parametrize("replicas", only([1], [1, 2]))
def test_a_layer_thaws_when_the_model_is_compiled_as_in_keras(tiny: Any, replicas: int) -> None:
    x, y = tiny.data(50)
    model = compiled(sequential)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.2), model.loss)
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    trainer.fit(x, y, **FIXED)
    frozen = model.layers[0].get_weights()
    model.layers[0].trainable = True
    trainer.fit(x, y, **FIXED)
    assert tiny.distance(frozen, model.layers[0].get_weights()) == 0.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("built", "replicas"),
    only([(True, 2), (False, 1)], itertools.product([True, False], [1, 2])),
)
def test_a_layer_that_was_frozen_at_first_is_trained_when_it_thaws(
    tiny: Any, replicas: int, built: bool
) -> None:
    x, y = tiny.data(50)

    def frozen() -> keras.Sequential:
        model = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
        if built:
            model.build((None, 4))
        model.layers[0].trainable = False
        return model

    def thawed(fit: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = frozen()
        for trainable in (False, True):
            model.layers[0].trainable = trainable
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.2), loss)
            fit(model)
        return model.get_weights()

    expected = thawed(lambda model: model.fit(x, y, **FIXED))
    strategy = tiny.strategy(replicas)
    got = thawed(lambda model: kfit.fit(model, x, y, strategy=strategy, **FIXED))
    assert tiny.distance(expected, got) < 1e-5


# What comes back.


def test_history_and_properties(tiny: Any) -> None:
    model = compiled(sequential)
    trainer = kfit.Trainer(model, tiny.strategy(3))
    assert trainer.history is None
    history = trainer.fit(*tiny.data(50), epochs=2, **FIXED)
    assert isinstance(history, keras.callbacks.History)
    assert trainer.history is history
    assert model.history is history
    assert list(history.history) == ["accuracy", "loss"]
    assert history.epoch == [0, 1]
    assert history.params == {"verbose": 0, "epochs": 2, "steps": 3}
    assert trainer.model is model
    assert (trainer.num_replicas, trainer.is_chief, trainer.cluster) == (3, True, None)
    assert trainer.strategy.name == "mirrored"
    assert isinstance(trainer.strategy.tf_strategy, tf.distribute.MirroredStrategy)


@pytest.mark.long
def test_saved_by_the_trainer_and_loaded_by_keras(tiny: Any, tmp_path: Path) -> None:
    x, y = tiny.data(50)
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(2))
    trainer.fit(x, y, **FIXED)
    trainer.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.predict(x, verbose=0), trainer.predict(x, verbose=0), atol=1e-6
    )
    assert int(loaded.optimizer.iterations) == 3
    # And trained on by another trainer.
    kfit.Trainer(loaded, tiny.strategy(3)).fit(x, y, **FIXED)
    trainer.fit(x, y, **FIXED)
    assert tiny.distance(loaded, trainer.model) < 1e-6


def test_auto_says_what_it_chose(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tell_choice.cache_clear()
    trainer = kfit.Trainer(tiny.model())
    kfit.Trainer(tiny.model())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1  # what is said of one trainer need not be said of the next
    assert lines[0].startswith("kfit: strategy 'auto' chose 'one_device': this host has no GPU")
    assert trainer.num_replicas == 1
    kfit.Trainer(tiny.model(), "one_device")
    assert capsys.readouterr().out == ""


# Calling it again.


def test_repeated_calls_trace_nothing_anew(tiny: Any) -> None:
    traces: list[str] = []

    class Counting(keras.Sequential):
        def call(self, *args: Any, **kwargs: Any) -> Any:
            traces.append("call")
            return super().call(*args, **kwargs)

    trainer = kfit.Trainer(tiny.model(cls=Counting), tiny.strategy(2))
    x, y = tiny.data(50)

    def everything(seed: int) -> None:
        x, y = tiny.data(50, seed=seed)
        trainer.fit(x, y, batch_size=20, epochs=2, verbose=0, validation_data=(x, y))
        trainer.evaluate(x, y, batch_size=20, verbose=0)
        trainer.predict(x, batch_size=20, verbose=0)

    everything(0)
    assert traces
    traces.clear()
    everything(1)
    trainer.fit(x[:40], y[:40], batch_size=20, epochs=3, verbose=0)
    assert not traces


def orders_of(tiny: Any, trainer: Any, fits: int, epochs: int = 1) -> list[list[int]]:
    """The order in which each epoch of each fit saw 12 examples, by what a metric was shown."""
    seen: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(round(logs["seen"]))
    )
    x = np.arange(12, dtype="float32")[:, None]
    for _ in range(fits):
        trainer.fit(x, x, batch_size=1, epochs=epochs, callbacks=[note], verbose=0)
    return [seen[i : i + 12] for i in range(0, len(seen), 12)]


class Shows(keras.Model):
    """Shows the one example of each batch as a log."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.scale(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        return {"seen": keras.ops.sum(batch[0])}


def shows(tiny: Any, seed: int | None, replicas: int = 1) -> Any:
    model = Shows()
    model.compile("sgd", "mse")
    return kfit.Trainer(model, tiny.strategy(replicas), seed=seed)


def test_each_epoch_and_each_fit_has_its_order(tiny: Any) -> None:
    orders = orders_of(tiny, shows(tiny, seed=3), fits=2, epochs=2)
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders_of(tiny, shows(tiny, seed=3), fits=2, epochs=2) == orders
    assert orders_of(tiny, shows(tiny, seed=4), fits=1) != orders[:1]


def test_the_order_does_not_depend_on_the_number_of_replicas(tiny: Any) -> None:
    one = orders_of(tiny, shows(tiny, seed=3), fits=1)
    assert orders_of(tiny, shows(tiny, seed=3, replicas=2), fits=1) == one


def test_the_seed_comes_from_python_when_none_is_given(tiny: Any) -> None:
    orders = []
    for seed in (5, 5, 6):
        random.seed(seed)
        orders.append(orders_of(tiny, shows(tiny, seed=None), fits=1))
    assert orders[0] == orders[1] != orders[2]


# When something fails.


@pytest.mark.long
def test_a_failing_fit_leaves_the_metrics_that_keras_leaves(tiny: Any) -> None:
    x, y = tiny.data(50)

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise KeyError("the user's mistake")

    one, many = tiny.model(), tiny.model()
    for model in (one, kfit.Trainer(many, tiny.strategy(3))):
        with pytest.raises(KeyError, match="the user's mistake"):
            model.fit(x, y, batch_size=20, shuffle=False, verbose=0, callbacks=[Fails()])
    left = [{k: float(v) for k, v in m.get_metrics_result().items()} for m in (one, many)]
    assert left[1] == pytest.approx(left[0], rel=1e-5)
    assert left[0]["loss"] > 0.0
    assert int(many.optimizer.iterations) == int(one.optimizer.iterations) == 2


@pytest.mark.long
def test_a_failing_fit_leaves_a_plain_model(tiny: Any) -> None:
    x, y = tiny.data(50)
    model = tiny.model()
    trainer = kfit.Trainer(model, tiny.strategy(2))
    for hook in ("on_train_batch_end", "on_epoch_end", "on_test_batch_end"):

        def fail(index: int, logs: Any = None) -> None:
            if index == 1:
                raise KeyError("the user's mistake")

        callback = keras.callbacks.Callback()
        setattr(callback, hook, fail)
        before, steps = tiny.weights(model), int(model.optimizer.iterations)
        with pytest.raises(KeyError, match="the user's mistake"):
            trainer.fit(x, y, epochs=3, validation_data=(x, y), callbacks=[callback], **FIXED)
        assert tiny.is_plain(model), hook
        assert int(model.optimizer.iterations) - steps in (2, 3, 6)
        assert tiny.distance(before, tiny.weights(model)) > 1e-3
    # Keras and kfit go on from there.
    at_failure = tiny.weights(model)
    model.fit(x, y, **FIXED)
    trainer.fit(x, y, **FIXED)
    assert tiny.distance(at_failure, tiny.weights(model)) > 1e-3
    expected = model.evaluate(x, y, verbose=0)
    assert trainer.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_a_batch_that_the_model_cannot_take(tiny: Any) -> None:
    model = tiny.model()
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.raises(ValueError, match=r"shape \(7,\); the model was made for \(4,\)"):
        trainer.fit(np.zeros((8, 7)), np.zeros(8), verbose=0)
    assert tiny.is_plain(model)
    trainer.fit(*tiny.data(50), **FIXED)


# Errors name the argument, what it got and what it takes.


def wrong(match: str) -> Any:
    return pytest.raises(ValueError, match=match)


def test_errors_of_the_constructor(tiny: Any) -> None:
    with wrong(r"`model` must be a keras\.Model, or a function.*Received: 'resnet'"):
        kfit.Trainer("resnet", "one_device")
    with wrong(r"`model` must be a keras\.Model, or a function.*Received: <Dense name=a_layer"):
        kfit.Trainer(layers.Dense(1, name="a_layer"), "one_device")
    with wrong(r"`model` is a function, which must return a keras\.Model\. It returned: None"):
        kfit.Trainer(lambda: None, "one_device")
    with wrong(r"`strategy` must be 'auto', one of .*'mirored'\. Did you mean 'mirrored'\?"):
        kfit.Trainer(tiny.model(), "mirored")
    with wrong(r"`seed` must be an integer or None\. Received: 'a'"):
        kfit.Trainer(tiny.model(), "one_device", seed="a")
    with wrong(r"`seed` must be an integer or None\. Received: True"):
        kfit.Trainer(tiny.model(), "one_device", seed=True)
    kfit.Trainer(tiny.model(), "one_device", seed=np.int64(3))
    with wrong(r"`devices` names 'GPU:7'.*It has: \['CPU:0'"):
        kfit.Trainer(tiny.model(), kfit.distribute.Mirrored(["GPU:7"]))


def test_errors_of_compile(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    for steps in (0, -1, 1.5, "many", True):
        with wrong(rf"`steps_per_execution` must be .* at least 1\. Received: {steps!r}"):
            trainer.compile("sgd", "mse", steps_per_execution=steps)


def test_a_model_must_be_compiled(tiny: Any) -> None:
    trainer = kfit.Trainer(sequential(), "one_device")
    x, y = tiny.data(8)
    for call in (trainer.fit, trainer.evaluate, trainer.train_on_batch, trainer.test_on_batch):
        with wrong(r"You must call `compile\(\)` before using the model"):
            call(x, y)
    assert trainer.predict(x, verbose=0).shape == (8, 3)


@pytest.mark.parametrize(
    "argument",
    ["batch_size", "steps_per_epoch", "validation_steps", "validation_batch_size"],
)
@pytest.mark.parametrize("value", [0, -3, 2.5, True])
def test_numbers_must_be_positive(tiny: Any, argument: str, value: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    with wrong(rf"`{argument}` must be an integer of at least 1\. Received: {value!r}"):
        trainer.fit(*tiny.data(8), verbose=0, **{argument: value})


def test_errors_of_fit(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    x, y = tiny.data(8)
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (r"same number of examples.*'x': 8, 'y': 7", (x, y[:7]), {}),
        (r"`x` must hold at least one example", (x[:0], y[:0]), {}),
        (r"`x` must be arrays, a tf\.data\.Dataset.*Received: 'images'", ("images",), {}),
        (r"`x` must be arrays", (None,), {}),
        (
            r"`validation_split=1\.5`|between 0 and 1|leaves no example",
            (x, y),
            {"validation_split": 1.5},
        ),
        (r"`validation_split=0\.999`.*leaves no example", (x, y), {"validation_split": 0.999}),
        (r"Expected `validation_freq` to be a list or int", (x, y), {"validation_freq": "often"}),
        (
            r"`class_weight` and `sample_weight` exclude each other",
            (x, y),
            {"class_weight": {0: 1.0}, "sample_weight": np.ones(8)},
        ),
        (
            r"`y` goes with arrays only: a .*Dataset yields it",
            (tf.data.Dataset.from_tensor_slices((x, y)).batch(2), y),
            {},
        ),
        (r"`validation_split` goes with arrays only", (iter([(x, y)]),), {"validation_split": 0.5}),
        (r"`class_weight` does not go with a", (iter([(x, y)]),), {"class_weight": {0: 1.0}}),
        (r"`x` yielded no batch", (iter([]),), {}),
    ]
    before = tiny.weights(trainer.model)
    for match, data, options in cases:
        with wrong("(?s)" + match):
            trainer.fit(*data, verbose=0, **options)
    assert tiny.distance(before, tiny.weights(trainer.model)) == 0.0


def test_limits_for_debugging(tiny: Any) -> None:
    model = tiny.model()
    try:
        keras.config.set_max_epochs(1)
        keras.config.set_max_steps_per_epoch(2)
        trainer, (x, y) = kfit.Trainer(model, "one_device"), tiny.data(50)
        with pytest.warns(UserWarning, match="Limiting"):
            trainer.fit(x, y, validation_data=(x, y), epochs=5, **FIXED)
        assert len(trainer.predict(x, batch_size=8)) == 16
        evaluated = trainer.evaluate(x, y, batch_size=8)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    assert int(model.optimizer.iterations) == 2
    np.testing.assert_allclose(evaluated, trainer.evaluate(x[:16], y[:16]), rtol=1e-6)


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
@pytest.mark.parametrize("as_dataset", [False, True])
def test_predict_iter_yields_all_rows_in_order(tiny: Any, replicas: int, as_dataset: bool) -> None:
    x, _ = tiny.data(1003)
    model = tiny.model()
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    expected = model(x).numpy()
    data = tf.data.Dataset.from_tensor_slices(x).batch(4) if as_dataset else x
    options = {} if as_dataset else {"batch_size": 4}
    chunks = list(trainer.predict_iter(data, verbose=0, **options))
    assert 1 < len(chunks) < 200  # of several batches each
    np.testing.assert_allclose(np.concatenate(chunks), expected, atol=1e-6)
    assert tiny.is_plain(model)
    # Who stops taking leaves the model as it was.
    rest = trainer.predict_iter(data, verbose=0, **options)
    next(rest)
    rest.close()
    assert tiny.is_plain(model)


def test_what_a_person_sees_of_a_trainer(tiny: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)], name="small")
    trainer = kfit.Trainer(model, tiny.strategy(2))
    assert repr(trainer) == "<kfit.Trainer of 'small' on <kfit.distribute.Mirrored, 2 replicas>>"
    alone = kfit.Trainer(model, kfit.distribute.OneDevice())
    assert repr(alone.strategy) == "<kfit.distribute.OneDevice, 1 replica>"
    assert repr(kfit.distribute.MultiWorker()) == "<kfit.distribute.MultiWorker, not created yet>"
