"""Gradients that accumulate are summed over the replicas once a window; who looks sees them all."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only, sweep

FIXED = {"batch_size": 20, "verbose": 0, "shuffle": False}
STEPS = 6
"""Of an epoch, so that windows of four steps span epochs."""


class Counts(kfit.distribute.Mirrored):
    """Notes what the replicas sum, each time: which gradients are sparse."""

    def __init__(self, **options: Any) -> None:
        super().__init__(["CPU:0", "CPU:1"], **options)
        self.sent: list[list[str]] = []

    def sum_gradients(self, grads: list[Any]) -> list[Any]:
        if grads:
            is_sparse = [isinstance(grad, tf.IndexedSlices) for grad in grads]
            self.sent.append(["sparse" if sparse else "dense" for sparse in is_sparse])
        return super().sum_gradients(grads)

    def all_reduce_sum(self, value: Any) -> Any:
        if self.gradient_dtype is not None and value:
            assert {tensor.dtype.name for tensor in value} == {self.gradient_dtype}
        return super().all_reduce_sum(value)


def accumulating(tiny: Any, window: int = 4, **compiled: Any) -> keras.Model:
    optimizer = keras.optimizers.SGD(0.2, momentum=0.9, gradient_accumulation_steps=window)
    return tiny.model(optimizer=optimizer, **compiled)


@pytest.mark.parametrize("dtype", only([None], [None, "bfloat16"]))
def test_one_exchange_a_window(tiny: Any, dtype: str | None) -> None:
    strategy = Counts(gradient_dtype=dtype)
    x, y = tiny.data(80)
    trainer = kfit.Trainer(accumulating(tiny, run_eagerly=True, steps_per_execution=4), strategy)
    trainer.fit(x, y, epochs=2, **FIXED)  # eight steps
    replicas, windows = 2, 2
    gradients = len(trainer.model.trainable_variables)
    assert strategy.sent == [["dense"] * gradients] * windows * replicas


def test_sparse_gradients_do_not_wait(tiny: Any) -> None:
    """Accumulated they are dense, and as large as the table."""

    def model() -> keras.Model:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input((3,)), *layers])
        optimizer = keras.optimizers.SGD(0.2, gradient_accumulation_steps=4)
        made.compile(optimizer, "mse", run_eagerly=True)
        return made

    x = np.random.default_rng(0).integers(0, 50, (101, 3))
    y = x[:, :1] / 50.0
    strategy, ended = Counts(), []
    for chosen in (tiny.strategy(1), strategy):
        trained = model()
        kfit.fit(trained, x, y, strategy=chosen, **FIXED)  # six steps
        ended.append([v.numpy() for v in trained.optimizer.variables + trained.variables])
    # On both replicas, once a window, and what is left at the end of the epoch.
    assert strategy.sent.count(["sparse"]) == 2 * STEPS
    assert strategy.sent.count(["dense", "dense"]) == 2 * (1 + 1)
    assert len(strategy.sent) == 2 * (STEPS + 2)
    assert tiny.distance(*ended) < 1e-5


class Looks(keras.callbacks.Callback):
    """Reads what was accumulated, as one that saves the model does."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.seen: list[Any] = []
        setattr(self, hook, self._look)

    def _look(self, *_: Any, **__: Any) -> None:
        self.seen.append([v.numpy() for v in self.model.optimizer._accumulated_gradients])


@pytest.mark.long
@pytest.mark.parametrize(
    ("hook", "zeros"),
    sweep(
        [
            ("on_train_batch_end", [step % 4 == 3 for step in range(2 * STEPS)]),
            ("on_epoch_end", [False, True]),
            ("on_test_begin", [False, True]),
        ],
        every=3,
    ),
)
def test_hooks_see_the_total(tiny: Any, hook: str, zeros: list[bool]) -> None:
    seen = []
    for strategy in (tiny.strategy(1), tiny.strategy(3)):
        looks = Looks(hook)
        data = tiny.data(101)
        kfit.Trainer(accumulating(tiny), strategy).fit(
            *data, validation_data=data, epochs=2, callbacks=[looks], **FIXED
        )
        seen.append(looks.seen)
    expected, got = seen
    assert [all((v == 0).all() for v in values) for values in got] == zeros
    assert [tiny.distance(*values) < 1e-5 for values in zip(expected, got, strict=True)] == [
        True for _ in zeros
    ]


