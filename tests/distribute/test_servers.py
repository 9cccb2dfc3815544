"""Asynchronous training in real processes: servers that die, and servers that stand."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfit.launching.local import free_ports

PROGRAM = Path(__file__).parent / "programs" / "servers.py"
SECONDS = 300
ENVIRON = {
    **{k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "KFIT_CLUSTER")},
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
}


def on_this_host(folder: Path, *options: str, restarts: int = 1, code: int = 0) -> tuple[Any, str]:
    """What the program tells under `kfit run --workers 2 --ps 1`, and all output."""
    command = [sys.executable, "-m", "kfit", "run", "--workers", "2", "--ps", "1"]
    command += ["--max-restarts", str(restarts), str(PROGRAM), str(folder), *options]
    done = subprocess.run(
        command, env=ENVIRON, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output[-5000:]
    return told(done.stdout), output


def told(output: str) -> Any:
    found = re.findall(r"RESULT (\{.*\})", output)
    return json.loads(found[-1]) if found else None


def test_a_killed_worker_is_survived(tmp_path: Path) -> None:
    result, output = on_this_host(tmp_path, "--kill", "worker:1")
    assert result["strategy"] == "parameter_server, 2 workers and 1 ps"
    assert result["steps"] == result["expected"]
    assert result["epochs"] == 10  # in one go: nothing was restarted but the worker
    assert result["accuracy"] > 0.95
    assert result["plain"] == pytest.approx(result["accuracy"], abs=1e-6)
    assert "generation 1" in output  # of the worker


@pytest.mark.long
@pytest.mark.parametrize("task", ["worker:0", "ps:0", "nobody"])
def test_training_ends_as_well_whoever_is_killed(tmp_path: Path, task: str) -> None:
    options = [] if task == "nobody" else ["--kill", task]
    result, _ = on_this_host(tmp_path, *options)
    assert result["steps"] == result["expected"]
    assert result["accuracy"] > 0.95


@pytest.mark.long
def test_without_restarts_a_dead_ps_ends_training_by_name(tmp_path: Path) -> None:
    _, output = on_this_host(tmp_path, "--kill", "ps:0", restarts=0, code=137)
    assert "ps 0 was killed by SIGKILL" in output.splitlines()[-1]


@contextlib.contextmanager
def standing(cluster: dict[str, list[str]]) -> Iterator[None]:
    """Servers of that cluster, started as a person does."""
    servers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "kfit", "server", "--task", f"{kind}:{index}"),
                *("--worker", ",".join(cluster["worker"]), "--ps", ",".join(cluster["ps"])),
            ],
            env=ENVIRON,
            stderr=subprocess.DEVNULL,
        )
        for kind, listed in cluster.items()
        for index in range(len(listed))
    ]
    try:
        yield
        assert [server.poll() for server in servers] == [None] * len(servers)
        for server in servers:
            server.terminate()
        assert [server.wait(30) for server in servers] == [143] * len(servers)
    finally:
        for server in servers:
            server.kill()
            server.wait()


@pytest.mark.long
def test_one_client_after_the_other_uses_a_standing_cluster(tmp_path: Path) -> None:
    ports = free_ports(2)
    cluster = {"worker": [f"localhost:{ports[0]}"], "ps": [f"localhost:{ports[1]}"]}
    with standing(cluster):
        for units in ("16", "48"):
            client = subprocess.run(
                [
                    *(sys.executable, str(PROGRAM), str(tmp_path / units)),
                    *("--cluster", json.dumps(cluster), "--epochs", "2", "--units", units),
                ],
                env=ENVIRON,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
            assert client.returncode == 0, client.stderr[-5000:]
            result = told(client.stdout)
            assert result["steps"] == result["expected"]
            assert result["plain"] == pytest.approx(result["accuracy"], abs=1e-6)
