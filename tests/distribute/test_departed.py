"""What a hook takes from a model during a call can be used in later hooks, and after the call."""

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.distribute.departed import Departed
from kfit.distribute.owned import Owned
from tests.sweeps import only

FIXED = {"batch_size": 8, "shuffle": False, "verbose": 0}


def momentum() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.2, momentum=0.9)


def apply(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> None:
    optimizer.apply([0.1 * keras.ops.ones(v.shape) for v in variables], variables)


def numbers(*variables: Any) -> list[Any]:
    return [np.array(variable) for variable in variables]


def compile_again(model: Any, optimizer: Any, metrics: Any = None) -> None:
    model.compile(optimizer, model.loss, metrics=metrics)
    model.make_train_function(force=True)


def in_hooks(begin: Callable[[int], None], end: Callable[[int], None] | None = None) -> Any:
    return keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begin(epoch),
        on_epoch_end=lambda epoch, logs: end(epoch) if end else None,
    )


def replaced_optimizer(model: Any, trainer: Any, x: Any, y: Any) -> list[Any]:
    first, second = momentum(), keras.optimizers.Adam(0.01)
    compile_again(model, first)

    def begin(epoch: int) -> None:
        if epoch == 1:
            compile_again(model, second)

    trainer.fit(x, y, epochs=2, callbacks=[in_hooks(begin)], **FIXED)
    apply(first, model.trainable_variables)
    compile_again(model, first)
    apply(second, model.trainable_variables)
    return numbers(*first.variables, *second.variables)


def optimizer_used_in_hooks(model: Any, trainer: Any, x: Any, y: Any) -> list[Any]:
    first, second = momentum(), keras.optimizers.Adam(0.01)
    compile_again(model, first)

    def begin(epoch: int) -> None:
        model.optimizer = [second, first][epoch]
        model.make_train_function(force=True)

    def end(epoch: int) -> None:
        apply(first, model.trainable_variables)

    trainer.fit(x, y, epochs=2, callbacks=[in_hooks(begin, end)], **FIXED)
    for each in (first, second):
        apply(each, model.trainable_variables)
    return numbers(*first.variables, *second.variables)


def replaced_layers(model: Any, trainer: Any, x: Any, y: Any) -> list[Any]:
    heads = [model.layers[-1]]
    value = heads[0].kernel.value

    def begin(epoch: int) -> None:
        model.pop()
        keras.utils.set_random_seed(epoch)
        heads.append(keras.layers.Dense(3))  # the first one of these is built on the devices
        model.add(heads[-1])
        compile_again(model, momentum())
        heads[0].bias.assign_add(keras.ops.ones(3))

    trainer.fit(x, y, epochs=2, callbacks=[in_hooks(begin)], **FIXED)
    assert heads[0].kernel.value is value
    apply(momentum(), heads[0].variables)
    return [np.array(head(np.ones((2, 8)))) for head in heads]


def replaced_metrics(model: Any, trainer: Any, x: Any, y: Any) -> list[Any]:
    compiled, own = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()
    values = [metric.variables[0].value for metric in (compiled, own)]
    compile_again(model, model.optimizer, [compiled])
    own.update_state([1.0, 2.0])
    model.parts = SimpleNamespace(metric=own)

    def begin(epoch: int) -> None:
        trainer.evaluate(x, y, verbose=0)
        compile_again(model, model.optimizer)
        model.parts = None
        own.update_state([6.0])

    trainer.fit(x, y, callbacks=[in_hooks(begin)], **FIXED)
    assert all(m.variables[0].value is v for m, v in zip((compiled, own), values, strict=True))
    found = [float(metric.result()) for metric in (compiled, own)]
    compiled.update_state([1, 1], [[0.0, 1, 0], [1, 0, 0]])
    return [*found, float(compiled.result()), *numbers(*compiled.variables)]


def failed_fit(model: Any, trainer: Any, x: Any, y: Any) -> list[Any]:
    first = momentum()
    compile_again(model, first, ["accuracy"])

    def begin(epoch: int) -> None:
        if epoch == 0:
            compile_again(model, "sgd")
        else:
            raise KeyError("the hook has failed")

    with pytest.raises(KeyError, match="the hook has failed"):
        trainer.fit(x, y, epochs=2, callbacks=[in_hooks(begin)], **FIXED)
    apply(first, model.trainable_variables)
    return numbers(*first.variables)


