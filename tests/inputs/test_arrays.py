"""Arrays become the same global batches for any number of workers, each example once an epoch."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice, product
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf

import kfit
from kfit.distribute import OneDevice, Strategy
from kfit.inputs import Batches, Cursor, arrays, as_batches, split_validation
from kfit.inputs.order import rows_fed
from tests.inputs.numbered import numbers
from tests.sweeps import only

WAYS = ["pipeline", "fed"]


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches come from a pipeline, or the first ones are fed to an iterator."""
    monkeypatch.setattr(arrays, "MOST", 0 if request.param == "pipeline" else 5)


class FakeStrategy(Strategy):
    """Says of itself that it is one worker of several."""

    num_replicas = num_local_replicas = num_workers = 1
    first_local_replica = worker_index = 0
    fetches_ahead = False

    def __init__(self, workers: int = 1, index: int = 0, replicas_each: int = 1) -> None:
        super().__init__()
        self.num_workers, self.worker_index = workers, index
        self.num_local_replicas = replicas_each
        self.num_replicas = workers * replicas_each
        self.first_local_replica = index * replicas_each


def on_workers(workers: int, *data: Any, replicas_each: int = 1, **options: Any) -> list[Batches]:
    return [
        as_batches(*data, strategy=FakeStrategy(workers, index, replicas_each), **options)
        for index in range(workers)
    ]


def steps_of(batches: Batches, epoch: int = 0, step: int = 0) -> Iterator[tuple[Any, Any]]:
    """The steps of an epoch: how each is laid out, and this task's part of the batch."""
    for run in batches.segments(epoch, step):
        for _ in range(run.steps):
            element = run.element if run.iterator is None else next(run.iterator)
            batch = run.layout.template.pack(element)
            yield run.layout, batch if isinstance(batch, tuple) else (batch,)


def read(batches: Batches, epoch: int = 0, step: int = 0) -> list[Any]:
    return [element for _, element in steps_of(batches, epoch, step)]


def own_parts(steps: Iterable[tuple[Any, Any]]) -> list[Any]:
    """What each task has of a batch, without a row that only stands in for one."""
    steps = list(steps)
    layouts = [layout for layout, _ in steps]
    stops = [*(layout.offset for layout in layouts[1:]), layouts[0].examples]

    def cut(leaf: Any, rows: int) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.slice(leaf, [0, 0], [rows, leaf.shape[1]])
        return leaf[:rows]

    return [
        tuple(cut(leaf, stop - layout.offset) for leaf in element)
        for (layout, element), stop in zip(steps, stops, strict=True)
    ]


def global_batches(tasks: list[Batches], epoch: int = 0, step: int = 0) -> list[list[int]]:
    """Batches of `(x,)` where x numbers the examples, put together from the tasks' parts."""
    whole = []
    for parts in zip(*(steps_of(task, epoch, step) for task in tasks), strict=True):
        rows = [np.asarray(x)[:, 0] for (x,) in own_parts(parts)]
        starts = np.cumsum([0, *map(len, rows)])
        assert [layout.offset for layout, _ in parts] == list(starts[:-1])
        assert {layout.examples for layout, _ in parts} == {starts[-1]}
        whole.append([int(row) for row in np.concatenate(rows)])
    return whole


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(batches))


def numbered(examples: int) -> np.ndarray:
    return np.arange(examples)[:, None]


@pytest.mark.parametrize(
    ("examples", "batch_size", "workers"),
    only(
        [(101, 20, 3), (5, 50, 3)],
        [
            (*sizes, workers)
            for sizes in ((24, 8), (101, 20), (5, 50))
            for workers in (1, 2, 3, 4, 5)
        ],
    ),
)
def test_every_example_once_an_epoch(workers: int, examples: int, batch_size: int) -> None:
    options = {"batch_size": batch_size, "shuffle": True, "seed": 5}
    tasks = on_workers(workers, numbered(examples), **options)
    alone = on_workers(1, numbered(examples), **options)
    epochs = [global_batches(tasks, epoch) for epoch in range(3)]
    for epoch, batches in enumerate(epochs):
        assert sorted(flat(batches)) == list(range(examples))
        assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert batches == global_batches(alone, epoch)
    if examples > 5:
        assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("examples", [1, 2, 5])
