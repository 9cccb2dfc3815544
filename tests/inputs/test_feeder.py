"""Calls with few batches borrow an iterator, and get the same batches as from a pipeline."""

import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.inputs import arrays, feeder
from kfit.inputs.feeder import Feeder, lent, take_back

SPEC = (tf.TensorSpec([2, 3], "float32"), tf.TensorSpec([2], "int64"))


@pytest.fixture(autouse=True)
def nothing_unused() -> None:
    feeder._unused.clear()


def batches(first: int, count: int) -> list[tf.Tensor]:
    numbers = np.arange(first, first + count)
    x = np.broadcast_to(numbers[:, None, None], (count, 2, 3))
    return [tf.constant(x, "float32"), tf.constant(np.stack([numbers, numbers], 1))]


def read(fed: Feeder, count: int) -> list[int]:
    return [int(next(fed.iterator)[1][0]) for _ in range(count)]


def test_the_iterator_yields_what_it_was_fed_with() -> None:
    fed = lent(SPEC)
    assert fed.iterator.element_spec == SPEC
    fed.feed(batches(5, 3))
    assert read(fed, 3) == [5, 6, 7]
    fed.feed(batches(0, 2))
    assert read(fed, 2) == [0, 1]


def test_batches_that_are_left_are_dropped() -> None:
    fed = lent(SPEC)
    fed.feed(batches(0, feeder.MOST))
    assert read(fed, 2) == [0, 1]
    fed.feed(batches(50, 2))
    assert read(fed, 2) == [50, 51]


def test_one_tensor_is_a_tuple_as_well() -> None:
    fed = lent(SPEC[1:])
    fed.feed(batches(3, 1)[1:])
    (labels,) = next(fed.iterator)
    assert labels.numpy().tolist() == [3, 3]


def test_an_iterator_is_lent_to_one_call_at_a_time() -> None:
    first, second = lent(SPEC), lent(SPEC)
    assert first is not second
    take_back(first)
    assert lent(SPEC[1:]) is not first
    assert lent(SPEC) is first


def test_few_iterators_are_kept() -> None:
    for size in range(20):
        take_back(lent([tf.TensorSpec([size], "int64")]))
    assert len(feeder._unused) == 8


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def data(rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(rows, 4)).astype("float32"), draw.integers(0, 3, rows)


def trained(strategy: Any, **options: Any) -> tuple[list[float], list[np.ndarray]]:
    made = model()
    trainer = kfit.Trainer(made, strategy)
    x, y = data()
    history = trainer.fit(x, y, batch_size=6, epochs=7, verbose=0, **options).history
    trainer.predict(x, batch_size=6, verbose=0)
    return history["loss"], made.get_weights()


@pytest.mark.long
@pytest.mark.parametrize("shuffle", [True, False, "batch"])
@pytest.mark.parametrize(("steps", "most"), [(None, 20), (3, 9)])
def test_the_numbers_are_those_of_a_pipeline(
    tiny: Any, monkeypatch: Any, shuffle: Any, steps: int | None, most: int
) -> None:
    """Also where a call begins with fed batches, and goes on with a pipeline."""
    options = {"shuffle": shuffle, "steps_per_epoch": steps}
    monkeypatch.setattr(arrays, "MOST", 0)
    expected = trained(tiny.strategy(2), **options)
    monkeypatch.setattr(arrays, "MOST", most)
    got = trained(tiny.strategy(2), **options)
    assert got[0] == expected[0]
    np.testing.assert_equal(got[1], expected[1])


@pytest.mark.long
def test_calls_within_a_call_do_not_take_its_batches() -> None:
    x, y = data()

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            other.fit(x[:12], y[:12], batch_size=6, shuffle=False, verbose=0)
            self.model.evaluate(x[:12], y[:12], batch_size=6, verbose=0)

    options = {"batch_size": 6, "epochs": 2, "shuffle": False, "verbose": 0}
    weights = []
    for looks in ([], [Looks()]):
        made, other = model(), kfit.Trainer(model(), "one_device")
        kfit.Trainer(made, "one_device").fit(x, y, callbacks=looks, **options)
        weights.append(made.get_weights())
    np.testing.assert_equal(*weights)


def test_training_that_was_stopped_leaves_nothing_to_the_next() -> None:
    x, y = data()

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    one, many = model(), model()
    options = {"batch_size": 6, "shuffle": False, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        kfit.Trainer(model(), "one_device").fit(x, y, callbacks=[Stops()], **options)
    one.fit(x[::-1], y[::-1], **options)
    kfit.Trainer(many, "one_device").fit(x[::-1].copy(), y[::-1].copy(), **options)
    np.testing.assert_allclose(many.get_weights()[0], one.get_weights()[0], rtol=1e-5)


@pytest.mark.long
def test_threads_train_beside_each_other() -> None:
    x, y = data()
    options = {"batch_size": 6, "shuffle": False, "verbose": 0, "epochs": 2}
    made = [model() for _ in range(4)]
    trainers = [kfit.Trainer(one, "one_device") for one in made]
    threads = [
        threading.Thread(target=lambda trainer=each: trainer.fit(x, y, **options))
        for each in trainers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    expected = model()
    expected.fit(x, y, **options)
    for one in made:
        np.testing.assert_allclose(one.get_weights()[0], expected.get_weights()[0], rtol=1e-5)


def test_large_batches_take_a_pipeline() -> None:
    x = np.zeros((40, 2**18), "float32")
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((2**18,)), keras.layers.Dense(1)])
    predicted = kfit.Trainer(made, "one_device").predict(x, batch_size=10, verbose=0)
    assert predicted.shape == (40, 1)
    assert not feeder._unused


def test_one_may_be_given_back_while_another_is_borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may end a prediction at any time, which then gives back its own."""
    unused, used, borrowed = lent(SPEC), lent(SPEC), []
    take_back(unused)
    runtime = feeder.runtime

    def collecting() -> Any:
        if used not in feeder._unused:
            take_back(used)
        return runtime()

    monkeypatch.setattr(feeder, "runtime", collecting)
    thread = threading.Thread(target=lambda: borrowed.append(lent(SPEC)), daemon=True)
    thread.start()
    thread.join(60)
    assert borrowed == [unused]
    assert list(feeder._unused) == [used]
