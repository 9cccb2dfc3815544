"""Keras' own tests of training and of callbacks, with kfit in the place of Keras' training.

Keras' wheels hold them. Where they are not installed, `KFIT_PEERS_KERAS` names a copy of Keras'
sources of the installed version (`git clone --branch v3.15.1 https://github.com/keras-team/keras`,
or the unpacked sdist of PyPI). The sources are no part of this project.
"""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.peers.suite import check, run_suite

SUITES = {
    "trainer": "trainers/trainer_test.py",
    "epoch_iterator": "trainers/epoch_iterator_test.py",
    "backup": "callbacks/callback_test.py",
    "csv_logger": "callbacks/csv_logger_test.py",
    "early_stopping": "callbacks/early_stopping_test.py",
    "lambda": "callbacks/lambda_callback_test.py",
    "learning_rate_scheduler": "callbacks/learning_rate_scheduler_test.py",
    "model_checkpoint": "callbacks/model_checkpoint_test.py",
    "monitor": "callbacks/monitor_callback_test.py",
    "reduce_lr_on_plateau": "callbacks/reduce_lr_on_plateau_test.py",
    "swap_ema_weights": "callbacks/swap_ema_weights_test.py",
    "tensorboard": "callbacks/tensorboard_test.py",
    "terminate_on_nan": "callbacks/terminate_on_nan_test.py",
}


def sources() -> Path | None:
    """The folder `keras/src` with tests in it, or None."""
    copy = os.environ.get("KFIT_PEERS_KERAS")
    spec = importlib.util.find_spec("keras")
    installed = Path(spec.origin).parent / "src" if spec and spec.origin else None
    for folder in (Path(copy) / "keras" / "src" if copy else None, installed):
        if folder is not None and (folder / SUITES["trainer"]).exists():
            return folder
    return None


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_keras_own_tests_pass_through_kfit(replicas: int, tmp_path: Path) -> None:
    folder = sources()
    if folder is None:
        pytest.skip(f"Keras' tests are not installed; see {__file__} for how to get them")
    ran = run_suite(
        "as_kfit",
        [folder / suite for suite in SUITES.values()],
        tmp_path,
        environ={"KFIT_PEERS_REPLICAS": str(replicas)},
    )
    check(ran, least=100)
