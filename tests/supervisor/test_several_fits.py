"""A program of several `fit`s that is really killed in the later ones, under `kfit run`.

Each `fit` begins at step 0 again. So a task that is killed at the same step of each one makes
progress.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, pathlib, signal, sys
import keras, numpy as np, kfit

folder, strategy, skips = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "skips"
start = int(os.environ["KFIT_GENERATION"])
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
trainer = kfit.Trainer(model, strategy=strategy, seed=0)

class Dies(keras.callbacks.Callback):
    step = 0
    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

backup = kfit.callbacks.BackupAndRestore(folder / "backup")
x, y = np.random.default_rng(0).random((200, 4), "float32"), np.ones((200, 2), "float32")
for number, steps in enumerate([20, 10, 10]):
    done = folder / f"{number}.weights.h5"
    if skips and done.exists():
        model.load_weights(done)
        continue
    # It dies twice in the second `fit`, and twice in the third.
    dies = trainer.is_chief and {0: 1, 1: 1, 2: 2, 3: 2}.get(start) == number
    trainer.fit(x, y, 10, 1, 0, [backup, *([Dies()] if dies else [])], steps_per_epoch=steps)
    if trainer.is_chief:
        model.save_weights(done)
if trainer.is_chief:
    (folder / "ended.json").write_text(json.dumps([start, os.environ["KFIT_REACHED"]]))
"""


def run(folder: Path, workers: int, way: str, restarts: int) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    strategy = "one_device" if workers == 1 else "multi_worker"
    command = [sys.executable, "-m", "kfit", "run", "--workers", str(workers)]
    command += ["--max-restarts", str(restarts), "train.py", str(folder), strategy, way]
    environ = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PYTHONSAFEPATH")}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(("workers", "way"), [(1, "calls"), (1, "skips"), (2, "skips")])
def test_a_program_that_is_killed_twice_in_each_later_fit_goes_on(
    tmp_path: Path, workers: int, way: str
) -> None:
    ended = run(tmp_path, workers, way, 2)
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert json.loads((tmp_path / "ended.json").read_text()) == [4, "1:3,1:3,2:3,2:3"]
    deaths = re.findall(r"killed by SIGKILL( after step 3 of .*?`fit`)", ended.stderr)
    places = [f" after step 3 of the {name} `fit`" for name in ("second", "third")]
    assert deaths == [places[0]] * 2 + [places[1]] * 2
    restarts = re.findall(r"\((restart \d of at most 2) in a row\)", ended.stderr)
    assert restarts == ["restart 1 of at most 2", "restart 2 of at most 2"] * 2