def test_every_replica_has_a_row_to_compute_on(examples: int, each: int) -> None:
    tasks = on_workers(3, numbered(examples), replicas_each=each, batch_size=50)
    for index, ((layout, (rows,)),) in enumerate(map(steps_of, tasks)):
        for replica in range(index * each, (index + 1) * each):
            fed = rows_fed(examples, replica, 3 * each)
            assert fed.stop > fed.start
            here = rows[fed.start - layout.offset : fed.stop - layout.offset]
            np.testing.assert_array_equal(here, numbered(examples)[fed.start : fed.stop])


def test_several_replicas_on_each_worker() -> None:
    tasks = on_workers(3, numbered(50), replicas_each=2, batch_size=14, shuffle=True, seed=1)
    alone = on_workers(1, numbered(50), batch_size=14, shuffle=True, seed=1)
    assert global_batches(tasks) == global_batches(alone)


@pytest.mark.parametrize(
    ("way", "shuffle"),
    only([("pipeline", False), ("fed", True)], product(WAYS, [False, True, "batch"])),
    indirect=["way"],
)
def test_resuming_at_any_step_gives_the_same_batches(shuffle: Any) -> None:
    options = {"batch_size": 6, "shuffle": shuffle, "seed": 2}
    straight = on_workers(2, numbered(20), **options)
    for epoch in range(2):
        expected = global_batches(straight, epoch)
        for step in range(4):
            resumed = on_workers(2, numbered(20), **options)
            assert global_batches(resumed, epoch, step) == expected[step:]


def test_without_shuffle_the_order_is_the_data_s() -> None:
    for epoch in range(2):
        batches = global_batches(on_workers(2, numbered(10), batch_size=4), epoch)
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_shuffling_by_batch_stays_in_the_batch() -> None:
    (task,) = on_workers(1, numbered(50), batch_size=20, shuffle="batch", seed=1)
    epochs = [global_batches([task], epoch) for epoch in range(2)]
    for batches in epochs:
        assert [sorted(b) for b in batches] == [
            list(range(20)),
            list(range(20, 40)),
            list(range(40, 50)),
        ]
        assert all(batch != sorted(batch) for batch in batches)
    assert all(one != other for one, other in zip(*epochs, strict=True))


def test_an_epoch_of_fewer_steps_goes_on_in_the_data() -> None:
    (task,) = on_workers(1, numbered(10), batch_size=2, steps=2)
    assert [flat(global_batches([task], epoch)) for epoch in range(4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [0, 1, 2, 3],
    ]


def test_the_batch_size_follows_from_the_steps() -> None:
    assert on_workers(1, numbered(100), steps=3)[0].batch_size == 34
    assert on_workers(1, numbered(100))[0].batch_size == 32


# Kinds of arrays.

ROWS = np.array(
    [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0], [4.0, 5.0, 6.0], [7.0, 0.0, 8.0]]
)
RAGGED = [[1], [], [2, 3, 4], [5, 6], [7]]


def columns(value: Any, workers: int = 1) -> list[Any]:
    """`value` as the first of two columns, batch by batch and worker by worker."""
    tasks = on_workers(workers, value, np.arange(5), batch_size=2, shuffle=True, seed=3)
    parts = flat(map(own_parts, zip(*map(steps_of, tasks), strict=True)))
    order = np.concatenate([y for _, y in parts])
    assert sorted(order) == list(range(5))
    return [x for x, _ in parts], order


@pytest.mark.parametrize("workers", only([2], [1, 2]))
@pytest.mark.parametrize(
    "make",
    only(
        [tf.constant, pd.DataFrame, scipy.sparse.csr_matrix],
        [
            np.array,
            tf.constant,
            pd.DataFrame,
            scipy.sparse.csr_matrix,
            scipy.sparse.coo_array,
            tf.sparse.from_dense,
            lambda rows: keras.ops.convert_to_tensor(rows),
        ],
    ),
    ids=["numpy", "tensor", "pandas", "csr", "coo", "sparse_tensor", "keras"],
)
def test_kinds_of_dense_and_sparse_arrays(make: Any, workers: int) -> None:
    parts, order = columns(make(ROWS), workers)
    dense = [tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x for x in parts]
    got = np.concatenate(dense)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, ROWS[order])


