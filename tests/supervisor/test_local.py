import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfit.cluster.cluster import Cluster
from kfit.cluster.resolvers import cluster_source
from kfit.supervisor import local
from kfit.supervisor.local import free_ports, local_commands, task_environment
from tests.deadlines import deadline

ARGV = ("python", "train.py", "--lr", "0.1")


def test_free_ports_differ_and_can_be_bound() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        socket.create_server(("", port)).close()


def test_free_ports_are_never_those_of_outgoing_connections() -> None:
    first_ephemeral = local._first_ephemeral_port()
    assert all(10_000 <= port < first_ephemeral for port in free_ports(50))


def test_free_ports_where_every_port_is_ephemeral(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_first_ephemeral_port", lambda: 1024)
    assert len(set(free_ports(10))) == 10


def choose(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Makes chance choose these ports, one after the other, and the last one for ever."""
    chosen = itertools.chain(ports, itertools.repeat(ports[-1]))

    class Chance:
        def randrange(self, low: int, high: int) -> int:
            return next(chosen)

    monkeypatch.setattr(random, "SystemRandom", Chance)


def test_free_ports_passes_over_taken_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        choose(monkeypatch, taken, free)
        assert free_ports(1) == (free,)


def test_free_ports_are_all_held_until_the_last_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = free_ports(2)
    choose(monkeypatch, one, one, two)
    assert free_ports(2) == (one, two)


def test_each_worker_is_told_who_it_is() -> None:
    commands = local_commands(ARGV, 3, {"HOME": "/home/me"})
    clusters = [Cluster.from_tf_config(command.env["TF_CONFIG"]) for command in commands]
    assert [command.name for command in commands] == ["worker 0", "worker 1", "worker 2"]
    assert [str(cluster.task) for cluster in clusters] == ["worker 0", "worker 1", "worker 2"]
    assert all(cluster.addresses == clusters[0].addresses for cluster in clusters)
    assert all(address.startswith("127.0.0.1:") for address in clusters[0].addresses["worker"])
    for command in commands:
        assert command.argv == ARGV
        assert command.env["HOME"] == "/home/me"
        assert command.env["PYTHONUNBUFFERED"] == "1"
        assert cluster_source(command.env) == "`kfit run`"


def test_a_single_worker_is_no_cluster() -> None:
    (command,) = local_commands(ARGV, 1, {"TF_CONFIG": ""})
    assert "TF_CONFIG" not in command.env


@pytest.mark.parametrize("workers", [1, 2])
def test_an_evaluator_is_one_of_the_cluster(workers: int) -> None:
    commands = local_commands(ARGV, workers, {}, evaluator=True)
    names = [f"worker {index}" for index in range(workers)]
    assert [command.name for command in commands] == [*names, "evaluator 0"]
    clusters = [Cluster.from_tf_config(command.env["TF_CONFIG"]) for command in commands]
    assert all(cluster.addresses == clusters[0].addresses for cluster in clusters)
    assert [str(cluster.task) for cluster in clusters] == [*names, "evaluator 0"]
    assert [cluster.is_evaluator for cluster in clusters] == [False] * workers + [True]
    assert clusters[0].num_workers == workers


@pytest.mark.parametrize(
    ("cores", "workers", "share"), [(8, 2, "4"), (2, 2, "1"), (2, 5, "1"), (7, 3, "2"), (4, 1, "4")]
)
def test_workers_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, share: str
) -> None:
    monkeypatch.setattr(local, "_num_cores", lambda: cores)
    for command in local_commands(ARGV, workers, {}):
        assert command.env["OMP_NUM_THREADS"] == share
        assert command.env["TF_NUM_INTRAOP_THREADS"] == share
        assert int(command.env["TF_NUM_INTEROP_THREADS"]) == max(2, int(share))


def test_counts_the_cores_it_may_use() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert local._num_cores() == len(os.sched_getaffinity(0))
    assert local._num_cores() >= 1


def test_what_the_user_has_set_stays() -> None:
    chosen = {
        "OMP_NUM_THREADS": "7",
        "TF_NUM_INTRAOP_THREADS": "8",
        "TF_NUM_INTEROP_THREADS": "9",
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    for command in local_commands(ARGV, 2, chosen):
        assert {name: command.env[name] for name in chosen} == chosen


def test_task_environment_changes_little() -> None:
    environ = {"TF_CONFIG": json.dumps({}), "A": "1"}
    assert task_environment(environ) == {
        **environ,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }


def test_secrets_in_the_environment_are_not_shown() -> None:
    (command,) = local_commands(ARGV, 1, {"TOKEN": "hunter2"})
    assert "hunter2" not in repr(command)


STEALS = """
import socket, sys
from kfit.supervisor import local
free, held = local.free_ports, []
def stolen(count):
    ports = free(count)
    if not held:
        held.append(socket.create_server(("", ports[0])))
        print("STOLEN", ports[0], flush=True)
    return ports
local.free_ports = stolen
from kfit.commands.main import main
sys.exit(main(sys.argv[1:]))
"""
"""`kfit run` with another program that binds a port between its choice and the workers' start."""


@pytest.mark.long
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_port_that_is_stolen_before_a_worker_binds_it(tmp_path: Path, restarts: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('it has joined')\n")
    options = ["run", "--workers", "2", "--max-restarts", str(restarts), str(script)]
    with deadline(30.0) as limit:  # of which TensorFlow's import takes the most
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", STEALS, *options],
            env={k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        seconds = time.monotonic() - began
    (port,) = re.findall(r"STOLEN (\d+)", done.stdout)
    named = rf"worker 0 .*127.0.0.1:{port}: port {port} is taken"
    assert re.search(named, done.stderr), done.stderr
    if restarts:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("it has joined") == 2
    else:
        assert done.returncode == 1
        assert re.search(named, done.stderr.splitlines()[-1]), done.stderr
        assert "it has joined" not in done.stdout
    limit.check(f"a stolen port, {restarts} restarts: all had ended", seconds)
