"""Which attributes of a callback are looked at, by what it is made from."""

from typing import Any

import keras

import kfit
from kfit.checkpoint.callback_attributes import attributes_of


class Own(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.counted = self.elsewhere = self.known = 0


class Stops(keras.callbacks.EarlyStopping):
    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        def count() -> None:
            self.counted += 1

        count()


def changed(callback: keras.callbacks.Callback, *names: str) -> set[str]:
    """The names of those attributes that are kept when all of `names` change."""
    looked_at = attributes_of(callback, {"known"}, ())
    assert looked_at is not None
    for name in names:
        setattr(callback, name, 7)
    return {name for name in names if name in repr(looked_at.state_dict())}


def test_all_of_one_made_from_the_base_but_what_it_was_given_or_is_known() -> None:
    names = ("counted", "elsewhere", "known", "params", "validation_data")
    assert changed(Own(), *names) == {"counted", "elsewhere", "validation_data"}


def test_of_one_made_from_another_what_its_own_code_names() -> None:
    assert changed(Stops(), "counted", "wait", "best_epoch") == {"counted"}


def test_of_one_made_from_another_also_what_no_code_of_the_other_names() -> None:
    callback = Stops()
    looked_at = attributes_of(callback, (), ())
    assert looked_at is not None
    setattr(callback, "named in " + "no code", 7)
    callback.patience = 7
    assert [entry["path"] for entry in looked_at.state_dict()] == [["named in no code"]]


class Trains(kfit.callbacks.TrainingCallback):
    counted = 0


def test_an_attribute_named_training_is_one_unless_kfit_sets_it() -> None:
    assert changed(Own(), "training") == {"training"}
    assert changed(Trains(), "training", "counted") == {"counted"}


class Schedule:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any) -> float:
        self.calls += 1
        return 1 / self.calls


def test_objects_that_are_called_are_state() -> None:
    for name, callback, given in (
        ("schedule", keras.callbacks.LearningRateScheduler(schedule := Schedule()), schedule),
        ("on_epoch_end", keras.callbacks.LambdaCallback(on_epoch_end=(end := Schedule())), end),
    ):
        looked_at = attributes_of(callback, (), ())
        assert looked_at is not None
        given()
        assert looked_at.state_dict() == [{"path": [name, "calls"], "value": 1}]


class Logs(keras.callbacks.LearningRateScheduler):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.last = epoch


def test_of_one_made_from_another_also_objects_that_it_was_given() -> None:
    looked_at = attributes_of(Logs(schedule := Schedule()), (), ())
    assert looked_at is not None
    schedule()
    assert looked_at.state_dict() == [{"path": ["schedule", "calls"], "value": 1}]


def test_of_one_of_keras_nothing_unless_it_was_given_a_function() -> None:
    assert attributes_of(keras.callbacks.EarlyStopping(), (), ()) is None
    counted = [0]

    def count(epoch: int, logs: Any) -> None:
        counted[0] += 1

    given = attributes_of(keras.callbacks.LambdaCallback(on_epoch_end=count), (), ())
    assert given is not None
    count(0, None)
    assert "counted" in repr(given.state_dict())


class Delays(keras.callbacks.Callback):
    def __init__(self, *inner: keras.callbacks.Callback) -> None:
        super().__init__()
        self.inner = list(inner)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for each in self.inner:
            each.on_epoch_begin(epoch, logs)


def test_what_callbacks_count_that_another_one_calls() -> None:
    counted, schedule = [0], Schedule()

    def count(epoch: int, logs: Any) -> None:
        counted[0] += 1

    inner = keras.callbacks.LambdaCallback(on_epoch_begin=count)
    scheduler = keras.callbacks.LearningRateScheduler(schedule)
    delays = Delays(inner, scheduler)
    looked_at = attributes_of(delays, (), ())
    without = attributes_of(delays, (), {id(inner), id(scheduler)})  # `fit` has them as well
    assert looked_at is not None
    assert without is not None
    inner.on_epoch_begin(0, None)
    schedule()
    paths = [entry["path"] for entry in looked_at.state_dict()]
    assert ["inner", 1, "schedule", "calls"] in paths
    assert "counted" in repr(paths)
    assert "'path': ['inner'" not in repr(without.state_dict())
    assert "counted" not in repr(without.state_dict())
