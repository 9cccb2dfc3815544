"""What belongs to a model is found in its losses and in objects of the program, too."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.checkpoint.state import entries
from kfit.distribute.owned import owned_metrics, owned_optimizers, owned_variables
from tests.sweeps import only

FIXED: Any = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


class Counting(keras.losses.Loss):
    """Counts its calls in a variable of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = keras.Variable(0.0, trainable=False, name="calls")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.calls.assign_add(1.0)
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


class Summing(Counting):
    """Adds up what it is called with."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.calls.assign_add(keras.ops.mean(y_pred))
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


class Helper:
    """An object of the program, with what its step uses."""

    def __init__(self) -> None:
        self.parts = {"optimizer": keras.optimizers.Adam(0.1)}
        self.steps = keras.Variable(0, trainable=False, name="steps")
        self.loss = keras.metrics.Mean(name="mean")


class Helped(keras.Sequential):
    """Updates its weights by the optimizer of an object that Keras does not look into."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.helper.parts["optimizer"].apply(tape.gradient(loss, weights), weights)
        self.helper.steps.assign_add(1)
        self.helper.loss.update_state(loss)
        return {"mean": self.helper.loss.result()}


@pytest.mark.parametrize("run_eagerly", only([False], [False, True]))
def test_a_loss_may_keep_a_variable(tiny: Any, run_eagerly: bool) -> None:
    (x, y), counted = tiny.data(16), []
    for replicas in (0, 1, 2):
        if replicas == 2 and run_eagerly:
            continue  # code that is not traced cannot be looked into
        loss = Counting()
        model = tiny.model(loss=loss, run_eagerly=run_eagerly)
        if replicas:
            kfit.fit(model, x, y, strategy=tiny.strategy(replicas), **FIXED)
        else:
            model.fit(x, y, **FIXED)
        counted.append(float(loss.calls))
        assert any(entry.variable is loss.calls for entry in entries(model))
        assert tiny.is_plain(model)
    assert set(counted) == {4.0}


@pytest.mark.parametrize(("loss", "run_eagerly"), [(Summing, False), (Counting, True)])
def test_what_replicas_add_to_the_variable_of_a_loss_is_refused(
    tiny: Any, loss: Any, run_eagerly: bool
) -> None:
    (x, y), model = tiny.data(16), tiny.model(loss=loss(), run_eagerly=run_eagerly)
    with pytest.raises(ValueError, match=r"'calls'.*aggregation"):
        kfit.fit(model, x, y, strategy=tiny.strategy(2), **FIXED)


@pytest.mark.long
@pytest.mark.parametrize("is_built", [False, True])
def test_an_optimizer_may_be_in_an_object_of_the_program(tiny: Any, is_built: bool) -> None:
    (x, y), numbers = tiny.data(16), []
    for replicas in (0, 1, 2):
        model = tiny.model(cls=Helped, metrics=None)
        helper = model.helper = Helper()
        optimizer = helper.parts["optimizer"]
        if is_built:
            optimizer.build(model.trainable_variables)
        trainer = kfit.Trainer(model, strategy=tiny.strategy(replicas)) if replicas else model
        for _ in range(2):
            history = trainer.fit(x, y, **FIXED)
        numbers.append([*model.get_weights(), history.history["mean"]])
        numbers[-1] += [np.asarray(variable) for variable in optimizer.variables]
        assert int(helper.steps) == 8
        assert tiny.is_plain(model)
        of_state = {id(entry.variable): entry.part for entry in entries(model)}
        assert {of_state[id(variable)] for variable in optimizer.variables} == {"optimizer"}
        model.fit(x, y, **FIXED)  # goes on in Keras itself
    for got in numbers[1:]:
        for one, expected in zip(got, numbers[0], strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)


class Wraps(keras.optimizers.Optimizer):
    """Halves gradients, and lets another optimizer apply them."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(learning_rate=0.5, name="wraps")
        self.wrapped = wrapped

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.wrapped["by"][0] if isinstance(self.wrapped, dict) else self.wrapped
        inner.apply([grad / 2 for grad in grads], trainable_variables)
        self.iterations.assign_add(1)


@pytest.mark.long
@pytest.mark.parametrize("has_dict", [False, True])
def test_an_optimizer_may_wrap_another_under_any_name(tiny: Any, has_dict: bool) -> None:
    (x, y), models, inner = tiny.data(16), [], keras.optimizers.SGD(0.5, momentum=0.5)
    for replicas in (0, 2):
        inner = keras.optimizers.SGD(0.5, momentum=0.5)
        models.append(tiny.model(optimizer=Wraps({"by": [inner]} if has_dict else inner)))
        assert owned_optimizers(models[-1]) == [models[-1].optimizer, inner]
        if replicas:
            kfit.fit(models[-1], x, y, strategy=tiny.strategy(replicas), **FIXED)
        else:
            inner.build(models[-1].trainable_variables)
            models[-1].fit(x, y, **FIXED)
        assert int(inner.iterations) == int(models[-1].optimizer.iterations) == 4
    assert tiny.distance(*models) < 1e-5
    assert {id(v) for v in inner.variables} <= {id(v) for v in owned_variables(models[1])}
    models[1].fit(x, y, **FIXED)  # goes on in Keras itself


def test_optimizers_may_wrap_each_other(tiny: Any) -> None:
    inner = Wraps(keras.optimizers.SGD(0.5))
    inner.around = outer = Wraps(inner)
    assert owned_optimizers(tiny.model(optimizer=outer)) == [outer, inner, inner.wrapped]


def test_the_search_goes_through_losses_name_spaces_and_objects(tiny: Any) -> None:
    model = tiny.model(loss=Counting())
    inner = SimpleNamespace(helper=Helper())
    inner.around = inner
    model.inner = [inner]
    assert inner.helper.parts["optimizer"] in owned_optimizers(model)
    assert inner.helper.loss in owned_metrics(model)
    found = {id(variable) for variable in owned_variables(model)}
    assert {id(inner.helper.steps), id(model.loss.calls)} <= found


def test_the_search_of_a_large_structure_is_cut_short(tiny: Any) -> None:
    model = tiny.model()
    model.nodes = [SimpleNamespace(value=number) for number in range(5000)]
    model.chain = node = SimpleNamespace()
    for _ in range(2000):
        node.after = node = SimpleNamespace()
    assert owned_optimizers(model) == [model.optimizer]
