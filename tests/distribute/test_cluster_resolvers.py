"""Each `ClusterResolver` of TensorFlow: what it describes, or why it cannot be used."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute.cluster_resolver import sagemaker_cluster_resolver

import kfit
from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.distribute.multi_worker import MultiWorker

resolvers = tf.distribute.cluster_resolver
TWO = {"worker": ["a:1", "b:2"]}
SECOND = Cluster({"worker": ("a:1", "b:2")}, Task("worker", 1))


def simple(**given: Any) -> Any:
    return resolvers.SimpleClusterResolver(
        tf.train.ClusterSpec(TWO), **{"task_type": "worker", "task_id": 1, **given}
    )


def pods(phase: str = "Running") -> SimpleNamespace:
    """A client of Kubernetes with two pods, in the place of the package `kubernetes`."""

    def pod(name: str, ip: str) -> SimpleNamespace:
        status = SimpleNamespace(phase=phase, host_ip=ip)
        return SimpleNamespace(metadata=SimpleNamespace(name=name), status=status)

    items = [pod("w-1", "10.0.0.2"), pod("w-0", "10.0.0.1")]
    return SimpleNamespace(
        list_pod_for_all_namespaces=lambda label_selector: SimpleNamespace(items=items)
    )


def test_simple_and_union() -> None:
    assert Cluster.from_resolver(simple()) == SECOND
    assert Cluster.from_resolver(simple(rpc_layer="grpc")) == SECOND
    union = resolvers.UnionResolver(
        simple(),
        resolvers.SimpleClusterResolver(tf.train.ClusterSpec({"chief": ["c:1"]})),
    )
    both = Cluster.from_resolver(union)
    assert both.num_workers == 3
    assert both.task == Task("worker", 1)


def test_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"type": "worker", "index": "1"}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": task}))
    assert Cluster.from_resolver(resolvers.TFConfigClusterResolver()) == SECOND
    assert MultiWorker(resolvers.TFConfigClusterResolver()).worker_index == 1
    monkeypatch.delenv("TF_CONFIG")
    # As for TensorFlow, it describes a lone worker then.
    assert MultiWorker(resolvers.TFConfigClusterResolver()).num_workers == 1


def test_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }.items():
        monkeypatch.setenv(name, value)
    resolver = resolvers.SlurmClusterResolver(gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False)
    assert Cluster.from_resolver(resolver) == Cluster(
        {"worker": ("n1:8888", "n2:8888")}, Task("worker", 1)
    )


def test_sagemaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_HOSTS", '["algo-2", "algo-1"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-2")
    # TensorFlow has it and does not export it.
    resolver = sagemaker_cluster_resolver.SageMakerClusterResolver()
    assert Cluster.from_resolver(resolver) == kfit.distribute.current_cluster()


def test_kubernetes() -> None:
    resolver = resolvers.KubernetesClusterResolver(override_client=pods())
    with pytest.raises(ClusterError, match=r"does not say which .* set `resolver.task_type`"):
        Cluster.from_resolver(resolver)
    resolver.task_type, resolver.task_id = "worker", 1
    assert Cluster.from_resolver(resolver) == Cluster(
        {"worker": ("10.0.0.1:8470", "10.0.0.2:8470")}, Task("worker", 1)
    )
    pending = resolvers.KubernetesClusterResolver(override_client=pods("Pending"))
    with pytest.raises(ClusterError, match=r"does not find its cluster: Pod .* is not running"):
        Cluster.from_resolver(pending)


def test_gce_and_others_of_ones_own() -> None:
    class Gce(resolvers.GCEClusterResolver):
        def __init__(self) -> None:
            self._task_type, self._task_id, self._rpc_layer = "worker", 1, "grpc"

        def cluster_spec(self) -> Any:
            return tf.train.ClusterSpec(TWO)

    assert Cluster.from_resolver(Gce()) == SECOND


@pytest.mark.parametrize(
    ("resolver", "message"),
    [
        (lambda: simple(task_type=None), "does not say which of the tasks"),
        (lambda: simple(task_id=2), "SimpleClusterResolver: `task.index` is 2"),
        (lambda: simple(task_type="ps"), "`task.type` is 'ps'"),
        (lambda: simple(rpc_layer="grpc+loas"), "`resolver.rpc_layer` is 'grpc"),
        (lambda: resolvers.SimpleClusterResolver(tf.train.ClusterSpec({})), "describes no cluster"),
        (
            lambda: resolvers.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": {1: "b:2"}}), task_type="worker", task_id=1
            ),
            "sparse list with the indices",
        ),
        (
            lambda: resolvers.TPUClusterResolver.__new__(resolvers.TPUClusterResolver),
            "finds a TPU and not the tasks of a cluster",
        ),
        (lambda: "worker 0", r"expected a tf.distribute.cluster_resolver.ClusterResolver"),
    ],
)
def test_what_cannot_be_used_is_refused(resolver: Any, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.from_resolver(resolver())


def test_a_cluster_by_hand() -> None:
    spec = tf.train.ClusterSpec(TWO)
    assert Cluster(spec.as_dict(), Task("worker", 1)) == SECOND
    sparse = tf.train.ClusterSpec({"worker": {1: "b:2", 0: "a:1"}})
    assert Cluster(sparse.as_dict(), Task("worker", 1)) == SECOND
    for addresses, message in (
        (spec, "ClusterSpec; expected a dict"),
        ({"worker": "a:1"}, "expected a list of addresses"),
        ([("worker", ["a:1"])], "expected address lists by task type"),
    ):
        with pytest.raises(ClusterError, match=message):
            Cluster(addresses, Task("worker", 0))


def test_what_multi_worker_takes() -> None:
    assert MultiWorker(simple()).cluster == SECOND
    assert MultiWorker(SECOND).worker_index == 1
    for cluster in (tf.train.ClusterSpec(TWO), TWO):
        with pytest.raises(ValueError, match="does not say which of them is this task's"):
            MultiWorker(cluster)
    with pytest.raises(ValueError, match="`cluster` must be"):
        MultiWorker("a:1,b:2")


def test_communication() -> None:
    kinds = tf.distribute.experimental.CommunicationImplementation
    given = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=1 << 20, timeout_seconds=30.0, implementation=kinds.RING
    )
    assert MultiWorker(SECOND, communication=given)._options is given
    same = MultiWorker(SECOND, communication="ring", bytes_per_pack=1 << 20, timeout=30.0)._options
    assert vars(same) == vars(given)
    for doubled in ({"timeout": 3.0}, {"bytes_per_pack": 5}):
        with pytest.raises(ValueError, match="`communication` is a CommunicationOptions, which"):
            MultiWorker(SECOND, communication=given, **doubled)
    for wrong in ("mpi", kinds.RING, None):
        with pytest.raises(ValueError, match="`communication` must be one of"):
            MultiWorker(SECOND, communication=wrong)
    for wrong in ({"timeout": float("nan")}, {"timeout": "1"}, {"start_timeout": 0}):
        with pytest.raises(
            ValueError, match=r"timeout` is .*; expected a number of seconds above 0"
        ):
            MultiWorker(SECOND, **wrong)
    with pytest.raises(ValueError, match="`bytes_per_pack` must be at least 0"):
        MultiWorker(SECOND, bytes_per_pack=-1)


@pytest.mark.parametrize(
    ("devices", "sums"),
    [(["/device:CPU:0"], True), (["/device:CPU:0", "/device:CPU:1"], False), (["GPU:0"], False)],
)
def test_sockets_are_for_one_cpu_replica_a_worker(devices: list[str], sums: bool) -> None:
    joined = SimpleNamespace(extended=SimpleNamespace(worker_devices=devices))
    assert MultiWorker(SECOND)._may_use_sockets(joined) == sums
    assert not MultiWorker(SECOND, communication="ring")._may_use_sockets(joined)
    if not sums:
        with pytest.raises(ValueError, match=f"trains on .*{devices[0]}"):
            MultiWorker(SECOND, communication="sockets")._may_use_sockets(joined)
