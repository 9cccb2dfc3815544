"""Arrays: every example once an epoch, in one order for any number of workers and restarts."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.arrays import ArrayBatches, class_weights_of


def worker(index: int, workers: int, local: int = 1) -> Any:
    """What `ArrayBatches` asks of a strategy, for one of several workers."""
    return SimpleNamespace(
        num_replicas=workers * local, num_local_replicas=local, first_local_replica=index * local
    )


def elements(batches: ArrayBatches, epoch: int, step: int = 0) -> list[Any]:
    """This worker's part of each batch of an epoch."""
    found = []
    for run in batches.runs(epoch, step):
        if run.iterator is None:
            found.append(run.layout.template.pack(run.element))
        else:
            found += [run.layout.template.pack(next(run.iterator)) for _ in range(run.steps)]
    return found


def ids(batches: ArrayBatches, epoch: int, step: int = 0) -> list[list[int]]:
    return [[int(i) for i in element[0][:, 0]] for element in elements(batches, epoch, step)]


def made(examples: int = 101, **options: Any) -> ArrayBatches:
    x = np.arange(examples, dtype="float32")[:, None]
    options = {"batch_size": 20, "strategy": worker(0, 1), "seed": 3, "shuffle": True, **options}
    return ArrayBatches((x, None, None), **options)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shuffle", [False, True, "batch"])
def test_workers_together_see_the_batches_of_one(workers: int, shuffle: Any) -> None:
    one = made(shuffle=shuffle)
    several = [made(shuffle=shuffle, strategy=worker(i, workers)) for i in range(workers)]
    for epoch in range(2):
        parts = [ids(batches, epoch) for batches in several]
        whole = ids(one, epoch)
        assert sorted(i for batch in whole for i in batch) == list(range(101))
        for step, batch in enumerate(whole):
            assert [i for part in parts for i in part[step]] == batch


def test_epochs_differ_and_a_rerun_does_not() -> None:
    assert ids(made(), 0) == ids(made(), 0)
    batches = made()
    assert ids(batches, 0) != ids(batches, 1)


@pytest.mark.parametrize("step", range(7))
def test_resuming_at_a_step_goes_on_as_if_never_stopped(step: int) -> None:
    assert ids(made(), 2, step) == ids(made(), 2)[step:]


def test_shuffle_batch_keeps_the_members_of_a_batch() -> None:
    batches = ids(made(shuffle="batch"), 1)
    assert [sorted(batch) for batch in batches] == ids(made(shuffle=False), 1)
    assert batches != ids(made(shuffle=False), 1)


def test_fewer_steps_than_a_pass_go_on_where_the_last_epoch_ended() -> None:
    whole = ids(made(), 0)
    batches = made(steps_per_epoch=4)
    assert ids(batches, 0) == whole[:4]
    assert ids(batches, 1) == whole[4:]  # and ends with the data, as in Keras
    assert ids(batches, 2) == ids(made(), 1)[:4]


def test_structures_and_kinds_of_columns() -> None:
    rows = np.arange(7)
    ragged = tf.ragged.constant([[i] * (i % 3) for i in rows], dtype=tf.float32)
    sparse = tf.sparse.from_dense(np.diag(rows + 1.0))
    x = {"dense": rows.astype("float64")[:, None], "ragged": ragged, "sparse": sparse}
    y = [rows, None]
    batches = ArrayBatches((x, y, None), batch_size=3, strategy=worker(0, 1), shuffle=True, seed=1)
    for element in elements(batches, 0):
        found, labels = element
        assert labels[1] is None
        chosen = labels[0].numpy()
        assert found["dense"].dtype == tf.float32
        assert (found["dense"].numpy()[:, 0] == chosen).all()
        assert [len(row) for row in found["ragged"].to_list()] == [i % 3 for i in chosen]
        dense = tf.sparse.to_dense(tf.sparse.reorder(found["sparse"])).numpy()
        assert (dense == np.diag(rows + 1.0)[chosen]).all()


def test_full_batches_have_static_shapes() -> None:
    run = next(made().runs(0))
    assert [spec.shape[0] for spec in run.iterator.element_spec] == [20]
    assert run.layout.endless
    assert run.layout.examples == 20


def test_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ambiguous.*'x': 3.*'y': 4"):
        ArrayBatches((np.ones(3), np.ones(4), None), batch_size=2, strategy=worker(0, 1))
    with pytest.raises(ValueError, match="at least one example"):
        ArrayBatches((np.ones((0, 2)), None, None), batch_size=2, strategy=worker(0, 1))


def test_class_weights_of_labels() -> None:
    weights = {0: 2.0, 2: 0.5}
    assert class_weights_of(np.array([0, 1, 2]), weights).tolist() == [2.0, 1.0, 0.5]
    assert class_weights_of(np.array([[0], [2]]), weights).tolist() == [2.0, 0.5]
    one_hot = keras.utils.to_categorical([2, 1], 3)
    assert class_weights_of(one_hot, weights).tolist() == [0.5, 1.0]
