"""Batches made by Python: none is lost, none is repeated, and their order is kept."""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import kfit
from kfit.distribute import OneDevice
from kfit.inputs import Batches, Cursor, as_batches


def batches_of(x: Any, **options: Any) -> Batches:
    return as_batches(x, strategy=OneDevice(), **options)


def read(batches: Batches, epoch: int = 0, step: int = 0) -> list[Any]:
    """The batches of an epoch, taken two at a time as the loops take them."""
    seen: list[Any] = []

    def take(run: Any, steps: int) -> tuple[int, None]:
        elements = list(islice(run.iterator, steps))
        seen.extend(run.layout.template.pack(element) for element in elements)
        return len(elements), None

    batches.on_epoch_begin()
    cursor = Cursor(batches, epoch, step)
    while cursor.more:
        cursor.take(take, 2)
    batches.on_epoch_end()
    return seen


def numbers(seen: list[Any]) -> list[int]:
    """Which batches these are; every value of a batch is its number."""
    return [int(np.asarray(batch[0]).flat[0]) for batch in seen]


def batch(number: int, examples: int = 2) -> tuple[Any, Any]:
    return np.full((examples, 1), number), np.full((examples,), number)


def generated(count: int) -> Iterator[Any]:
    return (batch(number) for number in range(count))


# Generators.


def test_a_generator_runs_on_over_the_epochs() -> None:
    batches = batches_of(generated(8), steps=3)
    assert batches.spec[0].shape == (None, 1)  # looks at the first batch and loses none
    assert [numbers(read(batches, epoch)) for epoch in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_generator_of_unknown_length_is_read_once() -> None:
    batches = batches_of(generated(5))
    assert numbers(read(batches, 0)) == [0, 1, 2, 3, 4]
    assert batches.steps == 5
    assert read(batches, 1) == []


def test_one_generator_serves_two_fits(tiny: Any) -> None:
    seen: list[int] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(round(logs["number"]))
    )
    trainer = shows(tiny, 1)
    endless = generated(100)
    for _ in range(2):
        trainer.fit(endless, steps_per_epoch=2, epochs=2, callbacks=[note], verbose=0)
    assert seen[:4] == [0, 1, 2, 3]
    assert seen[4:] == list(range(seen[4], seen[4] + 4))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.ones((2, 1)), 1),
        ([np.ones((2, 1)), np.ones(2)], 2),
        ((np.ones((2, 1)), None), 1),
        ((np.ones((2, 1)), np.ones(2), None), 2),
        ((np.ones((2, 1)), np.ones(2), np.ones(2)), 3),
        ((np.ones((2, 1)), None, np.ones(2)), 3),
        ({"a": np.ones((2, 1)), "b": [np.ones(2), None]}, 1),
    ],
)
def test_forms_of_a_batch(given: Any, expected: int) -> None:
    (got,) = read(batches_of(iter([given])))
    assert len(got) == expected
    if isinstance(given, dict):
        assert list(got[0]) == ["a", "b"]
        assert got[0]["b"][1] is None
    if isinstance(given, tuple) and len(given) == 3:
        assert (got[1] is None) == (given[1] is None)


def test_kinds_of_values() -> None:
    given = {
        "double": np.ones((2, 1)),
        "whole": np.ones((2, 1), "uint8"),
        "text": np.array(["a", "b"]),
        "tensor": tf.ones((2, 3)),
        "ragged": tf.ragged.constant([[1], [2, 3]]),
        "sparse": scipy.sparse.csr_matrix(np.eye(2, dtype="float32")),
    }
    ((got,),) = read(batches_of(iter([given])))
    dtypes = {name: value.dtype.name for name, value in got.items()}
    assert dtypes.pop("text") == "string"
    assert dtypes == {
        "double": "float32",
        "whole": "uint8",
        "tensor": "float32",
        "ragged": "int32",
        "sparse": "float32",
    }
    assert got["ragged"].to_list() == [[1], [2, 3]]
    np.testing.assert_array_equal(tf.sparse.to_dense(got["sparse"]), np.eye(2))


def test_batches_may_differ_in_their_inner_lengths(tiny: Any) -> None:
    def sentences() -> Iterator[Any]:
        for length in (3, 5, 4, 7):
            yield np.ones((4, length), "int64"), np.ones((4, 1))

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        pooling = keras.layers.GlobalAveragePooling1D()
        layers = [keras.layers.Embedding(3, 2), pooling, keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((None,)), *layers])
        model.compile("sgd", "mse")
        return model

    one, many = made(), made()
    one.fit(sentences(), verbose=0)
    kfit.Trainer(many, tiny.strategy(2)).fit(sentences(), verbose=0)
    assert tiny.distance(one, many) < 1e-6


