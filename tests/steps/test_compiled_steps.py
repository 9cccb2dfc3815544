"""What a program changes in a model between two calls, and which graphs follow it."""

import contextlib
import itertools
import re
import types
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.owned import owned_optimizers
from kfit.model import trainer_of
from tests.sweeps import only

FIXED = {"batch_size": 8, "shuffle": False, "verbose": 0}


def own_step(self: keras.Model, data: Any) -> dict[str, Any]:
    x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        loss = self.compute_loss(x, y, self(x, training=True))
        scaled = self.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, self.trainable_weights)
    self.optimizer.apply(gradients, self.trainable_weights)
    self.metrics[0].update_state(loss)
    return {"loss": self.metrics[0].result(), "twice": 2 * loss}


@pytest.mark.parametrize("returned", [None, {}, 1.0])
@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_step_that_returns_no_dict_is_named(tiny: Any, replicas: int, returned: Any) -> None:
    class Forgetful(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            own_step(self, data)
            return returned

    model = Forgetful([keras.Input((4,)), keras.layers.Dense(1)], name="forgetful")
    model.compile("sgd", "mse")
    told = r"^`train_step` of the model 'forgetful' must return a dict .* It returned "
    told += re.escape(f"{returned!r}.")
    told += " Is its `return` missing.$" if returned is None else "$"
    with pytest.raises(ValueError, match=told):
        kfit.Trainer(model, tiny.strategy(replicas)).fit(*tiny.data(16), verbose=0)


def test_a_step_that_is_put_on_the_model_itself_is_its_own(tiny: Any) -> None:
    x, y = tiny.data(16)

    def program(fit: Any) -> Any:
        model = tiny.model(metrics=[])
        fit(model)
        model.train_step = types.MethodType(own_step, model)
        model.compile(model.optimizer, model.loss)
        own = fit(model)
        del model.train_step
        model.compile(model.optimizer, model.loss)
        return [own, fit(model)]

    def on_two(model: Any) -> Any:
        return kfit.fit(model, x, y, strategy=strategy, **FIXED).history

    strategy = tiny.strategy(2)
    expected = program(lambda model: model.fit(x, y, **FIXED).history)
    got = program(on_two)
    assert [set(h) for h in got] == [set(h) for h in expected] == [{"loss", "twice"}, {"loss"}]
    # The last batch's own loss is logged.
    for name, values in expected[0].items():
        assert got[0][name] == pytest.approx(values, abs=1e-5)
    assert np.allclose(got[1]["loss"], expected[1]["loss"], atol=1e-5)


class Watches(keras.callbacks.Callback):
    """Has every step be an execution of its own, with a graph of its own."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


@pytest.mark.filterwarnings("ignore:`trainable` of")
@pytest.mark.parametrize("thaws", only([True], [False, True]))
def test_what_is_frozen_or_thawed_counts_from_the_next_compile_on(tiny: Any, thaws: bool) -> None:
    x, y = tiny.data(22)

    def program(fit: Any) -> Any:
        model = tiny.model(metrics=[])
        model.layers[0].trainable = not thaws
        model.compile(keras.optimizers.SGD(0.2), model.loss)
        fit(model, 2)
        model.layers[0].trainable = thaws
        fit(model, 2, callbacks=[Watches()])
        fit(model, 1)  # another strategy
        assert all(part.trainable == thaws for part in [model.layers[0], model.layers[0].kernel])
        model.compile(keras.optimizers.SGD(0.2), model.loss)
        fit(model, 2)
        return model

    def kfit_fit(model: Any, replicas: int, **options: Any) -> None:
        kfit.fit(model, x, y, strategy=strategies[replicas], **FIXED, **options)

    strategies = {replicas: tiny.strategy(replicas) for replicas in (1, 2)}
    expected = program(lambda model, _, **options: model.fit(x, y, **FIXED, **options))
    assert tiny.distance(expected, program(kfit_fit)) < 1e-5


def test_what_is_frozen_without_a_compile_is_warned_of(tiny: Any) -> None:
    x, y = tiny.data(16)
    model = tiny.model(metrics=[])
    trainer = kfit.Trainer(model, tiny.strategy(1))
    trainer.fit(x, y, **FIXED)
    kernel = model.layers[0].get_weights()
    model.layers[0].trainable = False
    with pytest.warns(UserWarning, match=f"`trainable` of '{model.layers[0].name}'.*`compile`"):
        trainer.fit(x[:14], y[:14], **FIXED)
    assert tiny.distance(kernel, model.layers[0].get_weights()) > 1e-4
    model.compile(keras.optimizers.SGD(0.2), model.loss)
    assert len(owned_optimizers(model)) == 1  # the first one is gone
    kernel = model.layers[0].get_weights()
    trainer.fit(x[:14], y[:14], **FIXED)
    assert tiny.distance(kernel, model.layers[0].get_weights()) == 0.0


def add_threshold(model: Any) -> None:
    model.threshold = keras.Variable(0.5)


def enable_lora(model: Any) -> None:
    model.layers[0].enable_lora(2)


@pytest.mark.filterwarnings("ignore:`trainable` of")
@pytest.mark.parametrize(
    ("add", "replicas"),
    only([(add_threshold, 1)], itertools.product([add_threshold, enable_lora], [1, 2])),
)
def test_what_is_added_counts_from_the_next_compile_on(tiny: Any, add: Any, replicas: int) -> None:
    """Also if a layer is frozen with it, whose change takes effect only then, too."""
    x, y = tiny.data(22)

    def program(fit: Any) -> Any:
        model = tiny.model(metrics=[])
        model.compile(keras.optimizers.SGD(0.2, momentum=0.9), model.loss)
        fit(model)
        add(model)
        model.layers[1].trainable = False
        fit(model)
        return model, kernels(model)

    def kfit_fit(model: Any, **options: Any) -> None:
        kfit.fit(model, x, y, strategy=strategy, **FIXED, **options)

    strategy = tiny.strategy(replicas)
    _, expected = program(lambda model: model.fit(x, y, **FIXED))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*came to the model")
        model, got = program(kfit_fit)  # by the graph of the first fit, as in Keras
    assert tiny.distance(expected, got) < 1e-5
    with pytest.warns(UserWarning, match="came to the model after the first step .*`compile`"):
        kfit_fit(model, callbacks=[Watches()])  # by another graph
    again = kernels(model)
    assert tiny.distance(got[1:], again[1:]) > 1e-4
    model.compile(keras.optimizers.SGD(0.2), model.loss)
    kfit_fit(model)
    assert tiny.distance(again[1:], kernels(model)[1:]) == 0.0


def kernels(model: Any) -> Any:
    return [model.layers[0]._kernel.numpy(), model.layers[1].kernel.numpy()]


@pytest.mark.long
def test_no_flags_are_kept_of_steps_that_ran_eagerly_by_the_switch_of_tensorflow(tiny: Any) -> None:
    """Keras traces its step after `run_functions_eagerly(True)` is over, with the flags of then."""
    x, y = tiny.data(16)

    def program(model: Any, fit: Any) -> list[bool]:
        moved = []
        for eager, trainable in [(True, True), (False, False), (True, True)]:
            tf.config.run_functions_eagerly(eager)
            try:
                model.layers[0].trainable = trainable
                kernel = model.layers[0].get_weights()
                fit(x, y, **FIXED)
                moved.append(tiny.distance(kernel, model.layers[0].get_weights()) > 0)
            finally:
                tf.config.run_functions_eagerly(False)
        return moved

    one, model = tiny.model(metrics=[]), tiny.model(metrics=[])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "`trainable` of")
        assert program(model, kfit.Trainer(model, tiny.strategy(1)).fit) == [True, False, True]
    assert program(one, one.fit) == [True, False, True]
    assert tiny.distance(one, model) < 1e-5


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_loss_reads_values_while_functions_of_tensorflow_run_eagerly(
    tiny: Any, replicas: int
) -> None:
    """As people debug: the loss gets numbers in all steps, though no one has compiled it so."""
    x, y = tiny.data(16)

    def reads(y_true: Any, y_pred: Any) -> Any:
        assert np.isfinite(y_pred.numpy()).all()
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)

    one, model = (tiny.model(metrics=[]) for _ in range(2))
    for each in (one, model):
        each.compile("sgd", reads)
    try:
        tf.config.run_functions_eagerly(True)
        expected = one.fit(x, y, **FIXED).history
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        seen = pytest.warns(UserWarning, match=r"^With `tf.config.run_functions_eagerly\(True\)`")
        with seen if replicas > 1 else contextlib.nullcontext():
            got = trainer.fit(x, y, **FIXED).history
        assert got["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert trainer.evaluate(x, y, verbose=0) == pytest.approx(one.evaluate(x, y, verbose=0))
    finally:
        tf.config.run_functions_eagerly(False)


class LogsItsLoss(keras.Model):
    """Returns the batch's own loss, beside the results of all compiled metrics in one dict."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss, **self._others(y, outputs)}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        outputs = self(x, training=False)
        return {"loss": self.compute_loss(x, y, outputs), **self._others(y, outputs)}

    def _others(self, y: Any, outputs: Any) -> dict[str, Any]:
        others = [metric for metric in self.metrics if metric.name != "loss"]
        for metric in others:
            metric.update_state(y, outputs)
        return {metric.name: metric.result() for metric in others}


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_loss_that_the_step_returns_beside_a_dict_of_metrics_is_logged(
    tiny: Any, replicas: int
) -> None:
    def model() -> keras.Model:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        made = LogsItsLoss(inputs, keras.layers.Dense(3)(inputs))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        return made

    x, y = tiny.data(16)
    one = model()
    expected = [one.fit(x, y, **FIXED).history, one.evaluate(x, y, verbose=0, return_dict=True)]
    trainer = kfit.Trainer(model(), tiny.strategy(replicas))
    got = [
        trainer.fit(x, y, **FIXED).history,
        trainer.evaluate(x, y, batch_size=16, verbose=0, return_dict=True),
    ]
    for found, wanted in zip(got, expected, strict=True):
        assert set(found) == {"loss", "accuracy"}
        for name in set(wanted) - {"compile_metrics"}:  # Keras 3.13 logs the dict
            np.testing.assert_allclose(found[name], wanted[name], atol=1e-5, err_msg=name)


class CompilesAgain(keras.callbacks.Callback):
    """Changes the training in the middle of a `fit`, as callbacks that thaw layers do."""

    def __init__(self, hook: str, *, freezes: bool) -> None:
        super().__init__()
        self.freezes = freezes
        setattr(self, hook, self.change)

    def change(self, epoch: int, logs: Any = None) -> None:
        if epoch != 1:
            return
        self.model.layers[0].trainable = not self.freezes
        if not self.freezes:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.model.compile(
                keras.optimizers.Adam(0.01, epsilon=0.01),
                loss,
                metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)],
            )
        self.model.make_train_function(force=True)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
