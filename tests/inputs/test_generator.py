"""A generator is read once: no batch is lost, none is repeated."""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from tests.inputs.numbered import batch, batches_of, generated, numbers, read, shows


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


def test_a_generator_that_ends_with_an_epoch_stops_training_there(tiny: Any) -> None:
    trainer = shows(tiny, 1)
    with pytest.warns(UserWarning, match="has ended, and .* training stops after epoch 2 of 4"):
        history = trainer.fit(generated(6), steps_per_epoch=3, epochs=4, verbose=0)
    assert (history.epoch, len(history.history["number"])) == ([0, 1], 2)


def test_a_generator_that_ends_is_told_of_once(tiny: Any) -> None:
    trainer = shows(tiny, 1)

    def told(batches: int, **validation: Any) -> list[str]:
        endless: Any = generated(batches if not validation else 100)
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            trainer.fit(endless, steps_per_epoch=3, epochs=3, verbose=0, **validation)
        return [str(each.message).partition(".")[0] for each in recorded]

    where = "training stops after epoch 2 of 3, which had 1 of 3 steps"
    assert told(4) == [f"`x` has ended, and cannot be read again: {where}"]
    (in_the_last,) = told(7)
    assert in_the_last == "Your input ran out of data; interrupting training"
    now = "so that no epoch from now on is validated"
    for batches in (1, 4, 6):
        options = {"validation_data": generated(batches), "validation_steps": 3}
        words = told(batches, **options)
        assert set(words) == {f"`validation_data` has ended, and cannot be read again, {now}"}
    options = {"validation_data": generated(7), "validation_steps": 3}
    assert told(7, **options) == [in_the_last]


@pytest.mark.long
def test_validation_data_that_has_ended_is_told(tiny: Any) -> None:
    x, y = tiny.data(16)
    with pytest.warns(UserWarning, match="`validation_data` has ended, and cannot be read again"):
        history = kfit.Trainer(tiny.model(), "one_device").fit(
            x, y, epochs=2, validation_data=iter([(x, y)]), verbose=0
        )
    assert len(history.history["val_loss"]) == 1
