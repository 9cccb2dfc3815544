"""TimeLimit interrupts training, which goes on later."""

import itertools
import re
from pathlib import Path
from typing import Any

import keras
import pytest

import kfit
from kfit.callbacks import BackupAndRestore, TimeLimit
from kfit.callbacks import time_limit as module
from kfit.checkpoint import fits
from kfit.checkpoint.store import Store


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one_replica"), pytest.param(2, id="two_replicas")],
)
def machine(request: Any, training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(request.param))


@pytest.mark.long
def test_a_time_limit_interrupts_and_training_goes_on_later(
    machine: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    ticks = itertools.count(0, 1)
    monkeypatch.setattr(module, "time", Clock(ticks))
    backup = BackupAndRestore(tmp_path / "backup")
    ended: list[int] = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ended.append(epoch),
        on_train_batch_end=lambda batch, logs: None,
    )
    fits.forget()
    machine.run([TimeLimit(10.0), backup, watch])
    assert machine.trainer.interrupted
    assert ended == [0]
    assert Store(str(tmp_path / "backup")).names()[-1].step > 7
    fits.forget()
    machine.run([backup, watch])
    assert not machine.trainer.interrupted
    assert ended == [0, 1, 2, 3]
    assert machine.digest == machine.untouched


def test_it_says_after_which_step_and_what_is_saved(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = [TimeLimit(1e-9), BackupAndRestore(tmp_path / "backup")]
    trainer = kfit.Trainer(tiny.model(), "one_device")
    trainer.fit(*tiny.data(20), epochs=9, verbose=0, callbacks=callbacks)
    assert "interrupted" not in capsys.readouterr().err
    fits.forget()
    trainer.fit(*tiny.data(20), epochs=9, verbose=2, callbacks=callbacks)
    said = r"kfit: interrupted after step \d+; saved in .*backup; the same command resumes there\n"
    assert re.search(said, capsys.readouterr().err)


class Clock:
    """A clock that a test winds."""

    def __init__(self, ticks: Any) -> None:
        self.monotonic = lambda: float(next(ticks))


@pytest.mark.parametrize("limit", [0, -1.0, "1h"])
def test_a_limit_that_is_none(limit: Any) -> None:
    with pytest.raises(ValueError, match="`limit` must be"):
        TimeLimit(limit)
