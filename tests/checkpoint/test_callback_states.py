"""What callbacks remember without saying so, and what they say wrongly."""

import contextlib
import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import keras
import numpy as np
import pytest

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint.callback_states import CallbackStates
from kfit.internals.callbacks import ORBAX
from tests.sweeps import only


class CutError(Exception):
    """Ends a training as a kill would."""


class Cutter(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.at = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.at -= 1
        if not self.at:
            raise CutError


class Counts(keras.callbacks.Callback):
    """Numbers, arrays, lists, dicts, generators and an object of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.losses: list[float] = []
        self.total = np.zeros(2)
        self.table: dict[Any, Any] = {"best": None, 3: (1, 2)}
        self.draw = np.random.default_rng(1)
        self.average = Average()
        self.metric = keras.metrics.Mean()
        self.drawn: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.losses.append(logs["loss"])
        self.total += self.steps
        self.table["best"] = np.float32(min(self.losses))
        self.drawn.append(self.draw.random())
        self.average.add(self.drawn[-1])
        self.metric.update_state(self.drawn[-1])
        if self.steps % 4 == 0:
            self.late = {"at": {self.steps}}

    @property
    def seen(self) -> Any:
        values = (self.steps, self.losses, self.total.tolist(), self.table, self.drawn)
        return (*values, self.average.value, self.late, float(self.metric.result()))


class Average:
    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float) -> None:
        self.value = 0.9 * self.value + value


class Patient(keras.callbacks.EarlyStopping):
    """Keras' own, with a count of its own."""

    def __init__(self) -> None:
        super().__init__("loss", patience=100)
        self.epochs_seen = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.epochs_seen += 1


class Job:
    """Training with one trainer, begun anew as often as a test wants."""

    def __init__(self, tiny: Any) -> None:
        self.x, self.y = tiny.data(40)
        self.trainer = kfit.Trainer(tiny.model(), "one_device", seed=1)
        self.fresh = tiny.weights(self.trainer.model)

    def run(self, *callbacks: Any) -> None:
        self.trainer.model.set_weights(self.fresh)
        self.trainer._seeds.begin_anew()
        self.trainer.fit(
            self.x, self.y, batch_size=10, epochs=3, verbose=0, callbacks=list(callbacks)
        )


@pytest.fixture(scope="module")
def job(tiny: Any) -> Job:
    return Job(tiny)


@pytest.mark.parametrize("cut", only([6], [2, 6, 9]))
def test_what_changes_in_training_is_state(job: Job, tmp_path: Any, cut: int) -> None:
    counts, patient = Counts(), Patient()
    job.run(counts, patient)
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.raises(CutError):
        job.run(Counts(), Patient(), backup, Cutter(cut))
    again, patient_again = Counts(), Patient()
    job.run(again, patient_again, backup)
    assert again.seen == counts.seen
    assert patient_again.epochs_seen == patient.epochs_seen == 3
    assert patient_again.best == patient.best


class Half(keras.callbacks.Callback):
    def state_dict(self) -> Any:
        return {}


class OtherHalf(keras.callbacks.Callback):
    def load_state_dict(self, state: Any) -> None:
        """Nothing."""


class Unsavable(keras.callbacks.Callback):
    def state_dict(self) -> Any:
        return {"rate": {"of": [lambda epoch: 1.0]}}

    def load_state_dict(self, state: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (Half, "The callback Half has `state_dict` and not `load_state_dict`"),
        (OtherHalf, "The callback OtherHalf has `load_state_dict` and not `state_dict`"),
        (
            Unsavable,
            r"callback Unsavable can't be saved: state\['rate'\]\['of'\]\[0\]",
        ),
    ],
)
def test_what_cannot_be_saved_is_refused_at_once(
    job: Job, tmp_path: Any, callback: Any, says: str
) -> None:
    begun: list[int] = []
    watch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    with pytest.raises(ValueError, match=says):
        job.run(callback(), watch, BackupAndRestore(tmp_path / "backup"))
    assert not begun


def test_what_nobody_can_save_is_told(job: Job, tmp_path: Any) -> None:
    class Holds(keras.callbacks.Callback):
        kept: Any = None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.kept = (n for n in range(batch))

    with pytest.warns(UserWarning, match="state of the callback Holds is not saved whole: kept"):
        job.run(Holds(), BackupAndRestore(tmp_path / "backup", save_freq=2))


def rates() -> Iterator[float]:
    rate = 0.1
    while True:
        yield rate
        rate *= 0.9