@pytest.mark.parametrize(
    "freezes",
    [False, True],
    ids=lambda value: {False: "thaws", True: "freezes"}.get(value),
)
def test_a_hook_may_compile_the_model_again(
    tiny: Any, replicas: int, hook: str, freezes: bool
) -> None:
    x, y = tiny.data(20)

    def program(fit: Any) -> tuple[list[Any], keras.Model]:
        model = tiny.model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
        model.layers[0].trainable = freezes
        model.compile(model.optimizer, model.loss, metrics=["accuracy"])
        callback = CompilesAgain(hook, freezes=freezes)
        more = {"validation_data": (x, y), "validation_batch_size": 20, "callbacks": [callback]}
        first = fit(model, x, y, epochs=4, **FIXED, **more).history
        return [first, fit(model, x, y, **FIXED).history], model

    strategy = tiny.strategy(replicas)
    expected, one = program(keras.Model.fit)
    got, other = program(
        lambda model, *args, **kwargs: kfit.fit(model, *args, strategy=strategy, **kwargs)
    )
    assert tiny.distance(one, other) < 1e-5
    for found, wanted in zip(got, expected, strict=True):
        assert list(found) == list(wanted)
        for name, values in wanted.items():
            assert found[name] == pytest.approx(values, abs=1e-5), name


