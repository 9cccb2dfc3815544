import json
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit


def export(exporter: Any, folder: Path, tiny: Any, *losses: float) -> list[int]:
    """The steps at which the model is exported; its weights tell which one the file holds."""
    model = tiny.model()
    model.build((None, 4))
    exported = []
    for step, loss in enumerate(losses, 1):
        for variable in model.trainable_variables:
            variable.assign(np.full(variable.shape, step))
        before = exporter.best_step
        exporter.export(model, str(folder), {"step": step, "metrics": {"loss": loss}})
        if exporter.best_step != before:
            exported.append(step)
    loaded = keras.saving.load_model(folder / f"{exporter.name}.keras")
    assert loaded.get_weights()[0][0, 0] == exported[-1] == exporter.best_step
    assert losses[exported[-1] - 1] == exporter.best
    return exported


def test_the_best_is_kept(tmp_path: Path, tiny: Any) -> None:
    assert export(kfit.BestExporter(), tmp_path, tiny, 3.0, 2.0, 2.5, 1.0, 1.0) == [1, 2, 4]


def test_the_other_direction_and_min_delta(tmp_path: Path, tiny: Any) -> None:
    most = kfit.BestExporter("most", mode="max", min_delta=0.5)
    assert export(most, tmp_path, tiny, 1.0, 1.4, 1.6, 1.0, 2.2) == [1, 3, 5]


@pytest.mark.long
def test_what_is_no_number_is_not_the_best(tmp_path: Path, tiny: Any) -> None:
    with pytest.warns(UserWarning, match="loss is nan; the model is not exported"):
        assert export(kfit.BestExporter(), tmp_path, tiny, 3.0, float("nan"), 2.0) == [1, 3]


@pytest.mark.long
def test_it_remembers(tmp_path: Path, tiny: Any) -> None:
    first = kfit.BestExporter()
    export(first, tmp_path, tiny, 3.0, 2.0)
    second = kfit.BestExporter()
    second.load_state_dict(first.state_dict())
    assert (second.best, second.best_step) == (2.0, 2)
    assert export(second, tmp_path, tiny, 2.5, 2.1, 1.0) == [3]


@pytest.mark.parametrize("name", ["m\u00a0ae", "a\tb"])
def test_a_metric_may_have_any_name(name: str) -> None:
    first, second = (kfit.BestExporter(monitor=name, mode="min") for _ in range(2))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()


def test_another_monitor_or_mode_begins_anew(tmp_path: Path, tiny: Any) -> None:
    first = kfit.BestExporter(monitor="loss")
    export(first, tmp_path, tiny, 3.0, 2.0)
    state = first.state_dict()
    for other, argument in (
        (kfit.BestExporter(monitor="accuracy", mode="max"), "monitor='accuracy'"),
        (kfit.BestExporter(monitor="loss", mode="max"), "mode='max'"),
    ):
        with pytest.warns(UserWarning, match=f"has {argument}, and had .*seeks the best anew"):
            other.load_state_dict(state)
        assert (other.best, other.best_step) == (None, None)
    # What "auto" is, may be known only when the model is.
    later = kfit.BestExporter(monitor="loss")
    later.load_state_dict({**state, "mode": "max"})
    assert later.best == 2.0
    with pytest.warns(UserWarning, match="has mode='min', and had 'max'"):
        later.check(tiny.model(), ["loss"])
    assert later.best is None
    later.load_state_dict({"best": 2.0, "step": 2})  # of an earlier version
    assert later.best == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, "`name` must be a file's name"),
        ({"mode": "least"}, "`mode` must be"),
        ({"min_delta": -1.0}, "`min_delta` must be at least 0"),
    ],
)
def test_refuses(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kfit.BestExporter(**options)


def test_an_unknown_metric_is_named(tmp_path: Path, tiny: Any) -> None:
    exporter = kfit.BestExporter(monitor="val_loss")
    with pytest.raises(ValueError, match=re.escape("['loss'], which have no prefix 'val_'")):
        exporter.export(tiny.model(), str(tmp_path), {"step": 1, "metrics": {"loss": 1.0}})