@pytest.mark.long
def test_a_generator_that_a_callback_of_keras_draws_from_is_told(job: Job, tmp_path: Any) -> None:
    drawn = rates()
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: next(drawn))
    told = r"LearningRateScheduler is not saved whole: \S*drawn \(a generator\).*object of yours"
    with pytest.warns(UserWarning, match=told):
        job.run(scheduler, BackupAndRestore(tmp_path / "backup", save_freq=2))


class Several(keras.callbacks.Callback):
    """Calls callbacks of Keras that are not among those of `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = keras.callbacks.EarlyStopping("steps", patience=100, mode="min")
        self.others = [keras.callbacks.ReduceLROnPlateau("steps", patience=100, mode="min")]
        self.steps = 0

    def on_train_begin(self, logs: Any = None) -> None:
        for each in (self.stopping, *self.others):
            each.set_model(self.model)
            each.on_train_begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.steps += 1
        for each in (self.stopping, *self.others):
            each.on_epoch_end(epoch, {"steps": self.steps})


def test_callbacks_of_keras_in_another_one_go_on(job: Job, tmp_path: Any) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.raises(CutError):
        job.run(Several(), backup, Cutter(10))
    again = Several()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The state of")
        job.run(again, backup)
    (reduced,) = again.others
    assert (again.stopping.best, again.stopping.wait) == (1, 2)
    assert (reduced.best, reduced.wait) == (1, 2)


def test_a_snapshot_sets_nothing_but_what_a_callback_of_keras_remembers() -> None:
    from kfit.checkpoint.callback_states import CallbackStates

    stopping = keras.callbacks.EarlyStopping()
    name = "keras.callbacks.EarlyStopping"
    state = {"callback": name, "state": {"wait": 3, "model": 1}, "attributes": []}
    CallbackStates([stopping], is_chief=True).load_state_dict([stopping], [state], epoch=0)
    assert stopping.wait == 3
    assert stopping.model is None


def test_what_had_not_changed_is_put_back_by_a_load_in_the_same_process(job: Job) -> None:
    class Steps(keras.callbacks.Callback):
        steps = -1

        def on_train_begin(self, logs: Any = None) -> None:
            self.steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1

    from kfit.checkpoint.callback_states import CallbackStates

    steps = Steps()
    steps.on_train_begin()
    memory = CallbackStates([steps], is_chief=True)
    memory.begin([steps], set(), saves=True)
    states = memory.state_dict([steps])
    steps.on_train_batch_end(0)
    memory.load_state_dict([steps], states, epoch=0)
    assert steps.steps == 0


def test_a_callback_of_keras_begins_anew_where_kfits_was(job: Job, tmp_path: Any) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    path = tmp_path / "best.keras"
    of_kfit = kfit.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)
    with pytest.raises(CutError):
        job.run(of_kfit, backup, Cutter(6))
    of_keras = keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)
    says = "The snapshot has no state of the callback keras.callbacks.ModelCheckpoint"
    with pytest.warns(UserWarning, match=says):
        job.run(of_keras, BackupAndRestore(tmp_path / "backup", save_freq=1))
    assert of_keras.model.history.epoch == [0, 1, 2]


@pytest.mark.long
def test_an_orbax_checkpoint_goes_on_with_its_best_value_and_its_count(
    job: Job, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(kind: Any, options: Any, *others: Any) -> list[int]:
        """The steps at which it saves, with orbax replaced, which need not be installed."""
        orbax = MagicMock()
        monkeypatch.setattr(sys.modules[kind.__module__], "ocp", orbax)
        job.trainer.model.optimizer.iterations.assign(0)
        with contextlib.suppress(CutError):
            job.run(kind("saved", "loss", mode="max", save_on_background=False, **options), *others)
        saves = orbax.training.Checkpointer.return_value.save_checkpointables
        return [call.args[0] for call in saves.call_args_list]

    for kind in ORBAX:
        for name, options in (("best", {"save_best_only": True}), ("steps", {"save_freq": 3})):
            backup = BackupAndRestore(tmp_path / name, save_freq=1)
            whole = steps(kind, options)
            cut = steps(kind, options, backup, Cutter(8))
            again = steps(kind, options, BackupAndRestore(tmp_path / name, save_freq=1))
            assert cut + again == whole, name


class Reads(keras.callbacks.Callback):
    """Checks at each hook that a snapshot taken there would be read again."""

    def __init__(self, states: CallbackStates, others: list[Any]) -> None:
        super().__init__()
        self.states, self.others = states, others
        self.read = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.states.check(self.others, self.states.state_dict(self.others))
        self.read += 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.on_train_begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.on_train_begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.on_train_begin()


class ReadsAtEpochs(Reads):
    """The same without batch hooks, so that no callback has been told of a batch."""

    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end


@pytest.mark.parametrize(
    ("best", "save_freq", "reads"),
    only(
        [(True, 3, Reads)],
        itertools.product([False, True], ["epoch", 3], [Reads, ReadsAtEpochs]),
    ),
)
def test_what_callbacks_of_keras_remember_can_be_read_at_any_time(
    tiny: Any, tmp_path: Any, reads: Any, save_freq: Any, best: bool
) -> None:
    callbacks = [
        keras.callbacks.ModelCheckpoint(
            tmp_path / "saved.keras", "loss", save_freq=save_freq, save_best_only=best
        ),
        keras.callbacks.EarlyStopping("loss", restore_best_weights=best, patience=5),
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "events", write_graph=False),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
        keras.callbacks.History(),
    ]
    model = tiny.model(optimizer=keras.optimizers.SGD(use_ema=True))
    reading = reads(CallbackStates(callbacks, is_chief=True), callbacks)
    trainer = kfit.Trainer(model, "one_device")
    trainer.fit(*tiny.data(20), epochs=3, verbose=0, callbacks=[*callbacks, reading])
    assert reading.read >= 7


def test_a_callback_that_was_added_before_one_of_its_class_begins_anew(
    job: Job, tmp_path: Any
) -> None:
    def best(monitor: str) -> kfit.callbacks.ModelCheckpoint:
        path = tmp_path / f"{monitor}.keras"
        return kfit.callbacks.ModelCheckpoint(path, monitor=monitor, save_best_only=True)

    def backup() -> BackupAndRestore:
        return BackupAndRestore(tmp_path / "backup", save_freq=1)

    with pytest.raises(CutError):
        job.run(best("loss"), backup(), Cutter(9))
    old, new = best("loss"), best("accuracy")
    said = "The snapshot has no state of the callback kfit.callbacks.ModelCheckpoint; it begins"
    with pytest.warns(UserWarning, match=said):
        job.run(new, old, backup())
    assert (tmp_path / "accuracy.keras").exists()
    assert new.best in job.trainer.history.history["accuracy"]
    assert old.best in job.trainer.history.history["loss"]


class Every(keras.callbacks.Callback):
    """Changes nothing until its step comes."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.count = steps, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += int(self.model.optimizer.iterations) % self.steps == 0