class Latest(keras.Metric):
    """A metric that Python computes from the values, as `run_eagerly` allows."""

    def reset_state(self) -> None:
        self.largest: list[float] = []

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.extend(y_pred.numpy().max(axis=-1))

    def result(self) -> float:
        return float(np.median(self.largest)) if self.largest else 0.0


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:With `run_eagerly=True` kfit cannot read")
def test_results_that_python_computes_are_those_of_now(tiny: Any) -> None:
    x, y = tiny.data(16)
    seen = []
    for strategy in (None, "one_device", kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        model = tiny.model(metrics=[])
        metric = Latest(name="median")
        metric.reset_state()
        model.compile("sgd", model.loss, metrics=[metric], run_eagerly=True)
        given = {**FIXED, "epochs": 3, "validation_data": (x, y)}
        if strategy is None:
            seen.append(model.fit(x, y, **given).history)
        else:
            seen.append(kfit.fit(model, x, y, **given, strategy=strategy).history)
    for history in seen[1:]:
        for name, values in seen[0].items():
            assert history[name] == pytest.approx(values, rel=1e-4)


class Scale(keras.layers.Layer):
    """Multiplies by a number that a program may change."""

    scale = 1.0

    def call(self, x: Any) -> Any:
        return x * self.scale


def scaled(*layers: keras.layers.Layer) -> tuple[keras.Model, Any]:
    keras.utils.set_random_seed(1)
    layer = layers[0] if layers else Scale()
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model, layer


def same_on(tiny: Any, replicas: int, program: Any) -> None:
    """Runs `program(fit, evaluate, predict)` in Keras and in kfit, and compares what it returns."""

    def calls(name: str) -> Any:
        def call(model: keras.Model, *args: Any, **options: Any) -> Any:
            return getattr(trainer_of(model, strategy), name)(*args, **options)

        return call

    names = ("fit", "evaluate", "predict")
    strategy = tiny.strategy(replicas)
    expected = program(*(getattr(keras.Model, name) for name in names))
    got = program(*map(calls, names))
    assert len(got) == len(expected)
    for step, (found, wanted) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=f"result {step}")


