"""tf_keras' tests of distributed training, with Keras 3 and kfit in the place of tf_keras.

Its packages do not hold them. `KFIT_PEERS_TF_KERAS` names a copy of its sources
(`git clone --depth 1 --branch v2.21.0 https://github.com/keras-team/tf-keras`), which are read
where they are and are no part of this project. `tf_keras_stand_in.py` says what they import.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.peers.suite import check, run_suite

SUITES = {
    "dnn": ("keras_dnn_correctness_test",),
    "embedding": ("keras_embedding_model_correctness_test",),
    "image": ("keras_image_model_correctness_test",),
    "rnn": ("keras_rnn_model_correctness_test", "keras_stateful_lstm_model_correctness_test"),
    "strategy": ("distribute_strategy_test",),
    "others": (
        "keras_models_test",
        "keras_premade_models_test",
        "model_checkpoint_test",
        "worker_training_state_test",
    ),
}
"""The tests that train with `fit`; the rest of the folder is on what tf_keras is made of."""


def sources() -> Path:
    """The folder `tf_keras` of the sources; skips the test where there is none."""
    folder = Path(os.environ.get("KFIT_PEERS_TF_KERAS", "")) / "tf_keras"
    if not (folder / "distribute" / "distribute_strategy_test.py").exists():
        pytest.skip(f"tf_keras' tests are not here; see {__file__} for how to get them")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
def test_tf_keras_own_tests_pass_on_two_replicas(suite: str, tmp_path: Path) -> None:
    folder = sources()
    files = [folder / "distribute" / f"{name}.py" for name in SUITES[suite]]
    environ = {"KFIT_PEERS_SOURCES": str(folder)}
    check(run_suite("as_tf_keras", files, tmp_path, environ=environ), least=3)


@pytest.mark.long
def test_tf_keras_own_tests_pass_on_two_workers(tmp_path: Path) -> None:
    folder = sources()
    files = [folder / "distribute" / f"{name}.py" for name in SUITES["dnn"]]
    environ = {"KFIT_PEERS_SOURCES": str(folder), "KFIT_PEERS_WORKERS": "2"}
    environ["TEST_TMPDIR"] = str(tmp_path)
    workers = (sys.executable, "-m", "kfit", "run", "--workers", "2")
    check(run_suite("as_tf_keras", files, tmp_path, environ=environ, launcher=workers), least=3)
