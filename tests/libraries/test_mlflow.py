"""MLflow's autolog logs a training by kfit as one by Keras, and on workers once."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow", reason='pip install -e ".[libraries]"')

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "programs" / "mlflow_autolog.py"


@pytest.fixture(autouse=True)
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept in files, which needs no database."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "false")


def runs(uri: str) -> list[Any]:
    from mlflow import MlflowClient

    return MlflowClient(uri).search_runs(["0"])  # type: ignore[no-any-return]


def losses(uri: str, run: Any) -> list[float]:
    from mlflow import MlflowClient

    return [each.value for each in MlflowClient(uri).get_metric_history(run.info.run_id, "loss")]


def test_a_run_is_that_of_keras(
    as_in_keras: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    def program(folder: Path) -> Any:
        uri = (folder / "runs").as_uri()
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), uri])
        try:
            runpy.run_path(str(PROGRAM))
            mlflow.flush_async_logging()
            (run,) = runs(uri)
            return {"losses": losses(uri, run), "epochs": int(run.data.params["epochs"])}
        finally:
            mlflow.keras.autolog(disable=True)

    found = as_in_keras(program)
    assert len(found["losses"]) == found["epochs"] == 3


@pytest.mark.parametrize(("who", "expected"), [("all", [0, 3]), ("chief", [3])])
def test_on_workers_the_callback_of_one_logs(
    run_workers: Callable[..., list[str]], tmp_path: Path, who: str, expected: list[int]
) -> None:
    """Autolog begins a run on each task that calls it; only the chief's has the metrics."""
    uri = (tmp_path / "runs").as_uri()
    run_workers(PROGRAM.name, words=[uri, who])
    assert sorted(len(losses(uri, run)) for run in runs(uri)) == expected