def force(model: keras.Model) -> None:
    for kind in ("train", "test", "predict"):
        getattr(model, f"make_{kind}_function")(force=True)


def set_none(model: keras.Model) -> None:
    model.train_function = model.test_function = model.predict_function = None


NUMBERS = np.random.RandomState(0).normal(size=(16, 4)).astype("float32")
TARGETS = NUMBERS[:, :1] * 2 + 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("ask", "replicas"),
    itertools.product([force, set_none], [1, 2]),
)
def test_a_step_is_traced_anew_where_keras_would(tiny: Any, replicas: int, ask: Any) -> None:
    def program(fit: Any, evaluate: Any, predict: Any) -> list[Any]:
        model, layer = scaled()
        results: list[Any] = []

        def run() -> None:
            results.append(fit(model, NUMBERS, TARGETS, **FIXED).history["loss"])
            results.append(evaluate(model, NUMBERS, TARGETS, verbose=0))
            results.append(predict(model, NUMBERS, verbose=0))

        run()
        layer.scale = 3.0
        run()  # as before
        ask(model)
        run()
        layer.scale = 1.0
        run()
        ask(model)
        model.fit(NUMBERS, TARGETS, **FIXED)  # Keras' own, also where the others are kfit's
        run()
        return results

    same_on(tiny, replicas, program)


class Traces(keras.callbacks.Callback):
    """Changes the scale, and has the steps traced anew, in the middle of a `fit`."""

    def __init__(self, layer: Scale) -> None:
        super().__init__()
        self.layer = layer
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        if epoch != 2:  # Keras goes on with the old one
            self.layer.scale = 1.0 + epoch
            self.model.make_train_function(force=True)

    def on_test_begin(self, logs: Any = None) -> None:
        self.layer.scale = 2.0 - self.epoch
        self.model.make_test_function(force=True)

    def on_predict_begin(self, logs: Any = None) -> None:
        self.layer.scale = 5.0
        self.model.make_predict_function(force=True)


@pytest.mark.long
@pytest.mark.parametrize("replicas", only([1], [1, 2]))
def test_a_hook_may_have_a_step_traced_anew(tiny: Any, replicas: int) -> None:
    def program(fit: Any, evaluate: Any, predict: Any) -> list[Any]:
        model, layer = scaled()
        callback = Traces(layer)
        options = {"validation_data": (NUMBERS, TARGETS), "validation_batch_size": 8}
        history = fit(
            model, NUMBERS, TARGETS, epochs=4, callbacks=[callback], **options, **FIXED
        ).history
        layer.scale = 7.0
        again = fit(model, NUMBERS, TARGETS, **FIXED).history["loss"]
        predicted = predict(model, NUMBERS, verbose=0)
        with_hook = predict(model, NUMBERS, verbose=0, callbacks=[callback])
        return [history["loss"], history["val_loss"], again, predicted, with_hook]

    same_on(tiny, replicas, program)