def test_ragged_arrays() -> None:
    parts, order = columns(tf.ragged.constant(RAGGED), workers=2)
    assert flat(part.to_list() for part in parts) == [RAGGED[i] for i in order]


def test_strings_integers_and_series() -> None:
    words = np.array(["a", "b", "c", "d", "e"])
    for value in (words, words.astype(object), tf.constant(words)):
        parts, order = columns(value)
        assert [w.decode() for p in parts for w in p.numpy()] == list(words[order])
    parts, order = columns(np.arange(5, dtype="uint8"))
    assert parts[0].dtype == tf.uint8
    parts, order = columns(pd.Series(np.arange(5.0)))
    np.testing.assert_array_equal(np.concatenate(parts), order[:, None])


def test_structures_and_missing_parts() -> None:
    x = {"b": [np.arange(5), None], "a": (np.arange(5) * 2.0,)}
    (task,) = on_workers(1, x, None, np.arange(5) * 3.0, batch_size=5)
    ((got, y, weight),) = read(task)
    assert list(got) == ["b", "a"]
    assert isinstance(got["b"], tuple)  # as in Keras, a list becomes one
    assert isinstance(got["a"], tuple)
    assert got["b"][1] is None
    assert y is None
    np.testing.assert_array_equal(got["b"][0], np.arange(5))
    np.testing.assert_array_equal(got["a"][0], np.arange(5) * 2)
    np.testing.assert_array_equal(weight, np.arange(5) * 3)
    assert task.spec[0]["a"][0].shape == (None,)


class Sum(keras.layers.Layer):
    """Adds a second input where there is one."""

    def call(self, x: Any, other: Any = None) -> Any:
        return x if other is None else x + other

    def compute_output_shape(self, shape: Any, *_: Any) -> Any:
        return shape


@pytest.mark.parametrize("way", only(["fed"], WAYS), indirect=True)
@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_only_an_input_that_is_optional_may_be_none(tiny: Any, replicas: int) -> None:
    x, y = tiny.data(8)

    def fitted(fit: Any, *, optional: bool) -> keras.Model:
        first, second = keras.Input((4,)), keras.Input((4,), optional=optional)
        outputs = keras.layers.Dense(3, kernel_initializer="ones")(Sum()(first, second))
        model = keras.Model([first, second], outputs)
        model.compile("sgd", tiny.model().loss)
        fit(model, [x, None], y, shuffle=False, verbose=0)
        return model

    trained = partial(kfit.fit, strategy=tiny.strategy(replicas))
    plain = fitted(keras.Model.fit, optional=True)
    assert tiny.distance(plain, fitted(trained, optional=True)) < 1e-6
    with pytest.raises(ValueError, match="not optional"):
        fitted(trained, optional=False)
    needed = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    needed.compile("sgd", tiny.model().loss)
    with pytest.raises(ValueError, match="not optional"):
        trained(needed, [None], y, verbose=0)


@pytest.mark.long
@pytest.mark.parametrize("way", only(["fed"], WAYS), indirect=True)
@pytest.mark.parametrize("replicas", [3, 1])
def test_a_model_on_sparse_arrays_learns_as_on_dense_ones(tiny: Any, replicas: int) -> None:
    x, y = tiny.data(22)
    x[np.abs(x) < 0.8] = 0.0
    dense = tiny.model()
    dense.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    keras.utils.set_random_seed(1)
    sparse = keras.Sequential(
        [
            keras.Input((4,), sparse=True),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    sparse.compile(keras.optimizers.SGD(0.5), dense.loss)
    trainer = kfit.Trainer(sparse, tiny.strategy(replicas))
    options = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}
    trainer.fit(tf.sparse.from_dense(x), y, **options)
    assert tiny.distance(dense, sparse) < 1e-5
    predicted = trainer.predict(scipy.sparse.csr_matrix(x), batch_size=10, verbose=0)
    np.testing.assert_allclose(predicted, dense.predict(x, verbose=0), atol=1e-5)


class Padding(keras.Model):
    """Pads ragged sentences to five words."""

    def __init__(self) -> None:
        super().__init__()
        layers = [keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
        self.rest = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])

    def call(self, x: Any) -> Any:
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=[None, 5])
        return self.rest(keras.ops.reshape(x, (-1, 5)))


