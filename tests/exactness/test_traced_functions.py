"""What a program decorates with `tf.function` does in a step what it does without that."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.sweeps import sweep


class Keeps(layers.Layer):
    """Keeps a number; `call` takes it through a function that is decorated, or not."""

    def __init__(
        self,
        take: Any,
        decorate: Any,
        name: str,
        aggregation: str = "none",
        traced: bool = True,
    ) -> None:
        super().__init__(name=name)
        self._traced = traced
        self._take, self._aggregation = decorate(lambda x: take(self.kept, x)), aggregation

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(
            shape=(), initializer="zeros", trainable=False, aggregation=self._aggregation
        )

    def call(self, x: Any) -> Any:
        return self._take(x)

    def compute_output_spec(self, x: Any) -> Any:
        if self._traced:  # as Keras does where a layer does not say its shapes
            return super().compute_output_spec(x)
        return keras.KerasTensor(x.shape)


class Learns(layers.Layer):
    """Learns a number, by which a function that is decorated, or not, multiplies."""

    def __init__(self, decorate: Any, name: str) -> None:
        super().__init__(name=name)
        self._take = decorate(lambda x: self.scale * x)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        return self._take(x)


def counts_steps(kept: Any, x: Any) -> Any:
    kept.assign_add(1.0)
    return 2.0 * x


def counts_examples(kept: Any, x: Any) -> Any:
    kept.assign_add(ops.cast(ops.shape(x)[0], "float32"))
    return x + 1.0


def counts_every_other_step(kept: Any, x: Any) -> Any:
    kept.assign_add(ops.cond(kept % 4 < 2, lambda: 1.5, lambda: 2.5))
    return x


class Normalized(layers.Layer):
    """Meets the other replicas within its call."""

    def __init__(self) -> None:
        super().__init__(name="normalized")
        self.inner = layers.BatchNormalization(synchronized=True)

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)


Decorate = Callable[[Any], Any]
DECORATED: dict[str, Decorate] = {
    "function": tf.function,
    "xla": tf.function(jit_compile=True),
    "signature": tf.function(input_signature=[tf.TensorSpec([None, 4])]),
    "recompute_grad": tf.recompute_grad,
}


def as_it_is(fn: Any) -> Any:
    return fn


class StepsInAFunction(keras.Model):
    @tf.function
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class NormalizedInAFunction(Normalized):
    @tf.function
    def call(self, x: Any, training: bool = False) -> Any:
        return super().call(x, training)


def made(names: Iterable[str], decorated: bool) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = inputs = layers.Input((4,))
    for name in names:
        decorate = DECORATED[name] if decorated else as_it_is
        x = Keeps(counts_steps, decorate, f"steps_{name}")(x)
        if name in ("function", "xla"):
            x = Keeps(counts_examples, decorate, f"examples_{name}", "sum")(x)
    x = Keeps(counts_every_other_step, tf.function if decorated else as_it_is, "branch")(x)
    x = (NormalizedInAFunction if decorated else Normalized)()(x)
    for name in names:  # last: a gradient that recomputes counts once more
        x = Learns(DECORATED[name] if decorated else as_it_is, f"learns_{name}")(x)
    model = (StepsInAFunction if decorated else keras.Model)(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.normal(size=(n, 4)).astype("float32"), draw.normal(size=(n, 2)).astype("float32")


@pytest.mark.parametrize(
    ("names", "replicas"),
    sweep([(["xla"], 2), (list(DECORATED), 2), (list(DECORATED), 1)], every=3),
)
def test_what_is_decorated_trains_as_without(tiny: Any, names: list[str], replicas: int) -> None:
    """Batches of 7 and 4 leave a replica as many examples in another share of the batch."""
    plain, decorated = made(names, False), made(names, True)
    (x, y), fixed = data(18), {"batch_size": 7, "verbose": 0}
    trainer = kfit.Trainer(decorated, tiny.strategy(replicas))
    for model in (plain, trainer):
        model.fit(x, y, shuffle=False, epochs=2, **fixed)
        model.evaluate(x, y, **fixed)
    assert tiny.distance(plain, decorated) < 1e-5
    for one, other in zip(plain.variables, decorated.variables, strict=True):
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=1e-5, atol=1e-5, err_msg=one.path
        )
    assert float(decorated.get_layer("steps_xla").kept) == 3 * 3
    assert float(decorated.get_layer("examples_xla").kept) == 3 * 18


def sums(kept: Any, x: Any) -> Any:
    kept.assign_add(ops.sum(x))
    return x


def assigns_where_its_examples_say_so(kept: Any, x: Any) -> Any:
    tf.cond(tf.reduce_mean(x) > 0, lambda: (kept.assign(3.0), 0.0)[1], lambda: 0.0)
    return x


def assigns_in_a_loop(kept: Any, x: Any) -> Any:
    turns = tf.cast(tf.reduce_max(x), tf.int32)
    tf.while_loop(lambda i: i < turns, lambda i: [i + (kept.assign(3.0), 1)[1]], [0])
    return x


@pytest.mark.parametrize(
    ("take", "decorate"),
    sweep(
        [
            (sums, "xla"),
            (assigns_where_its_examples_say_so, "function"),
            (assigns_in_a_loop, "function"),
        ],
        every=3,
    ),
)
def test_what_is_a_replicas_own_is_refused_in_a_function_too(
    tiny: Any, take: Any, decorate: str
) -> None:
    x = layers.Input((4,))
    kept = Keeps(take, DECORATED[decorate], "keeps", traced=False)
    model = keras.Model(x, layers.Dense(2)(kept(x)))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"of Keeps 'keeps'.*aggregation=.sum"):
        kfit.Trainer(model, tiny.strategy(2)).fit(*data(8), batch_size=8, verbose=0)
