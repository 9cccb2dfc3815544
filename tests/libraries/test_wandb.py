"""The callbacks of Weights & Biases log a training on workers once, and on the chief."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason='pip install -e ".[libraries]"')


@pytest.mark.long
def test_on_workers_the_chief_logs_metrics_and_models(
    run_workers: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    environ = {"WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "false"}
    lines = run_workers("wandb_offline.py", environ)
    told = [json.loads(line.partition("numbers ")[2]) for line in lines if "numbers " in line]
    chief, other = sorted(told, key=lambda each: -each["logged"])
    assert chief["losses"] == other["losses"]
    assert chief["logged"] == 2
    assert chief["files"] == ["1.keras", "2.keras"]
    assert chief["summary"] == pytest.approx(chief["losses"][-1])
    # WandbModelCheckpoint reads the file that it has saved, which the other worker does not save.
    assert other["logged"] == 0
    assert other["summary"] is None
