"""A whole program that is killed and run again: what it had done, it does not do again."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import SnapshotMismatchError, Store, fits
from kfit.fingerprints import of_training
from kfit.user_files.ownership import ForeignFileError
from tests.sweeps import only

STEPS = 4
"""Of an epoch."""


class KilledError(Exception):
    """Ends a program as if its process were killed."""


class Life:
    """One process's life, which ends at a moment: a step, or a place between two `fit`s.

    Attributes:
        steps: Steps taken.
        printed: What the program has to show.
    """

    def __init__(self, folder: Path, dies_at: int) -> None:
        fits.forget()
        self.folder = folder
        self.steps = 0
        self.printed: list[Any] = []
        self._left = dies_at

    def moment(self) -> None:
        self._left -= 1
        if not self._left:
            raise KilledError

    def fit(
        self,
        model: keras.Model,
        epochs: int,
        *callbacks: keras.callbacks.Callback,
        after: Iterable[keras.callbacks.Callback] = (),
        data: Any = None,
        arguments: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        life = self

        class Lives(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                life.steps += 1
                life.moment()

        x, y = arrays() if data is None else (data, None)
        given = arguments if arguments is not None else {"batch_size": 8}
        backup = BackupAndRestore(self.folder / "backup", **{"save_freq": 2, **options})
        trainer = kfit.Trainer(model, kfit.distribute.OneDevice(), seed=2)
        listed = [*callbacks, backup, *after, Lives()]
        history = trainer.fit(x, y, epochs=epochs, verbose=0, callbacks=listed, **given)
        self.moment()
        return history

    def show(self, value: Any) -> None:
        self.printed.append(value)

    def evaluate(self, model: keras.Model) -> None:
        x, y = arrays()
        self.show(model.evaluate(x, y, verbose=0))
        self.moment()


def arrays() -> Any:
    draw = np.random.default_rng(0)
    return draw.normal(size=(30, 4)).astype("float32"), draw.integers(0, 3, 30)


def made(rate: float = 0.1, width: int = 5) -> keras.Model:
    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    compiled(model, rate)
    return model


def compiled(model: keras.Model, rate: float) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])


def once(life: Life) -> None:
    """`fit(); evaluate(); save()`."""
    model = made()
    early = life.fit(model, 3).history
    life.show(early)
    life.evaluate(model)
    life.show([w.tolist() for w in model.get_weights()])


def twice(life: Life) -> None:
    """Two `fit`s of one model."""
    model = made()
    life.show(life.fit(model, 2).history)
    life.evaluate(model)
    life.show(life.fit(model, 3).history)
    life.evaluate(model)


def in_a_loop(life: Life) -> None:
    model = made()
    for _ in range(5):
        life.show(life.fit(model, 1).history)
        life.evaluate(model)


def in_two_phases(life: Life) -> None:
    """Fine-tuning: the first layer is frozen at first."""
    model = made(0.1)
    model.layers[0].trainable = False
    compiled(model, 0.1)
    life.show(life.fit(model, 2).history)
    model.layers[0].trainable = True
    compiled(model, 0.01)
    life.show(life.fit(model, 2).history)
    life.evaluate(model)


def of_two_models(life: Life) -> None:
    one, other = made(), made(width=7)
    life.show(life.fit(one, 2).history)
    life.show(life.fit(other, 2).history)
    life.evaluate(one)
    life.evaluate(other)


class Compiles(keras.callbacks.Callback):
    """Compiles the model before the first step of each `fit`."""

    def on_train_begin(self, logs: Any = None) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.Adam(0.01), loss)


class Sets(keras.callbacks.Callback):
    """Freezes or thaws the first layer at the beginning or the end of an epoch."""

    def __init__(self, trainable: bool, begin: int = -1, end: int = -1) -> None:
        super().__init__()
        self.trainable, self.begin, self.end = trainable, begin, end

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.begin:
            self.model.layers[0].trainable = self.trainable

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.end:
            self.model.layers[0].trainable = self.trainable


def with_compile_in_on_train_begin(life: Life) -> None:
    model = made()
    life.show(life.fit(model, 2, Compiles()).history)
    life.show(life.fit(model, 2, Compiles()).history)
    life.show([w.tolist() for w in model.get_weights()])


def with_a_hook_that_thaws(life: Life) -> None:
    model = made()
    model.layers[0].trainable = False
    compiled(model, 0.1)
    life.show(life.fit(model, 2, Sets(True, end=0)).history)
    compiled(model, 0.1)
    life.show(life.fit(model, 2).history)
    life.show([w.tolist() for w in model.get_weights()])


def with_a_hook_that_freezes_before_the_first_step(life: Life) -> None:
    model = made()
    life.show(life.fit(model, 2, Sets(False, begin=0), Sets(True, end=0)).history)
    life.show(life.fit(model, 1).history)
    life.show([w.tolist() for w in model.get_weights()])


class FreezesAtFirst(keras.callbacks.Callback):
    """Freezes a layer before the first step, in epochs that a resumed training does not begin."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.model.layers[0].trainable = False


