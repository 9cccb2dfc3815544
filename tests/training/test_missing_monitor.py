"""A `monitor` that does not exist is told with the names that do."""

from pathlib import Path
from typing import Any

import keras
import pytest

import kfit
from kfit.training.missing_monitor import name_missing_monitor
from tests.sweeps import only

K = keras.callbacks


@pytest.mark.parametrize("name", only(["stops"], ["stops", "saves", "plateau"]))
def test_a_misspelled_monitor_is_told_with_the_right_one(
    tiny: Any, tmp_path: Path, name: str
) -> None:
    callback = {
        "stops": lambda: K.EarlyStopping(monitor="val_los"),
        "saves": lambda: K.ModelCheckpoint(
            tmp_path / "best.keras", monitor="val_los", save_best_only=True
        ),
        "plateau": lambda: K.ReduceLROnPlateau(monitor="val_los"),
    }[name]()
    x, y = tiny.data(20)
    told = r"monitor=val_los, .* no 'val_los': the logs have \['ac.*\]\. Did you mean 'val_loss'\?$"
    with pytest.raises(ValueError, match=told):
        kfit.Trainer(tiny.model(), "one_device").fit(
            x, y, 10, verbose=0, validation_data=(x, y), callbacks=[callback]
        )


def test_other_errors_stay_as_they_are() -> None:
    unknown = "X callback received monitor=odd, but Keras isn't able to tell."
    for message, logs in ((unknown, {"odd": 1.0}), (unknown, None), ("another", {"loss": 1.0})):
        error = ValueError(message)
        name_missing_monitor(error, logs)
        assert str(error) == message
    error = ValueError(unknown)
    name_missing_monitor(error, {"loss": 1.0})
    assert str(error) == f"{unknown} There is no 'odd': the logs have ['loss']."