def resumed(job: Job, folder: Any, make: Any, cut: int = 6) -> list[Any]:
    """The callbacks of a run that was cut off and gone on with, and those of one that was not."""
    alone = make()
    job.run(*alone, BackupAndRestore(folder / "alone", save_freq=1))
    job.trainer.model.optimizer.iterations.assign(0)
    backup = BackupAndRestore(folder / "cut", save_freq=1)
    with pytest.raises(CutError):
        job.run(*make(), backup, Cutter(cut))
    again = make()
    job.trainer.model.optimizer.iterations.assign(0)
    job.run(*again, backup)
    return list(zip(again, alone, strict=True))


@pytest.mark.long
def test_of_two_callbacks_of_a_class_one_has_not_changed_yet(job: Job, tmp_path: Any) -> None:
    job.trainer.model.optimizer.iterations.assign(0)
    for again, alone in resumed(job, tmp_path, lambda: [Every(11), Every(2)]):
        assert (again.steps, again.count) == (alone.steps, alone.count)


class Holds(keras.callbacks.Callback):
    """Holds a callback of Keras, which is called by `fit` or by this one."""

    def __init__(self, inner: keras.callbacks.Callback, *, calls: bool) -> None:
        super().__init__()
        self.inner, self.calls = inner, calls

    def on_train_begin(self, logs: Any = None) -> None:
        if self.calls:
            self.inner.set_model(self.model)
            self.inner.on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.calls:
            self.inner.on_epoch_end(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        if self.calls:
            self.inner.on_train_end(logs)


class Strict(keras.callbacks.EarlyStopping):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.seen = self.min_delta


def make_strict() -> list[Any]:
    options: Any = {"monitor": "loss", "patience": 50, "min_delta": 0.01}
    inner = keras.callbacks.EarlyStopping(**options)
    also = keras.callbacks.ReduceLROnPlateau("loss", patience=50, min_delta=0.01)
    return [inner, Holds(inner, calls=False), Holds(also, calls=True), Strict(**options)]


def test_what_keras_callbacks_derive_is_derived_again(job: Job, tmp_path: Any) -> None:
    """Keras turns the sign of `min_delta` when a callback first compares values."""
    for again, alone in resumed(job, tmp_path, make_strict):
        one, other = (getattr(each, "inner", each) for each in (again, alone))
        assert one.min_delta == other.min_delta == -0.01
        assert (one.best, one.wait) == (other.best, other.wait)


@pytest.mark.long
def test_the_best_value_can_be_compared_before_an_epoch_has_ended(job: Job, tmp_path: Any) -> None:
    """Keras' ModelCheckpoint chooses how it compares at the end of the first epoch."""

    def make() -> list[Any]:
        options: Any = {"monitor": "loss", "save_best_only": True, "save_freq": 4}
        return [keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", **options)]

    ((again, alone),) = resumed(job, tmp_path / "backup", make)
    assert again.best == alone.best


class Sees(kfit.callbacks.ModelCheckpoint):
    """A subclass of a callback of kfit's with an attribute of its own."""

    seen = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.seen += 1


class Mean:
    """A function with a memory, as one that looks for jumps of the loss."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, logs: Any) -> bool:
        self.losses.append(float(logs["loss"]))
        return False


@pytest.mark.long
def test_what_a_program_adds_to_a_callback_of_kfits_is_state(job: Job, tmp_path: Any) -> None:
    means: list[Mean] = []

    def make() -> list[Any]:
        means.append(Mean())
        return [Sees(tmp_path / "m.keras", monitor="loss"), kfit.callbacks.RollBack(on=means[-1])]

    (sees, _) = resumed(job, tmp_path / "backup", make)
    assert sees[0].seen == sees[1].seen == 3
    assert means[-1].losses == means[0].losses


class Buffers(keras.callbacks.Callback):
    """Writes into the array that it was given back."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(3)

    def state_dict(self) -> Any:
        return {"buffer": self.buffer.copy()}

    def load_state_dict(self, state: Any) -> None:
        self.buffer = state["buffer"]


def test_a_state_that_was_given_back_may_be_written_to() -> None:
    """A snapshot in memory, as RollBack has one, is given back again."""
    callback = Buffers()
    states = CallbackStates([callback], is_chief=True)
    kept = states.state_dict([callback])
    for _ in range(2):
        states.load_state_dict([callback], kept, epoch=0)
        assert callback.buffer.tolist() == [0, 0, 0]
        callback.buffer += 1


class HoldsHistory(keras.callbacks.Callback):
    """Holds what the History has."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.history = self.model.history.history


@pytest.mark.long
def test_what_others_hold_of_a_history_is_restored_in_place(job: Job, tmp_path: Any) -> None:
    ((again, alone),) = resumed(job, tmp_path, lambda: [HoldsHistory()])
    assert again.history == alone.history
    assert {len(values) for values in again.history.values()} == {3}


class Changes(keras.callbacks.Callback):
    """Changes settings of other callbacks at the end of the first epoch."""

    def __init__(self, others: list[Any]) -> None:
        super().__init__()
        self.others = others

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            for other in self.others:
                other.patience = 77


@pytest.mark.long
def test_settings_that_another_callback_changes_are_kept(job: Job, tmp_path: Any) -> None:
    def make() -> list[Any]:
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=50)
        changed = [keras.callbacks.EarlyStopping("loss", patience=50), plateau, Patient()]
        return [*changed, Changes(changed)]

    found = [again.patience for again, _ in resumed(job, tmp_path, make)[:3]]
    assert found == [77, 77, 77]


@pytest.mark.long
@pytest.mark.parametrize("calls", [True, False], ids=["by a callback", "in a list"])
def test_a_file_that_a_held_callback_writes_goes_on(job: Job, tmp_path: Any, calls: bool) -> None:
    made = iter(("alone.csv", "cut.csv", "cut.csv"))

    def make() -> list[Any]:
        logger = keras.callbacks.CSVLogger(tmp_path / next(made))
        return [Holds(logger, calls=True) if calls else keras.callbacks.CallbackList([logger])]

    resumed(job, tmp_path, make)
    rows = [(tmp_path / name).read_text() for name in ("cut.csv", "alone.csv")]
    assert [line.split(",")[0] for line in rows[0].split()] == ["epoch", "0", "1", "2"]
    assert rows[0] == rows[1]
