"""TensorFlow's multi-worker tutorial runs on two workers without a line changed.

It was published for Keras 2. Keras 3 itself trains on no more than one worker.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).parent / "programs" / "multi_worker_with_keras"
DEADLINE = 300.0
ON_ONE_DEVICE = """
import json

import mnist_setup
import tensorflow as tf

of_all = mnist_setup.mnist_dataset(2 * 64)
of_one = mnist_setup.mnist_dataset(64)
model = mnist_setup.build_and_compile_cnn_model()
first = model.fit(of_all, epochs=3, steps_per_epoch=10, verbose=0)
model.save("model.keras")
then = mnist_setup.build_and_compile_cnn_model()
second = then.fit(of_all, epochs=3, steps_per_epoch=10, verbose=0)
loaded = tf.keras.models.load_model("model.keras")
further = loaded.fit(of_one, epochs=2, steps_per_epoch=5, verbose=0)
restored = model.fit(of_all, epochs=2, steps_per_epoch=5, verbose=0)
losses = {"first": first, "second": second, "loaded": further, "restored": restored}
print("numbers", json.dumps({name: each.history["loss"] for name, each in losses.items()}))
"""


def run(folder: Path, *words: str) -> list[Any]:
    """Runs a program in the folder, and returns what each task came to."""
    left_out = ("PYTHONSAFEPATH", "TF_CONFIG")
    environ = {name: text for name, text in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    lines = done.stdout.splitlines()
    return [json.loads(line.partition("numbers ")[2]) for line in lines if "numbers " in line]


@pytest.mark.long
def test_it_trains_saves_and_resumes_as_on_one_device(tmp_path: Path) -> None:
    for file in PROGRAM.glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "one.py").write_text(ON_ONE_DEVICE)
    (expected,) = run(tmp_path, "one.py")
    found = run(tmp_path, "-m", "kfit", "run", "--workers", "2", "--keras-fit", "main.py")

    one, other = sorted(found, key=lambda each: each["task"])
    assert (one["task"], other["task"]) == (0, 1)
    assert one["losses"] == other["losses"]
    own_parts = one["losses"].pop("own parts")
    for name, losses in one["losses"].items():
        assert losses == pytest.approx(expected[name], rel=1e-4), name
    assert one["losses"]["first"][0] > one["losses"]["first"][-1]
    assert np.isfinite(own_parts).all()
    # The other worker's folder is gone; the chief's files are where all workers look for them.
    assert {path.name for path in (tmp_path / "saved").iterdir()} >= {"keras-model.keras", "ckpt"}
    assert not list(tmp_path.glob("saved/workertemp_*/*"))


def test_the_program_knows_nothing_of_kfit() -> None:
    code = (PROGRAM / "main.py").read_text(encoding="utf-8").split('"""', 2)[2]
    assert "kfit" not in code
    for call in ["MultiWorkerMirroredStrategy()", "strategy.scope()", "CheckpointManager("]:
        assert call in code
