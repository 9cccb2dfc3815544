import pickle
import subprocess
import sys

import pytest

from kfit.cluster.cluster import (
    Cluster,
    ClusterError,
    Task,
    check_trains,
)


def test_chief_comes_first_and_worker_0_is_then_a_plain_worker() -> None:
    addresses = {"worker": ("w0:1", "w1:1"), "chief": ("c:1",), "ps": ("p:1",)}
    chief = Cluster(addresses, Task("chief", 0))
    assert [str(task) for task, _ in chief.workers] == ["chief 0", "worker 0", "worker 1"]
    assert (chief.num_workers, chief.worker_index, chief.is_chief) == (3, 0, True)
    worker = Cluster(addresses, Task("worker", 0))
    assert (worker.worker_index, worker.is_chief) == (1, False)
    assert Cluster({"worker": ("w0:1",)}, Task("worker", 0)).is_chief


@pytest.mark.parametrize("task_type", ["ps", "evaluator"])
def test_ps_and_evaluator_are_no_workers(task_type: str) -> None:
    addresses = {"chief": ("c:1",), "ps": ("p:1",), "evaluator": ("e:1",)}
    cluster = Cluster(addresses, Task(task_type, 0))
    assert cluster.num_workers == 1
    assert not cluster.is_chief
    with pytest.raises(ClusterError, match=f"{task_type} 0"):
        _ = cluster.worker_index
    assert cluster.is_evaluator == (task_type == "evaluator")
    instead = {"ps": "run `kfit server` here", "evaluator": r"call `kfit\.train_and_evaluate`"}
    message = rf"`task` is {task_type} 0.*cannot run `fit`.*{instead[task_type]}"
    with pytest.raises(ClusterError, match=message):
        check_trains(cluster)
    check_trains(Cluster(addresses, Task("chief", 0)))


@pytest.mark.parametrize(
    ("task", "joins"),
    [("chief", "yes"), ("worker", "without ps"), ("ps", "no"), ("evaluator", "no")],
)
def test_who_joins_the_others_to_train(task: str, joins: str) -> None:
    together = {"chief": ("a:1",), "worker": ("b:1",), "evaluator": ("c:1",)}
    with_ps = {**together, "ps": ("d:1",)}
    assert Cluster(with_ps, Task(task, 0)).joins == (joins == "yes")
    if task != "ps":
        assert Cluster(together, Task(task, 0)).joins == (joins != "no")
    assert not Cluster({"worker": ("a:1",)}, Task("worker", 0)).joins
    assert not Cluster({"chief": ("a:1",), "evaluator": ("c:1",)}, Task("chief", 0)).joins


def test_round_trip() -> None:
    addresses = {"chief": ("[::1]:1",), "worker": ("w0:1", "w1:1"), "ps": ("p:1",)}
    cluster = Cluster(addresses, Task("worker", 1))
    assert Cluster.from_tf_config(cluster.to_tf_config()) == cluster
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert len({cluster, cluster}) == 1


def test_its_text_names_the_addresses_and_the_task() -> None:
    cluster = Cluster({"chief": ["c:1"], "worker": {0: "w0:1"}}, Task("worker", 0))
    assert repr(cluster) == (
        "Cluster(addresses={'chief': ('c:1',), 'worker': ('w0:1',)}, "
        "task=Task(type='worker', id=0))"
    )


def test_rules_hold_for_a_cluster_that_is_not_from_tf_config() -> None:
    with pytest.raises(ClusterError, match=r"^`cluster\.worker\[0\]` is 'host0'"):
        Cluster({"worker": ("host0",)}, Task("worker", 0))


def test_import_is_light() -> None:
    code = (
        "import sys, kfit.cluster.cluster as module\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "assert not names & {'tensorflow', 'keras', 'numpy', 'asyncio', 'subprocess'}, names"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