@pytest.mark.long
@pytest.mark.parametrize("way", only(["fed"], WAYS), indirect=True)
@pytest.mark.parametrize("replicas", [3, 1])
def test_a_model_on_ragged_arrays(tiny: Any, replicas: int) -> None:
    words = tf.ragged.constant([list(range(1, 1 + n % 5)) for n in range(1, 23)])

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = Padding()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    options = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}
    y = np.arange(22) / 10.0
    one, many = made(), made()
    one.fit(words.to_tensor(shape=[None, 5]), y, **options)
    kfit.Trainer(many, tiny.strategy(replicas)).fit(words, y, **options)
    assert tiny.distance(one, many) < 1e-5


# Weights and splits.


def test_one_weight_serves_all_outputs() -> None:
    y = {"a": np.arange(4.0), "b": np.arange(4.0)}
    (task,) = on_workers(1, np.zeros((4, 1)), y, np.arange(4.0), batch_size=4)
    ((_, _, weights),) = read(task)
    assert list(weights) == ["a", "b"]
    np.testing.assert_array_equal(weights["b"], np.arange(4))
    with pytest.raises(ValueError, match="`sample_weight` must have the structure of `y`"):
        on_workers(1, np.zeros((4, 1)), y, {"a": np.arange(4.0)}, batch_size=4)
    with pytest.raises(ValueError, match="`class_weight` is only supported for models with a sing"):
        on_workers(1, np.zeros((4, 1)), y, class_weight={0: 1.0})


@pytest.mark.parametrize(
    "make", [np.array, tf.constant, pd.DataFrame, tf.sparse.from_dense, scipy.sparse.csr_matrix]
)
def test_the_validation_split_is_the_end(make: Any) -> None:
    (x, y, _), (val_x, val_y, _) = split_validation((make(ROWS), np.arange(5), None), 0.4)
    assert (x.shape[0], val_x.shape[0]) == (3, 2)
    np.testing.assert_array_equal(y, [0, 1, 2])
    np.testing.assert_array_equal(val_y, [3, 4])
    if hasattr(val_x, "toarray"):
        val_x = val_x.toarray()
    elif isinstance(val_x, tf.SparseTensor):
        val_x = tf.sparse.to_dense(val_x)
    np.testing.assert_array_equal(val_x, ROWS[3:])


def test_ragged_data_can_be_split() -> None:
    (x, _, _), (val_x, _, _) = split_validation((tf.ragged.constant(RAGGED), None, None), 0.4)
    assert (x.to_list(), val_x.to_list()) == (RAGGED[:3], RAGGED[3:])


def test_lists_of_numbers_are_told_by_name(tiny: Any) -> None:
    x, y = tiny.data(6)
    trainer = kfit.Trainer(tiny.model(), "one_device")
    for name, data in {
        "x": (x.tolist(), y),
        "y": (x, y.tolist()),
        "sample_weight": (x, y, [1.0] * 6),
    }.items():
        with pytest.raises(ValueError, match=rf"`{name}` must be an array.*np\.array\({name}\)"):
            trainer.fit(*data[:2], sample_weight=data[2] if len(data) > 2 else None, verbose=0)
    with pytest.raises(ValueError, match=r"Received: a nested list; pass np\.array\(x\)$"):
        trainer.predict(x.tolist(), verbose=0)


@pytest.mark.parametrize("way", only(["fed"], WAYS), indirect=True)
@pytest.mark.parametrize("shuffle", only([False], [False, True]))
def test_batches_that_were_not_taken_are_not_passed_over(shuffle: bool) -> None:
    """Of a segment that is only traced with, or of an evaluation that a hook has ended."""
    x = np.arange(100.0)[:, None]

    def batches() -> Batches:
        return as_batches(x, batch_size=2, shuffle=shuffle, seed=3, strategy=OneDevice())

    def take(run: Any, steps: int) -> tuple[int, None]:
        list(islice(run.iterator, steps))
        return steps, None

    expected = [numbers(read(batches(), epoch)) for epoch in range(2)]
    traced = batches()
    traced.empty_segment()
    assert [numbers(read(traced, epoch)) for epoch in (1, 0)] == expected[::-1]
    ended = batches()
    Cursor(ended, 0).take(take, 3)
    assert numbers(read(ended, 0)) == expected[0]