def with_a_layer_frozen_for_good(life: Life) -> None:
    model = made()
    life.show(life.fit(model, 3, FreezesAtFirst()).history)
    life.show(life.fit(model, 1).history)
    life.show([w.tolist() for w in model.get_weights()])


def of_a_generator_that_ends(batches: int) -> Callable[[Life], None]:
    """Makes a program whose first `fit` ends before its epochs, with the generator."""

    def program(life: Life) -> None:
        x, y = arrays()
        parts = ((x[8 * (i % 3) :][:8], y[8 * (i % 3) :][:8]) for i in range(batches))
        model = made()
        ends = {"data": parts, "arguments": {"steps_per_epoch": 3}, "save_freq": "epoch"}
        life.show(life.fit(model, 4, **ends).history)
        life.evaluate(model)
        life.show(life.fit(model, 2).history)
        life.show([w.tolist() for w in model.get_weights()])

    return program


PROGRAMS = {f.__name__: f for f in (once, twice, in_a_loop, in_two_phases, of_two_models)}
MOMENTS = {"once": 14, "twice": 24, "in_a_loop": 30, "in_two_phases": 19, "of_two_models": 20}
SOME = {"once": (14,), "twice": (18,), "in_a_loop": (27,), "in_two_phases": (13,)}
SOME["of_two_models"] = (19,)


def lived(program: Callable[[Life], None], folder: Path, dies_at: int = 0, seed: int = 1) -> Life:
    keras.utils.set_random_seed(seed)
    life = Life(folder, dies_at)
    if dies_at:
        with pytest.raises(KilledError):
            program(life)
    else:
        program(life)
    return life


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        *only([("twice", SOME["twice"])], SOME.items()),
        *[
            pytest.param(name, range(1, count + 1), marks=pytest.mark.long)
            for name, count in MOMENTS.items()
        ],
    ],
)
def test_a_program_goes_on_where_it_was_killed(tmp_path: Path, name: str, moments: Any) -> None:
    program = PROGRAMS[name]
    untouched = lived(program, tmp_path / "untouched")
    for moment in moments:
        folder = tmp_path / str(moment)
        first = lived(program, folder, moment)
        second = lived(program, folder)
        again = first.steps + second.steps - untouched.steps
        assert 0 <= again <= 2, f"killed at moment {moment}: {again} steps done again"
        assert second.printed == untouched.printed, f"killed at moment {moment}"


def cut(program: Callable[[Life], None], tmp_path: Path, moments: Iterable[int]) -> None:
    """Asserts that a program shows the same if it is killed at any of some moments."""
    untouched = lived(program, tmp_path / "untouched")
    for moment in moments:
        lived(program, tmp_path / str(moment), moment)
        second = lived(program, tmp_path / str(moment))
        assert second.printed == untouched.printed, f"killed at moment {moment}"


@pytest.mark.long
@pytest.mark.parametrize("moments", [(7,), pytest.param((3, 12), marks=pytest.mark.long)])
def test_a_hook_may_compile_before_the_first_step(tmp_path: Path, moments: Iterable[int]) -> None:
    cut(with_compile_in_on_train_begin, tmp_path, moments)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*ran out of data", "ignore:`x` has ended")
@pytest.mark.parametrize(
    ("batches", "moments"),
    [
        (5, (6,)),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((5, (4, 12)), (6, (4, 7, 13)))),
    ],
)
def test_a_fit_that_ends_with_its_generator_is_finished(
    tmp_path: Path, batches: int, moments: Iterable[int]
) -> None:
    """In the midst of an epoch, and just with one."""
    cut(of_a_generator_that_ends(batches), tmp_path, moments)


