"""Each batch of a PyDataset is read once an epoch, in its order, and trained on like its arrays."""

import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.inputs import Batches
from tests.inputs.numbered import batch, batches_of, numbers, read, shows
from tests.sweeps import only


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


@pytest.mark.parametrize("workers", only([3], [1, 3]))
def test_a_py_dataset_gives_every_batch_once_an_epoch(workers: int) -> None:
    data = Numbered(17, workers=workers)
    batches = batches_of(data)
    assert len(batches.spec) == 3
    for epoch in range(3):
        assert numbers(read(batches, epoch)) == [100 * epoch + k for k in range(17)]
    batches.close()
    # Those looked at beforehand are asked for again: the data set may reorder itself in its hook.
    looked_at = range(len(data.asked) - 3 * 17)
    assert sorted(data.asked) == sorted([*looked_at, *3 * list(range(17))])
    assert len(looked_at) <= 2 + data.max_queue_size
    assert (data.begun, data.ended) == (3, 3)


@pytest.mark.parametrize("workers", only([3], [1, 3]))
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


@pytest.mark.parametrize(
    ("length", "steps", "workers"),
    only(
        [(5, None, 1), (5, 2, 3), (None, 2, 3)],
        [(*size, workers) for size in [(5, None), (5, 2), (None, 2)] for workers in (1, 3)],
    ),
)
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

    class FourParts(Numbered):
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), np.ones(2))

    with pytest.raises(ValueError, match=r"or \(x, y, sample_weight\)\. .* returned 4 parts"):
        shows(tiny, 1).fit(FourParts(5), verbose=0)

    for workers in (1, 3):
        with pytest.raises(Exception, match="the disk is gone"):
            shows(tiny, 1).fit(Failing(5, workers=workers), verbose=0)


def test_an_epoch_begins_anew_where_a_shorter_data_set_has_ended() -> None:
    data = Numbered(8)
    batches = batches_of(data, steps=3)
    data.length = 6
    taken = [[number % 100 for number in numbers(read(batches, epoch))] for epoch in range(3)]
    assert taken == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    data.length = 3
    assert numbers(read(batches, 3)) == [303, 304, 305]  # the pass has begun with 6 batches
    data.length = 0
    with pytest.raises(ValueError, match="must hold at least one"):
        read(batches, 4)
    batches.close()


class Rows(keras.utils.PyDataset):
    """Batches of ten rows of arrays."""

    def __init__(self, *arrays: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arrays = arrays

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // 10)

    def __getitem__(self, index: int) -> Any:
        return tuple(array[10 * index : 10 * index + 10] for array in self.arrays)


@pytest.mark.long
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


class OfItsLoss(keras.Sequential):
    """A model that needs no targets."""

    def call(self, x: Any, **kwargs: Any) -> Any:
        out = super().call(x, **kwargs)
        self.add_loss(keras.ops.mean(keras.ops.square(out)))
        return out


def test_class_weights_need_one_output_and_leave_inputs_alone(tiny: Any) -> None:
    x, y = tiny.data(20)
    weighted = {"class_weight": {0: 3.0}, "verbose": 0}

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = OfItsLoss([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd")
        return model

    one, many = made(), made()
    one.fit(Rows(x), shuffle=False, **weighted)
    with pytest.warns(UserWarning, match="`class_weight` has no effect"):
        kfit.Trainer(many, tiny.strategy(2)).fit(Rows(x), shuffle=False, **weighted)
    assert tiny.distance(one, many) < 1e-6

    class Several(Rows):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x, (y, y)

    with pytest.raises(ValueError, match="only supported for models with a single output"):
        kfit.Trainer(tiny.model(), "one_device").fit(Several(x, y), **weighted)


FAILING: list[int] = []
"""The items that fail at their next reading."""


class Noisy(keras.utils.PyDataset):
    """Adds noise from a generator of its own; items fail after they have drawn their noise."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        x = np.ones((4, 2)) + self.generator.normal(size=(4, 2))
        if index in FAILING:
            FAILING.remove(index)
            raise OSError("the disk")
        return x, np.ones((4, 1))


@pytest.mark.parametrize("fits", only([1], [1, 2]))
def test_a_fit_goes_on_after_an_item_that_has_drawn_and_failed(tmp_path: Path, fits: int) -> None:
    def losses(folder: Path, fails: bool) -> list[list[float]]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data, found = Noisy(), []
        for number in range(fits):
            FAILING[:] = [4] * (fails and number == fits - 1)
            while True:
                backup = BackupAndRestore(folder, save_freq=1)
                try:
                    history = kfit.fit(
                        model, data, epochs=2, shuffle=False, verbose=0, callbacks=[backup]
                    )
                    break
                except OSError:
                    continue
            found.append(history.history["loss"])
        return found

    assert losses(tmp_path / "failed", True) == losses(tmp_path / "whole", False)
