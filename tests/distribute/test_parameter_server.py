"""Asynchronous training on servers of this host; `programs/asynchronous.py` has the cases."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kfit
from kfit.distribute import Cluster, ClusterError, ParameterServer, Task
from kfit.supervisor.local import free_ports

PROGRAM = Path(__file__).parent / "programs" / "asynchronous.py"
SERVERS_PROGRAM = PROGRAM.with_name("all_servers.py")
DAILY = ["sgd_of_shards", "own_step", "refused"]
IN_TURNS = [
    "adamw_clipped_of_shards",
    "accumulated_of_shards",
    "loss_scaled_of_shards",
    "adam",
    "users_own",
]
SERVERS = {"worker": ("a:1", "b:1"), "ps": ("c:1",)}


def results_of(folder: Path, *cases: str) -> dict[str, Any]:
    """What the program tells of these cases; of all if there are none."""
    addresses = [f"localhost:{port}" for port in free_ports(4)]
    cluster = json.dumps({"worker": addresses[:2], "ps": addresses[2:]})
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # One process for all of them; in the program's own they would want for threads.
    with subprocess.Popen(
        [sys.executable, str(SERVERS_PROGRAM), cluster], env=environ, stdin=subprocess.PIPE
    ) as servers:
        try:
            done = subprocess.run(
                [sys.executable, PROGRAM, folder, cluster, *cases],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=400,
            )
        finally:
            servers.kill()
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines()]
    return {k: v for line in lines if line.startswith("{") for k, v in json.loads(line).items()}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory.mktemp("daily"), *DAILY)


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory.mktemp("all"))


def check_in_turns(result: dict[str, Any]) -> None:
    assert result["weights"] < 1e-6
    assert result["logs"] < 1e-6
    taken, expected = result["steps"]
    assert taken == expected


def test_in_turns_the_numbers_of_shards_are_those_of_one_device(told: dict[str, Any]) -> None:
    check_in_turns(told["sgd_of_shards"])


@pytest.mark.long
@pytest.mark.parametrize("case", IN_TURNS)
def test_in_turns_the_numbers_are_those_of_one_device(all_told: dict[str, Any], case: str) -> None:
    check_in_turns(all_told[case])


def check_own_step(result: dict[str, Any]) -> None:
    assert max(result["weights"], result["second"], result["logs"]) < 1e-6
    assert result["slots"] == 2 + 2 + 2 + 4  # a count and a rate each, momenta, Adam's two each


def test_a_step_of_the_models_own_may_build_its_optimizers(told: dict[str, Any]) -> None:
    check_own_step(told["own_step"])


@pytest.mark.long
def test_it_may_do_so_with_shards(all_told: dict[str, Any]) -> None:
    check_own_step(all_told["own_step_of_shards"])


@pytest.mark.long
def test_predictions_are_those_of_one_device(all_told: dict[str, Any]) -> None:
    assert len(all_told["predicted"]) == 2
    assert max(all_told["predicted"]) < 1e-6


@pytest.mark.long
def test_workers_side_by_side_lose_no_count(all_told: dict[str, Any]) -> None:
    result = all_told["side_by_side"]
    assert result["logs"] < 1e-6
    assert result["evaluated"] < 1e-6
    assert result["iterations"] == result["expected"] == 128


@pytest.mark.long
def test_a_failure_leaves_the_count_right(all_told: dict[str, Any]) -> None:
    result = all_told["after_a_failure"]
    assert "let it repeat" in result["said"]
    assert (result["steps"], result["warned"]) == (10, [])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["arrays", "tf_data", "generator", "py_dataset"])
def test_each_example_is_trained_on_once(all_told: dict[str, Any], kind: str) -> None:
    assert all_told["kinds_of_data"][kind] == [50, [17, 17, 16]]


@pytest.mark.long
def test_a_function_gives_each_worker_a_data_set(all_told: dict[str, Any]) -> None:
    examples, _ = all_told["kinds_of_data"]["function"]
    assert examples == 50


@pytest.mark.long
@pytest.mark.parametrize("case", ["resumed", "resumed_shards"])
def test_it_goes_on_from_a_backup(all_told: dict[str, Any], case: str) -> None:
    assert all_told[case]["cut"] == 9
    assert all_told[case]["weights"] < 1e-6


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        ("eager", "`run_eagerly=True` does not go with"),
        ("jit", "`jit_compile=True` does not go with"),
        ("no_steps", "`steps_per_epoch`"),
        ("too_late", "One process coordinates one cluster"),
    ],
)
def test_what_does_not_go_is_refused(told: dict[str, Any], attempt: str, words: str) -> None:
    assert words in told["refused"][attempt]


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (Cluster({"worker": ("a:1",)}, Task("worker", 0)), "lists no ps"),
        (Cluster({"chief": ("a:1",), "ps": ("b:1",)}, Task("chief", 0)), "lists no worker"),
        (None, "kfit run --workers 2 --ps 1"),
    ],
)
def test_a_cluster_without_servers_is_refused(cluster: Cluster | None, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        ParameterServer(cluster)


def test_wrong_options_are_refused() -> None:
    cluster = Cluster(SERVERS, Task("chief", 0))
    with pytest.raises(ValueError, match="`variable_partitioner` must be a function"):
        ParameterServer(cluster, variable_partitioner=2)  # type: ignore[arg-type]
    for wrong in (0, "60"):
        with pytest.raises(ValueError, match=f"`start_timeout` is {wrong!r}; expected"):
            ParameterServer(cluster, start_timeout=wrong)
    with pytest.raises(ValueError, match="`cluster` must be"):
        ParameterServer("a:1")  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="take strategy='parameter_server'"):
        kfit.distribute.MultiWorker(Cluster({**SERVERS, "chief": ("d:1",)}, Task("chief", 0)))


def test_auto_takes_it_where_ps_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({**SERVERS, "chief": ("d:1",)}, Task("chief", 0))
    monkeypatch.setenv("TF_CONFIG", cluster.to_tf_config())
    strategy = kfit.distribute.as_strategy("auto")
    assert isinstance(strategy, ParameterServer)
    assert strategy.is_chief
    assert strategy.num_workers == 1
    assert strategy.describe() == "parameter_server, 2 workers and 1 ps"


def test_servers_that_are_not_up_are_named() -> None:
    from kfit.distribute.servers import wait_for_servers

    worker, ps = (f"localhost:{port}" for port in free_ports(2))
    cluster = Cluster({"worker": (worker,), "ps": (ps,)}, Task("chief", 0))
    with pytest.raises(ClusterError, match=f"ps 0 at {ps} .*refused.*; worker 0 at {worker}"):
        wait_for_servers(cluster, 0.5)


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux leaves calls to a full queue unanswered"
)
def test_servers_are_called_at_the_same_time() -> None:
    from kfit.distribute.servers import wait_for_servers

    with contextlib.ExitStack() as stack:
        # As of a host behind a firewall: what calls when the queue is full gets no answer.
        silent = []
        for _ in range(4):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            silent.append(f"127.0.0.1:{listener.getsockname()[1]}")
            for _ in range(3):
                caller = stack.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(listener.getsockname())
        (port,) = free_ports(1)
        cluster = Cluster(
            {"worker": (*silent[:3], f"localhost:{port}"), "ps": (silent[3],)}, Task("chief", 0)
        )
        began = time.monotonic()
        with pytest.raises(ClusterError) as raised:
            wait_for_servers(cluster, 0.1)
        took = time.monotonic() - began
    names = re.findall(r"(\w+ \d) at \S+ \((\w+ \w+)", str(raised.value))
    assert names == [
        *(("ps 0", "no answer"), ("worker 0", "no answer"), ("worker 1", "no answer")),
        *(("worker 2", "no answer"), ("worker 3", "nothing listens")),
    ]
    assert took < 6  # one after the other they take 8
