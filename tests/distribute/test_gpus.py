"""What needs a GPU: skipped where none is visible. Run them with `pytest -m gpu`.

Each has a process of its own, since what is done to devices is done once in a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
PROGRAM = Path(__file__).parent / "programs" / "gpus.py"


@pytest.fixture(scope="module")
def num_gpus() -> int:
    """GPUs that TensorFlow sees."""
    import tensorflow as tf

    found = len(tf.config.list_physical_devices("GPU"))
    if not found:
        pytest.skip("no GPU is visible")
    return found


def ran(case: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), case],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.parametrize(
    ("case", "least"),
    [
        ("one_device", 1),
        ("mirrored_one", 1),
        ("mirrored_all", 2),
        ("nccl", 2),
        ("hierarchical", 2),
        ("uneven", 2),
    ],
)
def test_training_equals_the_cpu(num_gpus: int, case: str, least: int) -> None:
    if num_gpus < least:
        pytest.skip(f"{num_gpus} GPU is visible, and {least} are needed")
    results = ran(case)
    assert results["distance"] < 1e-3  # convolutions and matrix products in another order
    assert results["loss"] == pytest.approx(results["expected_loss"], rel=1e-3)


def test_mixed_float16_learns(num_gpus: int) -> None:
    results = ran("mixed_float16")
    assert results["finite"]
    assert results["loss"] < 0.8 * results["first_loss"]


def test_memory_grows(num_gpus: int) -> None:
    results = ran("memory_growth")
    assert results["growth"]
    assert results["megabytes"] < 1024


def test_nccl_between_two_workers(num_gpus: int) -> None:
    if num_gpus < 2:
        pytest.skip("each of two workers needs a GPU")
    from kfit.supervisor.local import free_ports

    ports = free_ports(2)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    workers = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), "nccl_worker"],
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": str(index),
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for output in outputs:
        assert json.loads(output.splitlines()[-1])["distance"] < 1e-3


def test_snapshots_are_in_the_memory_of_the_host(num_gpus: int) -> None:
    assert all("CPU" in device for device in ran("snapshot")["devices"])
