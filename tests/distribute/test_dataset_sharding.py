"""Files of unequal length shared by real workers, under each of TensorFlow's policies."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kfit.supervisor.local import free_ports

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 300
Facts = dict[str, dict[str, Any]]


def run(
    program: str, argument: str, tasks: dict[str, int] | None = None
) -> tuple[list[Facts], list[str]]:
    """Runs a program as every task of a cluster, or alone; returns what each task said."""
    names = [(kind, i) for kind, count in (tasks or {}).items() for i in range(count)] or [None]
    ports = iter(free_ports(len(names)))
    spec = {
        kind: [f"localhost:{next(ports)}" for _ in range(count)]
        for kind, count in (tasks or {}).items()
    }
    running = []
    for name in names:
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
        env.pop("TF_CONFIG", None)
        if name is not None:
            task = {"type": name[0], "index": name[1]}
            env["TF_CONFIG"] = json.dumps({"cluster": spec, "task": task})
        running.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAMS / program), argument],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    outputs = []
    try:
        for process in running:
            output, errors = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, errors[-3000:]
            outputs.append(output)
    finally:
        for process in running:
            if process.poll() is None:
                # TensorFlow swallows SIGTERM in a worker.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = [
        {facts["case"]: facts for facts in map(json.loads, filter(is_fact, output.splitlines()))}
        for output in outputs
    ]
    return said, outputs


def is_fact(line: str) -> bool:
    return line.startswith("{")


def test_auto_shard_policies_keep_their_meaning(tmp_path: Path) -> None:
    import tensorflow as tf

    numbers = iter(range(1, 100))
    for file, count in enumerate((9, 2, 3, 1)):
        with tf.io.TFRecordWriter(str(tmp_path / f"{file}.tfrecord")) as writer:
            for _ in range(count):
                writer.write(str(next(numbers)))
    said, _ = run("policies.py", str(tmp_path), {"worker": 2})
    assert said[0] == said[1]
    once = {"total": 120.0, "count": 15.0}
    assert said[0]["DATA"]["logs"] == once
    assert said[0]["FILE"]["logs"] == once
    assert said[0]["AUTO"]["logs"] == once
    # Every worker sees all of it.
    assert said[0]["OFF"]["logs"] == {"total": 240.0, "count": 30.0}
