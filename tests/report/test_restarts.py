"""The report of a training that was really killed, and started again by `kfit run`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, pathlib, signal, sys
import keras, numpy as np, kfit

folder, strategy = pathlib.Path(sys.argv[1]), sys.argv[2]
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
trainer = kfit.Trainer(model, strategy=strategy, seed=0)

class Dies(keras.callbacks.Callback):
    step = 0
    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step == 12 and os.environ["KFIT_GENERATION"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

backup = kfit.callbacks.BackupAndRestore(folder / "backup", save_freq=5)
x, y = np.ones((100, 4), "float32"), np.ones((100, 2), "float32")
trainer.fit(x, y, 10, 2, 0, [backup, Dies()])
if trainer.is_chief:
    (folder / "report.json").write_text(trainer.report().to_json())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_kill_is_a_restart_and_its_lost_steps_are_counted(tmp_path: Path, workers: int) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    strategy = "one_device" if workers == 1 else "multi_worker"
    command = [sys.executable, "-m", "kfit", "run", "--workers", str(workers)]
    command += ["--max-restarts", "2", "train.py", str(tmp_path), strategy]
    environ = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PYTHONSAFEPATH")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["restarts"], report["restores"]) == (1, 1)
    # It was killed in the hook after step 12. The snapshot of step 10 may still be on its way to
    # the disk then, so that training resumes from step 5. The last step that was reported is 11.
    again = report["steps_again"]
    assert again in (1, 6)
    assert report["steps"] == 20 - (11 - again)
    assert (report["total_steps"], report["total_examples"]) == (20, 200)
    assert report["expected_examples"] == 200
    assert report["num_tasks"] == workers
    assert report["total_seconds"] > report["seconds"] + 1
    assert 0 < report["goodput"] < 0.5
    assert (report["exchange_in_steps"] is not None) == (workers > 1)
