"""What a report advises, by its figures alone."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

import kfit
from kfit.report.account import Account
from kfit.report.report import Report
from kfit.training.fit_state import FitState


def report(**figures: Any) -> Report:
    """The report of ten seconds in which half of the time was saving."""
    empty = Account().report()
    phases = {**empty.phases, "steps": 5.0, "saving": 5.0}
    return dataclasses.replace(
        empty, **{"phases": phases, "seconds": 10.0, "snapshot_wait": 5.0, **figures}
    )


@pytest.mark.parametrize(
    ("figures", "is_advised"),
    [
        ({"snapshots": 3}, True),
        ({"snapshots": 0}, True),  # another callback saves
        ({"snapshots": 2}, False),
        ({"snapshots": 30, "saves_as_allowed": True}, False),
    ],
)
def test_saving_less_often_is_advised_where_it_helps(
    figures: dict[str, Any], is_advised: bool
) -> None:
    told = report(**figures).advice
    assert any("save less often" in each for each in told) == is_advised


def test_the_state_that_is_kept_before_a_validation_counts_as_a_part_of_it(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = FitState._taken

    def slow(self: Any) -> Any:
        time.sleep(0.1)
        return taken(self)

    monkeypatch.setattr(FitState, "_taken", slow)
    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    options = {"validation_data": tiny.data(20), "verbose": 0}
    backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq="auto")
    trainer.fit(*tiny.data(20), 10, epochs=4, **options, callbacks=[backup])
    phases = trainer.report().phases
    assert phases["validation"] >= 0.4
    assert phases["saving"] < phases["validation"]


@pytest.mark.parametrize("save_freq", ["auto", 2])
def test_a_report_knows_whether_saves_depend_on_the_time(
    tiny: Any, tmp_path: Path, save_freq: Any
) -> None:
    trainer = kfit.Trainer(tiny.model(), strategy="one_device")
    backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq=save_freq)
    trainer.fit(*tiny.data(20), 10, verbose=0, callbacks=[backup])
    assert trainer.report().saves_as_allowed == (save_freq == "auto")
