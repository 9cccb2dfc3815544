"""The cluster as a step of Slurm describes it."""

import pytest

from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.cluster.resolvers import (
    cluster_source,
    current_cluster,
)
from kfit.cluster.slurm_step import expand_hosts, slurm_cluster, tasks_per_host

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


def test_a_slurm_step() -> None:
    cluster = current_cluster(SLURM)
    assert cluster == Cluster(
        {"worker": ("node1:9000", "node1:9001", "node2:9000")}, Task("worker", 1)
    )
    assert cluster_source(SLURM) == "Slurm"


def test_ids_of_jobs_may_have_ten_digits() -> None:
    assert current_cluster({**SLURM, "SLURM_JOB_ID": "4026531841", "KFIT_PORT": ""}) is not None


def test_jobs_and_steps_on_one_host_get_other_ports() -> None:
    without = {name: value for name, value in SLURM.items() if name != "KFIT_PORT"}
    ports = set()
    for job, step in (("7", "0"), ("7", "1"), ("8", "0")):
        cluster = current_cluster({**without, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})
        assert cluster is not None
        ports.add(int(cluster.address.split(":")[1]))
        assert all(12_000 <= port < 32_768 for port in ports)
    assert len(ports) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"KFIT_CLUSTER": "sagemaker"}, "`KFIT_CLUSTER` is 'sagemaker', but that describes no"),
        ({"KFIT_CLUSTER": "k8s"}, "`KFIT_CLUSTER` is 'k8s'; expected one of"),
        ({"KFIT_CLUSTER": "workers"}, "`KFIT_CLUSTER` is 'workers', but that describes no cluster"),
        ({"SLURM_STEP_NODELIST": "node[1-"}, "`SLURM_STEP_NODELIST` is 'node"),
        ({"SLURM_STEP_NODELIST": "node[1-x]"}, "holds the range '1-x'"),
        ({"SLURM_STEP_NODELIST": ""}, "`SLURM_STEP_NODELIST` is not set"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(3)"}, "expected numbers such as"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,2"}, "does not give 3 tasks on the 2 hosts"),
        ({"SLURM_PROCID": "3"}, "`SLURM_PROCID` is 3; expected 0 to 2"),
        ({"SLURM_PROCID": "one"}, "`SLURM_PROCID` is 'one'; expected a whole number"),
        ({"SLURM_NODEID": "1", "SLURM_LOCALID": "0"}, "srun --distribution=block"),
        ({"KFIT_PORT": "70000"}, "'70000'; expected a number from 1 to 65535"),
    ],
)
def test_what_slurm_cannot_mean_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message.replace("[", r"\[").replace("(", r"\(")):
        current_cluster({**SLURM, **change})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,2],m", ["n08", "n09", "n10", "n2", "m"]),
        ("r[1-2]n[1-2].x", ["r1n1.x", "r1n2.x", "r2n1.x", "r2n2.x"]),
        ("10-0-0-1,gpu-a[5]", ["10-0-0-1", "gpu-a5"]),
    ],
)
def test_hosts_in_the_short_form_of_slurm(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts


def test_tasks_in_the_short_form_of_slurm() -> None:
    assert tasks_per_host("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_host("4") == [4]


def test_a_text_for_millions_of_hosts_is_refused_at_once() -> None:
    with pytest.raises(ClusterError, match=r"`SLURM_STEP_NODELIST` is .*over 100,000 hosts"):
        list(expand_hosts("a[1-9]b[1-99999999]"))
    with pytest.raises(ClusterError, match=r"`SLURM_STEP_TASKS_PER_NODE` is .*over 100,000 hosts"):
        tasks_per_host("1,1(x999999999)")


@pytest.mark.parametrize(
    "hosts",
    ["a[1-999999999][2-1]", f"a[1-{'9' * 5000}]", f"a[{'9' * 5000}]", "a" + "[1]" * 2000],
)
def test_a_text_that_lists_hosts_without_an_end_is_refused_at_once(hosts: str) -> None:
    with pytest.raises(ClusterError, match=r"`SLURM_STEP_NODELIST` "):
        list(expand_hosts(hosts))


def test_a_step_of_a_thousand_million_tasks_is_refused_at_once() -> None:
    many = {"SLURM_STEP_NUM_TASKS": "999999999", "SLURM_STEP_TASKS_PER_NODE": "999999999"}
    environ = {**many, "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "a"}
    with pytest.raises(ClusterError, match="`SLURM_STEP_NUM_TASKS` is 999,999,999"):
        slurm_cluster(environ)
