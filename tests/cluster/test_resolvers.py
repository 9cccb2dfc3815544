"""The cluster as Slurm, Kubernetes and others describe it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.cluster.resolvers import (
    cluster_source,
    current_cluster,
    described_clusters,
    start_timeout_of,
    workers_listed,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "1",
    "KFIT_PORT": "9000",
}
WORKERS = {"KFIT_WORKERS": "a:1, b:2,c:3", "JOB_COMPLETION_INDEX": "2"}
TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["h:1", "i:2"]}, "task": {"type": "worker", "index": 1}}'
}
SAGEMAKER = {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}


def test_kfit_workers_with_the_index_of_kubernetes_or_its_own() -> None:
    cluster = current_cluster(WORKERS)
    assert cluster == Cluster({"worker": ("a:1", "b:2", "c:3")}, Task("worker", 2))
    other = current_cluster({**WORKERS, "KFIT_INDEX": "0"})
    assert other is not None
    assert other.task == Task("worker", 0)
    assert cluster_source(WORKERS) == "KFIT_WORKERS"


def test_sagemaker() -> None:
    cluster = current_cluster(SAGEMAKER)
    assert cluster == Cluster({"worker": ("algo-1:2223", "algo-2:2223")}, Task("worker", 1))
    assert cluster_source(SAGEMAKER) == "SageMaker"
    other = current_cluster({**SAGEMAKER, "KFIT_PORT": "4000"})
    assert other is not None
    assert other.address == "algo-2:4000"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SM_HOSTS": "algo-1,algo-2"}, "expected a JSON list"),
        ({"SM_HOSTS": '["a", 2]'}, "expected a JSON list"),
        ({"SM_CURRENT_HOST": "algo-3"}, "`SM_CURRENT_HOST` is 'algo-3'; expected one of SM_HOSTS"),
        ({"KFIT_PORT": "none"}, "`SM_HOSTS` and `KFIT_PORT`"),
    ],
)
def test_what_sagemaker_cannot_mean_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        current_cluster({**SAGEMAKER, **change})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {"JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},  # not made for kfit
        {**SLURM, **WORKERS, **TF_CONFIG, "KFIT_CLUSTER": "none"},
    ],
)
def test_no_cluster(environ: dict[str, str]) -> None:
    assert current_cluster(environ) is None
    assert cluster_source(environ) is None


def test_the_first_counts_unless_one_is_chosen() -> None:
    every = {**SLURM, **WORKERS, **TF_CONFIG}
    assert cluster_source(every) == "TF_CONFIG"
    assert cluster_source({**SLURM, **WORKERS}) == "KFIT_WORKERS"
    assert cluster_source({**every, "KFIT_CLUSTER": "slurm"}) == "Slurm"
    assert cluster_source({**every, "KFIT_CLUSTER": "workers"}) == "KFIT_WORKERS"


def test_what_each_source_describes() -> None:
    every = {**SLURM, **WORKERS, **TF_CONFIG, **SAGEMAKER, "KFIT_WORKERS": "a"}
    described = described_clusters(every)
    assert list(described) == ["TF_CONFIG", "KFIT_WORKERS", "Slurm", "SageMaker"]
    assert described["KFIT_WORKERS"] is None  # it is wrong
    assert described["Slurm"] == current_cluster(SLURM)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"JOB_COMPLETION_INDEX": ""}, "`JOB_COMPLETION_INDEX` is not set"),
        ({"KFIT_INDEX": "-1"}, "`KFIT_INDEX` is '-1'; expected the place"),
        ({"KFIT_INDEX": "3"}, "among the 3 addresses of KFIT_WORKERS, a whole number from 0 to 2"),
        ({"KFIT_WORKERS": "a:1,b,c:3"}, r"`KFIT_WORKERS\[1\]` is 'b', which has no port"),
        ({"KFIT_WORKERS": "a:1;b:2"}, "which has ';' between addresses; separate them by commas"),
        ({"KFIT_WORKERS": "a:1 b:2"}, "which has ' ' between addresses"),
        ({"KFIT_WORKERS": "a:1,a:1,b:2"}, "`KFIT_WORKERS` and `JOB_COMPLETION_INDEX`"),
    ],
)
def test_workers_that_cannot_be_meant_are_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        current_cluster({**WORKERS, **change})


@pytest.mark.parametrize("name", ["KFIT_WORKER", "KFIT_WROKERS", "kfit_workers"])
def test_an_index_without_addresses_does_not_make_a_task_train_alone(name: str) -> None:
    with pytest.raises(ClusterError, match=r"is '0', but KFIT_WORKERS is not set, .* alone; list"):
        current_cluster({"KFIT_INDEX": "0"})
    with pytest.raises(ClusterError, match=f"did you mean `KFIT_WORKERS` by `{name}`"):
        current_cluster({"KFIT_INDEX": "0", name: "a:1,b:2"})
    assert current_cluster({"KFIT_INDEX": "0", "KFIT_CLUSTER": "none"}) is None
    assert current_cluster({"KFIT_INDEX": "0", **SLURM}) == current_cluster(SLURM)


def test_how_many_workers_are_told() -> None:
    cluster = current_cluster(WORKERS)
    assert cluster is not None
    assert workers_listed(cluster, WORKERS) == "KFIT_WORKERS lists 3 workers"
    started = {**TF_CONFIG, "KFIT_STARTED_BY": "`kfit run`"}
    cluster = current_cluster(started)
    assert cluster is not None
    assert workers_listed(cluster, started) == "`kfit run` starts 2 workers"
    one = {"KFIT_WORKERS": "a:1", "KFIT_INDEX": "0"}
    cluster = current_cluster(one)
    assert cluster is not None
    assert workers_listed(cluster, one) == "KFIT_WORKERS lists 1 worker"


def test_a_missing_index_is_named_as_people_set_it() -> None:
    with pytest.raises(ClusterError, match="`KFIT_INDEX` is not set; expected the place"):
        current_cluster({"KFIT_WORKERS": "a:1,b:2"})


def two_free_ports() -> int:
    """A port that is free together with the next one."""
    for port in range(21_000, 31_000, 2):
        try:
            with socket.create_server(("", port)), socket.create_server(("", port + 1)):
                return port
        except OSError:
            continue
    raise AssertionError("no two ports are free")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_two_tasks_train(kind: str, tmp_path: Path) -> None:
    port = two_free_ports()
    slurm = {
        **SLURM,
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "KFIT_PORT": str(port),
    }
    processes = []
    for index in range(2):
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        if kind == "slurm":
            environ |= {**slurm, "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}
        else:
            environ["KFIT_WORKERS"] = f"localhost:{port},localhost:{port + 1}"
            environ["JOB_COMPLETION_INDEX"] = str(index)
        environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "kfit", "run", str(EXAMPLE)],
                env=environ,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], said
    source = {"slurm": "Slurm", "kubernetes": "KFIT_WORKERS"}[kind]
    assert f"chose 'multi_worker': {source} lists 2 workers" in said[0]


def test_how_long_to_wait_for_the_others() -> None:
    assert start_timeout_of({}) == 60
    assert start_timeout_of({"KFIT_START_TIMEOUT": "0.5"}) == 0.5
    for wrong in ("0", "-1", "nan", "inf", "soon", ""):
        with pytest.raises(ValueError, match=f"number of seconds above 0. Got: '{wrong}'"):
            start_timeout_of({"KFIT_START_TIMEOUT": wrong})