@pytest.mark.long
@pytest.mark.parametrize("is_first", [pytest.param(False, marks=pytest.mark.long), True])
def test_of_two_directories_the_newest_snapshot_counts(
    tmp_path: Path, is_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(life: Life) -> None:
        rare = BackupAndRestore(life.folder / "rare")
        given = () if is_first else (rare,)
        model = made()
        after = {"after": [rare]} if is_first else {}
        life.show(life.fit(model, 3, *given, **after).history)
        life.show([w.tolist() for w in model.get_weights()])

    untouched = lived(program, tmp_path / "untouched")
    first = lived(program, tmp_path, 7)
    second = lived(program, tmp_path)
    assert first.steps + second.steps == untouched.steps + 1
    assert second.printed == untouched.printed
    said = capsys.readouterr().out
    assert f"going on from {tmp_path / 'backup'}, step 6" in said
    assert f"going on from {tmp_path / 'rare'}" not in said
    third = lived(program, tmp_path)
    assert (third.steps, third.printed) == (0, untouched.printed)


@pytest.mark.long
def test_another_fit_after_a_time_limit_takes_no_step(tmp_path: Path) -> None:
    def program(life: Life, limit: bool = False) -> None:
        model = made()
        limits = [kfit.callbacks.TimeLimit(1e-6)] if limit else []
        for epochs in (2, 3):  # the same line, with other arguments
            life.show(life.fit(model, epochs, *limits).history)
        life.show(life.fit(model, 3).history)
        life.show([w.tolist() for w in model.get_weights()])

    untouched = lived(program, tmp_path / "untouched")
    with pytest.warns(UserWarning, match="This is another `fit`, so it takes no step"):
        first = lived(partial(program, limit=True), tmp_path)
    assert first.steps == 1
    second = lived(program, tmp_path)
    assert first.steps + second.steps == untouched.steps
    assert second.printed == untouched.printed


def test_the_same_call_goes_on_after_a_time_limit(tmp_path: Path) -> None:
    def program(life: Life) -> None:
        model = made()
        for limits in ([kfit.callbacks.TimeLimit(1e-6)], []):
            life.fit(model, 2, *limits)

    assert lived(program, tmp_path).steps == 2 * STEPS


def test_a_compile_in_on_train_begin_that_was_left_out_is_named(tmp_path: Path) -> None:
    lived(with_compile_in_on_train_begin, tmp_path, 3)
    with pytest.raises(SnapshotMismatchError, match=r"optimizer: .*momentum.* is not in"):
        lived(twice, tmp_path)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`trainable` of")
def test_what_hooks_froze_and_thawed_stays_so(tmp_path: Path) -> None:
    cut(with_a_hook_that_thaws, tmp_path / "thaws", (7, 10, 12))
    cut(with_a_hook_that_freezes_before_the_first_step, tmp_path / "freezes", (3, 7, 12))


@pytest.mark.filterwarnings("ignore:`trainable` of")
@pytest.mark.parametrize("moment", [2 * STEPS + 2, 3 * STEPS + 2])
def test_a_layer_that_was_frozen_before_the_first_step_has_no_slots(
    tmp_path: Path, moment: int
) -> None:
    cut(with_a_layer_frozen_for_good, tmp_path, (moment,))


@pytest.mark.long
def test_of_a_fit_whose_end_is_not_kept_the_model_is_that_of_a_later_one(tmp_path: Path) -> None:
    def program(life: Life) -> None:
        model = made()
        for _ in range(5):
            life.show(life.fit(model, 1, keep_finished=2).history)
            life.evaluate(model)

    untouched = lived(program, tmp_path / "untouched")
    first = lived(program, tmp_path, 27)
    with pytest.warns(UserWarning, match="does not hold its final snapshot"):
        second = lived(program, tmp_path)
    assert first.steps + second.steps <= untouched.steps + 2
    # What is evaluated after it is another model; its History is its own.
    assert second.printed[::2] == untouched.printed[::2]
    assert second.printed[4:] == untouched.printed[4:]


@pytest.mark.long
def test_a_fit_that_was_finished_before_the_interrupted_one_needs_no_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(life: Any) -> None:
        model = made()
        life.fit(model, 1)
        life.fit(model, 2)

    lived(program, tmp_path, STEPS + 2)
    lived(program, tmp_path)
    said = capsys.readouterr().out
    assert (
        f"(step {STEPS}), and the model gets its weights. The second `fit` was interrupted, and "
        "goes on when it is called. To train anew from the start, delete the directory\n"
    ) in said
    assert "raise `epochs`" not in said
    # All are finished now, and the last one may go on.
    lived(program, tmp_path)
    said = capsys.readouterr().out
    assert "gets its weights. Later ones were begun, too. To train anew from the start" in said
    assert said.count("raise `epochs`") == 1


def test_the_end_of_a_fit_is_said_and_more_epochs_go_on_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = lived(lambda life: life.show(life.fit(made(), 4).history), tmp_path / "longer")
    lived(lambda life: life.show(life.fit(made(), 2).history), tmp_path)
    again = lived(lambda life: life.show(life.fit(made(), 2).history), tmp_path)
    assert again.steps == 0
    said = capsys.readouterr().out
    assert "kfit: nothing to do: the first `fit` of this program was finished in " in said
    going_on = "To go on, raise `epochs`; to train anew, delete the directory\n"
    assert f" (step 8), and the model gets its weights. {going_on}" in said
    more = lived(lambda life: life.show(life.fit(made(), 4).history), tmp_path)
    assert more.steps == 2 * STEPS
    assert more.printed == longer.printed
    assert "finished" not in capsys.readouterr().out


def test_a_fit_whose_epochs_are_done_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often: dict[str, Any] = {"save_freq": "epoch"}
    lived(lambda life: life.fit(made(), 4, **often), tmp_path, dies_at=2 * STEPS + 2)
    fewer = lived(lambda life: life.fit(made(), 2, **often), tmp_path)
    assert fewer.steps == 0
    said = capsys.readouterr().out
    ended = (
        " holds the end of epoch 2 (step 8), and `epochs` is 2, and the model gets its weights. To"
    )
    assert ended in said


@pytest.mark.long
def test_the_ends_of_the_last_fits_are_kept(tmp_path: Path) -> None:
    def program(life: Life) -> None:
        model = made()
        for _ in range(5):
            life.fit(model, 1, keep_finished=2)

    lived(program, tmp_path)
    store = Store(str(tmp_path / "backup"))
    kept = [fits.Label.of(store.about(name) or {}) for name in store.names()]
    assert [label.fit for label in kept if label.finished] == [2, 3, 4]
    assert len(kept) == 4  # two of the last `fit`, and the ends of two before it


def test_training_anew_in_a_living_process_begins_anew(tmp_path: Path) -> None:
    def program(life: Life) -> None:
        model = made()
        life.fit(model, 2)
        compiled(model, 0.1)
        life.fit(model, 2)

    assert lived(program, tmp_path).steps == 4 * STEPS


@pytest.mark.long
def test_a_finished_fit_may_be_left_out_before_another_one(tmp_path: Path) -> None:
    def program(life: Life) -> None:
        model, file = made(), tmp_path / "first.keras"
        if not file.exists():
            life.fit(model, 2)
            model.save(file)
        compiled(model, 0.01)
        life.fit(model, 2)
        life.show([w.tolist() for w in model.get_weights()])

    lived(program, tmp_path, dies_at=2 * STEPS + 1 + STEPS + 1)
    again = lived(program, tmp_path)
    assert 0 < again.steps <= STEPS
    (tmp_path / "whole").mkdir()
    assert again.printed == lived(in_two, tmp_path / "whole").printed


def in_two(life: Life) -> None:
    model = made()
    life.fit(model, 2)
    compiled(model, 0.01)
    life.fit(model, 2)
    life.show([w.tolist() for w in model.get_weights()])


@pytest.mark.long
def test_validation_data_may_become_others_of_another_kind(tmp_path: Path) -> None:
    x, y = arrays()

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KilledError

    def fit(validation_data: Any, *callbacks: keras.callbacks.Callback) -> Any:
        fits.forget()
        backup = BackupAndRestore(tmp_path, allow_changes=["validation_data"])
        trainer = kfit.Trainer(made(), kfit.distribute.OneDevice(), seed=2)
        also = {"validation_data": validation_data, "callbacks": [backup, *callbacks]}
        return trainer.fit(x, y, batch_size=8, epochs=2, verbose=0, **also).history

    with pytest.raises(KilledError):
        fit((x, y), Dies())
    changed = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    assert len(fit(changed)["val_loss"]) == 2


def test_the_data_are_not_read_again_when_a_fit_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    told = of_training.of_data
    monkeypatch.setattr(of_training, "of_data", lambda *a: calls.append(a) or told(*a))
    lived(lambda life: life.fit(made(), 2), tmp_path, dies_at=3)
    assert len(calls) == 1


def test_the_snapshot_of_another_model_is_named(tmp_path: Path) -> None:
    lived(lambda life: life.fit(made(), 2), tmp_path, dies_at=5)
    with pytest.raises(SnapshotMismatchError, match=r"kernel .*is \(4, 7\) .*in the snapshot"):
        lived(lambda life: life.fit(made(width=7), 2), tmp_path)


def test_a_file_of_others_by_the_name_of_the_note_is_refused(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / ".kfit-ending").write_text("mine")
    with pytest.raises(ForeignFileError, match="must be an empty file that kfit made"):
        lived(lambda life: life.fit(made(), 1), tmp_path)
    assert (tmp_path / "backup" / ".kfit-ending").read_text() == "mine"


@pytest.mark.long
def test_two_fits_append_to_one_file(tmp_path: Path) -> None:
    """The program is killed in the second one, which has no snapshot yet."""

    def program(life: Life) -> None:
        log = keras.callbacks.CSVLogger(str(life.folder / "log.csv"), append=True)
        model = made()
        for epochs in (2, 3):
            life.fit(model, epochs, after=[log], save_freq=1000)
        life.show((life.folder / "log.csv").read_text())

    cut(program, tmp_path, (9, 11, 14, 19))