@pytest.mark.parametrize(
    ("ask", "replicas"),
    only([(force, 1)], itertools.product([force, set_none], [1, 2])),
)
def test_a_layer_without_trained_variables_may_be_frozen(
    tiny: Any, replicas: int, ask: Any
) -> None:
    def program(fit: Any, *_: Any) -> list[Any]:
        options = {"center": False, "scale": False, "synchronized": True}
        model, layer = scaled(keras.layers.BatchNormalization(**options))
        first = fit(model, NUMBERS, TARGETS, **FIXED).history["loss"]
        layer.trainable = False
        ask(model)
        second = fit(model, NUMBERS, TARGETS, **FIXED).history["loss"]
        return [first, second, layer.moving_mean.numpy()]

    same_on(tiny, replicas, program)


@pytest.mark.parametrize(
    ("own", "replicas"),
    [
        pytest.param(False, 1, id="forced-1"),
        pytest.param(False, 2, id="forced-2", marks=pytest.mark.long),
        pytest.param(True, 1, id="own fit-1", marks=pytest.mark.long),
        pytest.param(True, 2, id="own fit-2", marks=pytest.mark.long),
    ],
)
def test_what_was_traced_anew_before_lets_no_layer_freeze_later(
    tiny: Any, replicas: int, own: bool
) -> None:
    def program(fit: Any, *_: Any) -> list[Any]:
        model, layer = scaled(keras.layers.Dense(3))
        fit(model, NUMBERS, TARGETS, **FIXED)
        if own:
            model.fit(NUMBERS, TARGETS, **FIXED)
        else:
            model.make_train_function(force=True)
        fit(model, NUMBERS, TARGETS, **FIXED)
        layer.trainable = False
        return [fit(model, NUMBERS, TARGETS, **FIXED).history["loss"], layer.kernel.numpy()]

    with pytest.warns(UserWarning, match="`trainable` of 'dense.*' was changed after"):
        same_on(tiny, replicas, program)


@pytest.mark.filterwarnings("ignore:With `run_eagerly=True` kfit cannot read")
@pytest.mark.parametrize("replicas", only([1], [1, 2]))
def test_without_graphs_another_method_is_called_at_once(tiny: Any, replicas: int) -> None:
    def program(fit: Any, _: Any, predict: Any) -> list[Any]:
        model, _ = scaled()
        model.run_eagerly = True
        results = [predict(model, NUMBERS, verbose=0)]
        names = list(fit(model, NUMBERS, TARGETS, **FIXED).history)
        predict_step, compute_metrics = model.predict_step, model.compute_metrics
        model.predict_step = lambda data: 2 * predict_step(data)
        model.compute_metrics = lambda *args, **more: {**compute_metrics(*args, **more), "one": 1.0}
        results.append(predict(model, NUMBERS, verbose=0))
        history = fit(model, NUMBERS, TARGETS, **FIXED).history
        assert names == ["loss"]
        assert history["one"] == [1.0]
        return [*results, history["loss"]]

    same_on(tiny, replicas, program)


@pytest.mark.filterwarnings("ignore:With `run_eagerly=True` kfit cannot read")
@pytest.mark.parametrize("replicas", only([1], [1, 2]))
def test_another_step_counts_when_keras_makes_its_function(tiny: Any, replicas: int) -> None:
    def program(fit: Any, *_: Any) -> list[Any]:
        model, _ = scaled()

        def seen() -> Any:
            return fit(model, NUMBERS, TARGETS, **FIXED).history.get("one", [0.0])

        found = [seen()]
        model.run_eagerly = True
        model.train_step = lambda data: {"one": tf.constant(1.0)}
        found.append(seen())
        model.run_eagerly = False
        found.append(seen())
        force(model)
        return [*found, seen()]

    same_on(tiny, replicas, program)