@pytest.mark.parametrize(
    "program",
    only(
        [replaced_metrics, failed_fit],
        [
            replaced_optimizer,
            optimizer_used_in_hooks,
            replaced_layers,
            replaced_metrics,
            failed_fit,
        ],
    ),
)
def test_what_leaves_a_model_in_a_hook_is_that_of_keras(tiny: Any, program: Any) -> None:
    x, y = tiny.data(20)
    found = []
    for replicas in (0, 2):
        model = tiny.model()
        trainer = kfit.Trainer(model, tiny.strategy(2)) if replicas else model
        results = program(model, trainer, x, y)
        assert tiny.is_plain(model)
        found.append([*results, *model.get_weights()])
    assert tiny.distance(*found) < 1e-5


@pytest.mark.long
def test_what_leaves_keeps_its_tensorflow_variable_on_any_devices(tiny: Any) -> None:
    """The variables are on CPU:0 before, where the first replica is not."""
    x, y = tiny.data(20)
    model = tiny.model(optimizer=momentum())
    trainer = kfit.Trainer(model, kfit.distribute.Mirrored(["CPU:1", "CPU:0"]))
    trainer.fit(x, y, **FIXED)
    head, first = model.layers[-1], model.optimizer
    variables = [*head.variables, *first.variables]
    values = [variable.value for variable in variables]

    def begin(epoch: int) -> None:
        model.pop()
        model.add(keras.layers.Dense(3))
        compile_again(model, "adam")

    trainer.fit(x, y, callbacks=[in_hooks(begin)], **FIXED)
    assert all(v.value is value for v, value in zip(variables, values, strict=True))


@pytest.mark.long
def test_a_layer_that_leaves_one_model_stays_in_the_other(tiny: Any) -> None:
    """The model of the inner call loses a layer that it shares with the model of the outer call."""
    x, y = tiny.data(20)
    found = []
    for replicas in (0, 2):
        inner = tiny.model()
        outer = keras.Sequential([keras.Input((4,)), inner.layers[0], keras.layers.Dense(3)])
        outer.compile(momentum(), inner.loss)
        strategy = tiny.strategy(2)
        trainers = [kfit.Trainer(m, strategy) if replicas else m for m in (inner, outer)]

        def lose(epoch: int, model: Any = inner) -> None:
            if epoch == 1:
                model.pop()
                model.pop()
                keras.utils.set_random_seed(2)
                model.add(keras.layers.Dense(3))
                compile_again(model, "sgd")

        hook = in_hooks(lose)

        def call(epoch: int, trainer: Any = trainers[0], hook: Any = hook) -> None:
            if epoch == 1:
                trainer.fit(x, y, epochs=2, callbacks=[hook], **FIXED)

        trainers[1].fit(x, y, epochs=2, callbacks=[in_hooks(call)], **FIXED)
        assert tiny.is_plain(outer)
        found.append([*inner.get_weights(), *outer.get_weights()])
    assert tiny.distance(*found) < 1e-5


@pytest.mark.long
def test_nothing_that_has_left_is_kept_alive(tiny: Any) -> None:
    x, y = tiny.data(20)
    model = tiny.model(optimizer=momentum())
    trainer = kfit.Trainer(model, tiny.strategy(2))
    for _ in range(2):
        trainer.fit(x, y, **FIXED)
    slot = model.optimizer.variables[2]
    left = [weakref.ref(one) for one in (model.optimizer, slot, slot.value)]
    del slot

    def begin(epoch: int) -> None:
        left.append(weakref.ref(model.optimizer.variables[-1].value))  # on the devices
        compile_again(model, momentum())

    trainer.fit(x, y, callbacks=[in_hooks(begin)], **FIXED)
    gc.collect()
    assert [reference() for reference in left] == [None] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_only_what_workers_sum_is_kept_until_the_call_ends(workers: int) -> None:
    """Python may free it on one worker sooner than on another, and all must take part in a sum."""
    metric, optimizer = keras.metrics.Mean(), keras.optimizers.SGD()
    names = [variable.path for variable in metric.variables]
    departed = Departed(workers)
    departed.note(Owned([*metric.variables, *optimizer.variables], [optimizer]))
    nothing = Owned([], [])
    assert departed.joined(nothing).optimizers == [optimizer]
    assert len(departed.joined(nothing).variables) == len(names) + len(optimizer.variables)
    del metric, optimizer
    gc.collect()
    left = departed.joined(nothing)
    assert [variable.path for variable in left.variables] == (names if workers > 1 else [])
    assert not left.optimizers
    departed.clear()
    assert departed.joined(nothing) == nothing
