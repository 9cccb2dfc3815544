"""Asynchronous training in real processes: servers that die, and servers that stand."""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from kfit.commands.main import main
from kfit.distribute import Cluster, Task
from kfit.supervisor.local import free_ports

PROGRAM = Path(__file__).parent / "programs" / "servers.py"
IN_THE_MIDDLE = PROGRAM.with_name("middle.py")
SECONDS = 300
ENVIRON = {
    **{k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "KFIT_CLUSTER")},
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
}


def on_this_host(*program: Path | str, restarts: int = 1, code: int = 0) -> tuple[Any, str]:
    """What a program tells under `kfit run --workers 2 --ps 1`, and all output."""
    command = [sys.executable, "-m", "kfit", "run", "--workers", "2", "--ps", "1"]
    command += ["--max-restarts", str(restarts), *map(str, program)]
    done = subprocess.run(
        command, env=ENVIRON, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output[-5000:]
    return told(done.stdout), output


def told(output: str) -> Any:
    found = re.findall(r"RESULT (\{.*\})", output)
    return json.loads(found[-1]) if found else None


@pytest.mark.long
def test_a_killed_worker_is_survived(tmp_path: Path) -> None:
    result, output = on_this_host(PROGRAM, tmp_path, "--kill", "worker:1")
    assert result["strategy"] == "parameter_server, 2 workers and 1 ps"
    assert result["steps"] == result["expected"]
    assert result["epochs"] == 10  # in one go: nothing was restarted but the worker
    assert result["accuracy"] > 0.95
    assert result["plain"] == pytest.approx(result["accuracy"], abs=1e-6)
    assert "attempt 2" in output  # of the worker


@pytest.mark.long
@pytest.mark.parametrize("task", ["worker:0", "ps:0", "chief:0", "nobody"])
def test_training_ends_as_well_whoever_is_killed(tmp_path: Path, task: str) -> None:
    options = [] if task == "nobody" else ["--kill", task]
    result, output = on_this_host(PROGRAM, tmp_path, *options)
    assert result["steps"] == result["expected"]
    assert result["accuracy"] > 0.95
    # What the variables, or the coordinator, were lost with is resumed from the backup.
    went_on = "kfit: going on from" in output
    assert went_on == (task in ("ps:0", "chief:0"))


@pytest.mark.long
@pytest.mark.parametrize("task", ["ps:0", "chief:0"])
def test_without_restarts_a_dead_ps_or_chief_ends_training_by_name(
    tmp_path: Path, task: str
) -> None:
    result, output = on_this_host(PROGRAM, tmp_path, "--kill", task, restarts=0, code=137)
    assert result is None
    assert f"{task.replace(':', ' ')} was killed by SIGKILL" in output.splitlines()[-1]
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "steps", "scale"), [("float32", 12, 1), ("mixed_float16", 11, 512)]
)
def test_steps_are_counted_though_a_worker_dies_in_one_for_good(
    policy: str, steps: int, scale: float
) -> None:
    result, output = on_this_host(IN_THE_MIDDLE, "--policy", policy, restarts=0)
    (warning,) = result.pop("again")
    assert warning.startswith("1 of 2 steps were begun again by another worker")
    # Of 12 steps, with float16 one overflows: it halves the scale and does not count.
    assert result == {"steps": steps, "scale": scale, "finite": True}
    assert "worker 1 ended with exit code 137; without it go on: chief 0, worker 0, ps 0" in output
    assert "attempt 2" not in output


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


@pytest.mark.long
def test_a_server_waits_for_the_chief_and_ends_when_that_is_gone_for_long() -> None:
    ports = free_ports(3)
    chief, worker, ps = (f"localhost:{port}" for port in ports)
    cluster = Cluster({"chief": (chief,), "worker": (worker,), "ps": (ps,)}, Task("ps", 0))
    environ = {**ENVIRON, "TF_CONFIG": cluster.to_tf_config(), "KFIT_START_TIMEOUT": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "kfit", "server"], env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"kfit: ps 0 serves on {ps}\n"
            assert server.stdout.readline() == (
                f"kfit: ps 0 waits for the chief at {chief}, which has not come for 1 s: nothing "
                "listens there (connection refused)\n"
            )
            with socket.create_server(("127.0.0.1", ports[0])):
                time.sleep(4)
                assert server.poll() is None
            assert server.wait(30) == 0
            assert server.stdout.read() == (
                f"kfit: ps 0 ends: the chief at {chief} has been gone for 1 s "
                "(KFIT_START_TIMEOUT)\n"
            )
        finally:
            server.kill()


def pods_of_a_tfjob(folder: Path, *options: str) -> dict[str, subprocess.Popen[str]]:
    """The commands of a TFJob, run with the TF_CONFIG that the operator gives each of its pods."""
    options = ("--workers", "1", "--ps", "1", "--max-restarts", "2", *options)
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        main(["manifest", "kubernetes", "--kind", "tfjob", "--image", "image", *options])
    documents = {each["kind"]: each for each in yaml.safe_load_all(written.getvalue())}
    replicas = documents["TFJob"]["spec"]["tfReplicaSpecs"]
    kinds = [kind.lower() for kind in replicas]
    ports = free_ports(len(kinds))
    listed = {kind: [f"localhost:{port}"] for kind, port in zip(kinds, ports, strict=True)}
    pods = {}
    for kind, replica in replicas.items():
        task = {"type": kind.lower(), "index": 0}
        config = {"cluster": listed, "task": task, "environment": "cloud"}
        kfit, *words = replica["template"]["spec"]["containers"][0]["command"]
        assert (kfit, replica["replicas"]) == ("kfit", 1)
        pods[task["type"]] = subprocess.Popen(
            [sys.executable, "-m", "kfit", *words],
            env={**ENVIRON, "TF_CONFIG": json.dumps(config)},
            stdout=(folder / task["type"]).open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )
    return pods


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker:0", "ps:0", "chief:0"])
def test_the_pods_of_a_tfjob(tmp_path: Path, victim: str) -> None:
    # As long as one of them needs to start again, and more.
    patience = 30
    pods = pods_of_a_tfjob(
        tmp_path,
        *("--start-timeout", str(patience)),
        *(str(PROGRAM), str(tmp_path / "files"), "--kill", victim),
    )
    try:
        codes = {kind: pod.wait(SECONDS) for kind, pod in pods.items()}
    finally:
        for pod in pods.values():
            pod.terminate()
            pod.wait()
    said = {kind: (tmp_path / kind).read_text() for kind in pods}
    # The servers end by themselves, for nobody tells them that training has ended.
    assert codes == {"chief": 0, "worker": 0, "ps": 0}, said
    result = told(said["chief"])
    assert result["steps"] == result["expected"]
    # Only the victim's pod, and the chief's where the variables are lost, has started it again.
    anew = {kind for kind, text in said.items() if "attempt 2 starts" in text}
    assert anew == {victim.partition(":")[0]} | ({"chief"} if victim == "ps:0" else set())
    for kind in ("worker", "ps"):
        assert f"{kind} 0 ends: the chief at" in said[kind]
        assert f"has been gone for {patience} s (KFIT_START_TIMEOUT)" in said[kind]