def test_arrays_of_a_batch_that_hold_other_examples_are_told(tiny: Any) -> None:
    x, y = tiny.data(8)

    def uneven(rows: int) -> Iterator[Any]:
        yield x, y
        yield x, y[:rows]

    for rows in (7, 1):
        with pytest.raises(Exception, match="must yield batches whose parts all hold the same"):
            kfit.Trainer(tiny.model(), tiny.strategy(2)).fit(uneven(rows), verbose=0)
    pipeline = tf.data.Dataset.from_tensors((x, y[:7]))
    with pytest.raises(ValueError, match=r"all hold the same number of examples.*\[8, 7\]"):
        kfit.Trainer(tiny.model(), tiny.strategy(2)).fit(pipeline, verbose=0)
    undeclared = keras.Sequential([keras.layers.Flatten()])  # it takes any number of dimensions
    with pytest.raises(ValueError, match="a scalar cannot be divided among replicas"):
        kfit.Trainer(undeclared, tiny.strategy(2)).predict(tf.data.Dataset.range(3), verbose=0)


def test_what_goes_wrong_in_a_generator_is_told(tiny: Any) -> None:
    def failing() -> Iterator[Any]:
        yield batch(0)
        raise OSError("the disk is gone")

    trainer = shows(tiny, 1)
    with pytest.raises(Exception, match="the disk is gone"):
        trainer.fit(failing(), verbose=0)
    with pytest.raises(Exception, match="structure"):
        trainer.fit(iter([batch(0), (*batch(1), np.ones(2))]), verbose=0)
    with pytest.raises(ValueError, match="at least one dimension"):
        trainer.fit(iter([(np.float32(1.0), np.float32(1.0))]), verbose=0)


class Shows(keras.Model):
    """Shows the number of each batch as a log."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.scale(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"number": keras.ops.mean(keras.ops.cast(data[0], "float32"))}


def shows(tiny: Any, replicas: int) -> Any:
    model = Shows()
    model.compile("sgd", "mse")
    return kfit.Trainer(model, tiny.strategy(replicas), seed=1)


# PyDatasets.


class Numbered(keras.utils.PyDataset):
    """`length` batches; later ones are often ready before earlier ones."""

    def __init__(self, length: int | None, weight: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length, self.weight = length, weight
        self.asked: list[int] = []
        self.begun = self.ended = 0
        self.offset = 0

    @property
    def num_batches(self) -> int | None:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if self.workers > 1:
            time.sleep(0.004 * ((7 * index) % 3))
        x, y = batch(index + self.offset)
        return (x, y, None) if not self.weight else (x, y, np.ones(2))

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1
        self.offset += 100


@pytest.mark.parametrize("workers", [1, 3])
def test_a_py_dataset_gives_every_batch_once_an_epoch(workers: int) -> None:
    data = Numbered(17, workers=workers)
    batches = batches_of(data)
    assert len(batches.spec) == 2
    for epoch in range(3):
        assert numbers(read(batches, epoch)) == [100 * epoch + k for k in range(17)]
    batches.close()
    # Those looked at beforehand are asked for again: the data set may reorder itself in its hook.
    looked_at = range(len(data.asked) - 3 * 17)
    assert sorted(data.asked) == sorted([*looked_at, *3 * list(range(17))])
    assert len(looked_at) <= 2 + data.max_queue_size
    assert (data.begun, data.ended) == (3, 3)


@pytest.mark.parametrize("workers", [1, 3])
def test_shuffling_a_py_dataset(workers: int) -> None:
    def epochs(seed: int) -> list[list[int]]:
        batches = batches_of(Numbered(12, workers=workers), shuffle=True, seed=seed)
        read_ = [[n % 100 for n in numbers(read(batches, epoch))] for epoch in range(2)]
        batches.close()
        return read_

    one, other = epochs(1)
    assert sorted(one) == sorted(other) == list(range(12))
    assert one != other
    assert one != list(range(12))
    assert epochs(1) == [one, other]
    assert epochs(2)[0] != one


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("length", "steps"), [(5, None), (5, 2), (None, 2)])
def test_a_py_dataset_resumes_at_any_step(
    workers: int, length: int | None, steps: int | None
) -> None:
    def fresh() -> Batches:
        data = Numbered(length, workers=workers)
        data.on_epoch_end = lambda: None
        return batches_of(data, steps=steps, shuffle=True, seed=1)

    straight = fresh()
    for epoch in range(3 if steps else 2):
        expected = numbers(read(straight, epoch))
        for step in range(len(expected)):
            resumed = fresh()
            assert resumed.spec
            assert numbers(read(resumed, epoch, step)) == expected[step:], (epoch, step)
            resumed.close()
    straight.close()


def test_the_workers_of_a_py_dataset_end_with_the_fit(tiny: Any) -> None:
    before = set(threading.enumerate())
    trainer = shows(tiny, 1)
    trainer.fit(Numbered(5, workers=3), epochs=2, verbose=0)
    time.sleep(0.2)
    after = [t for t in set(threading.enumerate()) - before if "ThreadPoolExecutor" in t.name]
    assert not [thread for thread in after if thread.is_alive()]


def test_what_goes_wrong_in_a_py_dataset_is_told(tiny: Any) -> None:
    class Failing(Numbered):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    for workers in (1, 3):
        with pytest.raises(Exception, match="the disk is gone"):
            shows(tiny, 1).fit(Failing(5, workers=workers), verbose=0)


class Rows(keras.utils.PyDataset):
    """Batches of ten rows of arrays."""

    def __init__(self, *arrays: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arrays = arrays

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // 10)

    def __getitem__(self, index: int) -> Any:
        return tuple(array[10 * index : 10 * index + 10] for array in self.arrays)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_py_dataset_trains_and_evaluates_like_its_arrays(tiny: Any, workers: int) -> None:
    x, y = tiny.data(41)
    one, many = tiny.model(), tiny.model()
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    weighted = {"class_weight": {0: 0.5, 1: 2.0}}
    one.fit(x, y, batch_size=10, **options, **weighted)
    trainer = kfit.Trainer(many, tiny.strategy(3))
    trainer.fit(Rows(x, y, workers=workers), **options, **weighted)
    assert tiny.distance(one, many) < 1e-5
    expected = one.evaluate(x, y, verbose=0)
    assert trainer.evaluate(Rows(x, y, workers=workers), verbose=0) == pytest.approx(
        expected, rel=1e-5
    )
    predicted = trainer.predict(Rows(x, workers=workers), verbose=0)
    np.testing.assert_allclose(predicted, one.predict(x, verbose=0), atol=1e-5)


def test_class_weights_exclude_weights_of_the_data(tiny: Any) -> None:
    x, y = tiny.data(20)
    with pytest.raises(ValueError, match="`class_weight` and sample weights"):
        kfit.Trainer(tiny.model(), "one_device").fit(
            Rows(x, y, np.ones(20)), class_weight={0: 1.0}, verbose=0
        )


# Loaders.


class _Loader:
    """Looks like torch's DataLoader, which this environment need not have."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)
        self.iterated = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.iterated += 1
        return iter(self.batches)


