"""Where a `fit` is: between two epochs or in one, over or not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import SnapshotMismatchError
from kfit.training import fit_state
from kfit.training.fit_state import FitState
from kfit.training.progress import Progress


def state(
    *,
    epoch: int,
    step: int = 0,
    stops: bool = False,
    resuming: Any = None,
    has_ended: bool = False,
) -> FitState:
    call: Any = SimpleNamespace(
        graphs=SimpleNamespace(compiled=None),
        model=keras.Sequential(),
        progress=Progress(epoch, step, step),
    )
    nothing: Any = None
    batches: Any = SimpleNamespace(has_ended=has_ended)
    call.model.stop_training = stops
    made = FitState(call, batches, None, lambda epoch: False, nothing, epochs=2)
    made.resuming = resuming
    return made


@pytest.mark.parametrize(("epoch", "step", "expected"), [(0, 0, True), (0, 3, False), (2, 3, True)])
def test_it_is_between_epochs_where_no_step_is_taken_or_none_is_left(
    epoch: int, step: int, expected: bool
) -> None:
    assert state(epoch=epoch, step=step).is_between_epochs == expected


def test_a_stop_counts_when_the_snapshot_has_been_restored() -> None:
    snapshot: Any = object()
    assert not state(epoch=1).ends_here
    assert state(epoch=1, step=3, stops=True).ends_here
    assert not state(epoch=1, stops=True).ends_here  # as in Keras, before the first step
    assert not state(epoch=1, step=3, stops=True, resuming=snapshot).ends_here
    assert state(epoch=2, resuming=snapshot).ends_here
    assert state(epoch=1, stops=True).is_over
    assert state(epoch=2).is_over
    assert state(epoch=1, has_ended=True).is_over
    assert not state(epoch=1).is_over


def test_a_state_with_variables_and_tuples_is_that_of_its_moment() -> None:
    array, variables = np.ones(2), [tf.Variable([1.0]), keras.Variable([1.0])]
    copied = fit_state._copied({"array": (array,), "variables": variables})
    array += 1
    for variable in variables:
        variable.assign([2.0])
    assert copied["array"][0].tolist() == [1.0, 1.0]
    assert [each.tolist() for each in copied["variables"]] == [[1.0], [1.0]]


class Momentum(keras.callbacks.Callback):
    """Gives the optimizer a momentum before the first step, and may interrupt training."""

    def __init__(self, hook: str, cut_in_epoch: int | None = None) -> None:
        super().__init__()
        self.hook, self.cut_in_epoch = hook, cut_in_epoch

    def on_train_begin(self, logs: Any = None) -> None:
        if self.hook == "on_train_begin":
            self.model.optimizer.momentum = 0.9

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.hook == "on_epoch_begin" and epoch == 0:
            self.model.optimizer.momentum = 0.9
        if epoch == self.cut_in_epoch:
            raise InterruptedError


def trained(*callbacks: Any, epochs: int = 3, initial_epoch: int = 0) -> list[Any]:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = kfit.Trainer(model, "one_device")
    between = {"epochs": epochs, "initial_epoch": initial_epoch}
    trainer.fit(x, x.sum(1), batch_size=8, verbose=0, **between, callbacks=list(callbacks))
    return list(model.get_weights())


@pytest.mark.long
def test_slots_that_a_hook_has_added_are_restored(tmp_path: Path) -> None:
    expected = trained(Momentum("on_train_begin"))
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    with pytest.raises(InterruptedError):
        trained(backup, Momentum("on_train_begin", cut_in_epoch=2))
    for weight, other in zip(trained(backup, Momentum("on_train_begin")), expected, strict=True):
        np.testing.assert_array_equal(weight, other)


def test_slots_that_no_hook_adds_again_are_named(tmp_path: Path) -> None:
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    with pytest.raises(InterruptedError):
        trained(backup, Momentum("on_epoch_begin", cut_in_epoch=2))
    with pytest.raises(SnapshotMismatchError, match=r"kernel_momentum .* is only in the snapshot"):
        trained(backup, Momentum("on_epoch_begin"))


@pytest.mark.parametrize(("validates", "taken"), [(False, 1), (True, 4)])
def test_the_state_is_kept_before_a_validation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validates: bool, taken: int
) -> None:
    """Beside the last snapshot, which is saved at the end."""
    count = []
    take = FitState._taken
    monkeypatch.setattr(FitState, "_taken", lambda state: count.append(0) or take(state))
    x = np.ones((8, 3), "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options: dict[str, Any] = {"validation_data": (x, x[:, 0])} if validates else {}
    backup = BackupAndRestore(tmp_path, save_freq=1000)
    kfit.fit(
        model, x, x[:, 0], epochs=3, verbose=0, strategy="one_device", callbacks=[backup], **options
    )
    assert len(count) == taken


def test_a_training_goes_on_from_before_its_first_step(tmp_path: Path) -> None:
    """Its snapshot has no slots, which the optimizer has only in the first step."""
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    trained(backup, Momentum("on_train_begin"), epochs=1, initial_epoch=1)
    expected = trained(Momentum("on_train_begin"), epochs=2, initial_epoch=1)
    went_on = trained(backup, Momentum("on_train_begin"), epochs=2, initial_epoch=1)
    for weight, other in zip(went_on, expected, strict=True):
        np.testing.assert_array_equal(weight, other)