@pytest.mark.long
def test_what_hooks_write_and_windows_over_several_calls(tiny: Any) -> None:
    class Writes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            for variable in self.model.optimizer._accumulated_gradients:
                variable.assign(variable * 0 + 0.25)

    ended = []
    for strategy in (tiny.strategy(1), tiny.strategy(2)):
        model = accumulating(tiny)
        trainer = kfit.Trainer(model, strategy)
        x, y = tiny.data(101)
        trainer.fit(x, y, callbacks=[Writes()], **FIXED)
        trainer.train_on_batch(x[:7], y[:7])
        trainer.fit(x, y, **FIXED)
        ended.append([v.numpy() for v in [*model.variables, *model.optimizer.variables]])
        assert tiny.is_plain(model)
    assert tiny.distance(*ended) < 1e-5


@pytest.mark.long
def test_a_hook_that_fails_loses_nothing(tiny: Any) -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise RuntimeError("the hook's")

    ended = []
    for strategy in (tiny.strategy(1), tiny.strategy(2)):
        model = accumulating(tiny)
        with pytest.raises(RuntimeError, match="the hook's"):
            kfit.Trainer(model, strategy).fit(*tiny.data(101), callbacks=[Fails()], **FIXED)
        ended.append([v.numpy() for v in model.optimizer._accumulated_gradients])
        assert tiny.is_plain(model)
    assert np.abs(ended[1][0]).max() > 0.01
    assert tiny.distance(*ended) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_data_that_fails_within_a_window_loses_nothing(tiny: Any, replicas: int) -> None:
    x, y = tiny.data(120)

    def once(fails_at: int | None) -> Any:
        def batches() -> Any:
            for step in range(STEPS):
                if step == fails_at:
                    raise RuntimeError("the data's")
                yield x[20 * step : 20 * step + 20], y[20 * step : 20 * step + 20]

        return batches()

    ended = []
    for fails_at in (None, 3):
        model = accumulating(tiny)
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        if fails_at is not None:
            with pytest.raises(Exception, match="the data's"):
                trainer.fit(once(fails_at), verbose=0)
        else:
            trainer.fit(x[:60], y[:60], **FIXED)
        trainer.fit(x[60:], y[60:], **FIXED)
        ended.append([v.numpy() for v in [*model.variables, *model.optimizer.variables]])
    assert tiny.distance(*ended) < 1e-5


@pytest.mark.long
def test_an_optimizer_that_is_built_within_a_step(tiny: Any) -> None:
    class OwnOptimizer(keras.Sequential):
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x, y, predicted)
            variables = self.trainable_variables
            self.own.apply(tape.gradient(loss, variables), variables)
            return self.compute_metrics(x, y, predicted)

    ended = []
    for strategy in (tiny.strategy(1), tiny.strategy(2)):
        model = tiny.model(cls=OwnOptimizer)
        model.own = keras.optimizers.SGD(0.2, gradient_accumulation_steps=4)
        trainer = kfit.Trainer(model, strategy)
        for _ in range(2):
            trainer.fit(*tiny.data(101), **FIXED)
        ended.append([v.numpy() for v in [*model.variables, *model.own.variables]])
    assert tiny.distance(*ended) < 1e-5


def test_the_window_is_that_of_the_traced_step(tiny: Any) -> None:
    """As in Keras, another number counts from the next `compile` on."""
    x, y = tiny.data(24)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False, "verbose": 0}

    def trained(make: Any) -> keras.Model:
        model = tiny.model(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=3))
        trainer = make(model)
        trainer.fit(x, y, **options)
        model.optimizer.gradient_accumulation_steps = None
        trainer.fit(x, y, **options)
        return model

    one = trained(lambda model: model)
    assert tiny.distance(one, trained(lambda m: kfit.Trainer(m, tiny.strategy(2)))) < 1e-5