def test_a_loader_is_iterated_over_anew_in_each_epoch() -> None:
    cls = type("DataLoader", (_Loader,), {"__module__": "torch.utils.data.dataloader"})
    loader = cls([list(batch(number)) for number in range(5)])
    batches = batches_of(loader)
    assert batches.steps == 5
    assert [numbers(read(batches, epoch)) for epoch in range(2)] == 2 * [[0, 1, 2, 3, 4]]
    assert loader.iterated == 1 + 2  # as in Keras, one to look at
    assert numbers(read(batches_of(loader), 1, 3)) == [3, 4]
    with pytest.raises(ValueError, match="`x` must be arrays"):
        batches_of(_Loader([]))


class TorchTensor:
    """What kfit asks of a torch tensor: one that must leave its graph and its device first."""

    def __init__(self, values: np.ndarray, where: str = "cuda") -> None:
        self.values, self.where = values, where

    def detach(self) -> "TorchTensor":
        return TorchTensor(self.values, f"{self.where}, detached")

    def cpu(self) -> np.ndarray:
        assert self.where == "cuda, detached"
        return self.values


def test_a_torch_loader_of_a_stream_has_no_length(tiny: Any) -> None:
    def no_length(self: _Loader) -> int:
        raise TypeError("object of type 'IterableDataset' has no len()")

    options = {"__module__": "torch.utils.data.dataloader", "__len__": no_length}
    x, y = tiny.data(20)
    loader = type("DataLoader", (_Loader,), options)([(x[:10], y[:10]), (x[10:], y[10:])])
    one, many = tiny.model(), tiny.model()
    one.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    kfit.Trainer(many, tiny.strategy(2)).fit(loader, epochs=2, verbose=0)
    assert tiny.distance(one, many) < 1e-5


@pytest.mark.parametrize(("replicas", "steps"), [(1, None), (2, None), (2, 3)])
def test_a_torch_loader_trains_like_its_arrays(tiny: Any, replicas: int, steps: int | None) -> None:
    x, y = tiny.data(41)
    options = {"epochs": 3, "steps_per_epoch": steps, "verbose": 0}
    one, many = tiny.model(), tiny.model()
    expected = one.fit(x, y, batch_size=10, shuffle=False, **options).history
    # The default collation of a data set of pairs makes lists; the last batch has one example.
    parts = [[x[k : k + 10].astype("float64"), y[k : k + 10]] for k in range(0, 41, 10)]
    cls = type("DataLoader", (_Loader,), {"__module__": "torch.utils.data.dataloader"})
    loader = cls([[TorchTensor(array) for array in part] for part in parts])
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    got = trainer.fit(loader, validation_data=loader, **options).history
    assert tiny.distance(one, many) < 1e-5
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, rel=1e-5)
    assert loader.iterated == 1 + (3 if steps is None else 2) + 1 + 3  # looked at twice
    assert trainer.evaluate(loader, verbose=0) == pytest.approx(
        one.evaluate(x, y, verbose=0), rel=1e-5
    )
