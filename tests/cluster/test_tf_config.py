import json
from typing import Any

import pytest

from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.cluster.resolvers import current_cluster

TWO = {"worker": ["host0:2222", "host1:2222"]}
WORKER_0 = {"type": "worker", "index": 0}


def config(cluster: Any = TWO, task: Any = WORKER_0, **more: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task, **more})


def without_task(cluster: Any = TWO) -> str:
    return json.dumps({"cluster": cluster})


def test_reads_a_worker() -> None:
    cluster = Cluster.from_tf_config(config(task={"type": "worker", "index": 1}))
    assert cluster.task == Task("worker", 1)
    assert str(cluster.task) == "worker 1"
    assert cluster.address == "host1:2222"
    assert cluster.num_workers == 2
    assert cluster.worker_index == 1
    assert not cluster.is_chief
    assert cluster.peers == ((Task("worker", 0), "host0:2222"),)


def test_evaluator_may_be_missing_from_the_addresses() -> None:
    cluster = Cluster.from_tf_config(config(task={"type": "evaluator", "index": 0}))
    assert cluster.num_workers == 2
    with pytest.raises(ClusterError, match="evaluator 0"):
        _ = cluster.address


@pytest.mark.parametrize("text", [None, "", "  ", "{}", '{"environment": "cloud"}'])
def test_no_cluster(text: str | None) -> None:
    assert current_cluster({} if text is None else {"TF_CONFIG": text}) is None


def test_current_cluster_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config())
    cluster = current_cluster()
    assert cluster is not None
    assert cluster.num_workers == 2


@pytest.mark.parametrize(
    "text",
    [
        config(task={"type": "worker", "index": "1"}),
        config(cluster={"worker": {"1": "host1:2222", "0": "host0:2222"}}),
        config(environment="cloud", rpc_layer="grpc", job="{}"),
        config(task={"type": "worker", "index": 1, "trial": "3"}),
        config(cluster={"worker": ["[::1]:2222", "[fe80::1%eth0]:2222"]}),
        config(cluster={"worker": ["my_host:1", "10.0.0.1:65535"], "evaluator": ["e:1"]}),
    ],
)
def test_accepts(text: str) -> None:
    assert Cluster.from_tf_config(text).num_workers == 2


def many(count: int) -> dict[str, list[str]]:
    return {"worker": [f"host{i}:2222" for i in range(count)]}


BAD = {
    "python repr": (str({"cluster": TWO}), ["is not JSON", "double quotes"]),
    "cut off": (config()[:-5], ["is not JSON", 'at its end, after \'": "worker", "index"\'']),
    "a comma too many": (
        config()[:-1] + ",}",
        ["between 'orker\", \"index\": 0},' and '}')", "write it like"],
    ),
    "a path": ("/etc/tf.json", ["is not JSON (Expecting value at its beginning, before '/etc"]),
    "several addresses": (
        config(cluster={"worker": ["a:1,b:2"]}),
        ["which has ',' in it", "write 2 addresses, as in ['a:1', 'b:2']"],
    ),
    "names with a comma": (config(cluster={"worker": ["a,b"]}), ["write each address by itself"]),
    "a space at the end": (config(cluster={"worker": ["a:1 "]}), ["has ' ' in it", "write 'a:1'"]),
    "a list": ("[1, 2]", ["[1, 2]", "expected an object"]),
    "null": ("null", ["None", "expected an object"]),
    "nested without end": ("[" * 100_000, ["is not JSON"]),
    "no task": (without_task(), ["`task` is missing", '"index": 0']),
    "no cluster": (json.dumps({"task": WORKER_0}), ["`cluster` is missing", "unset TF_CONFIG"]),
    "clusters": (json.dumps({"clusters": TWO, "task": WORKER_0}), ["`clusters`", "`cluster`?"]),
    "only clusters": (json.dumps({"Cluster": TWO}), ["`Cluster`", "`cluster`?"]),
    "sparseCluster": (
        json.dumps({"sparseCluster": TWO, "task": WORKER_0}),
        ["`sparseCluster`", "leave `enableDynamicWorker` out"],
    ),
    "another layer": (config(rpc_layer="grpc+loas"), ["`rpc_layer` is 'grpc+loas'", "'grpc'"]),
    "dynamic workers": (
        json.dumps({"cluster": {"ps": [], "worker": {"1": "a:1"}}, "task": WORKER_0}),
        ["`cluster.worker` is a sparse list", "leave `enableDynamicWorker` out"],
    ),
    "tasks": (json.dumps({"cluster": TWO, "Task": WORKER_0}), ["`Task`", "`task`?"]),
    "task is a text": (config(task="worker 0"), ["`task` is 'worker 0'", "an object"]),
    "empty task": (config(task={}), ["`task.type` is missing", "empty"]),
    "no type": (config(task={"index": 0}), ["`task.type` is missing", "`index`"]),
    "no index": (config(task={"type": "worker", "id": 0}), ["`task.index` is missing", "`id`"]),
    "unknown type": (config(task={"type": "Worker", "index": 0}), ["'Worker'", "mean 'worker'"]),
    "type is a list": (config(task={"type": ["worker"], "index": 0}), ["`task.type`", "['worker"]),
    "master": (config(cluster={"master": ["h:1"]}), ["'master'", "write 'chief'"]),
    "unknown job": (config(cluster={"wrker": ["h:1"]}), ["`cluster`", "'wrker'", "'worker'?"]),
    "index -1": (config(task={"type": "worker", "index": -1}), ["`task.index` is -1", "from 0"]),
    "index 1.0": (config(task={"type": "worker", "index": 1.0}), ["`task.index` is 1.0"]),
    "index true": (config(task={"type": "worker", "index": True}), ["`task.index` is True"]),
    "index null": (config(task={"type": "worker", "index": None}), ["`task.index` is None"]),
    "index text": (config(task={"type": "worker", "index": "one"}), ["`task.index` is 'one'"]),
    "index too big": (
        config(task={"type": "worker", "index": 2}),
        ["`task.index` is 2", "`cluster.worker` holds 2 addresses", "0 to 1"],
    ),
    "index too big, one worker": (
        config(many(1), {"type": "worker", "index": 1}),
        ["holds 1 address;", "expected 0:"],
    ),
    "type not in cluster": (
        config(task={"type": "chief", "index": 0}),
        ["`task.type` is 'chief'", "lists only worker", "`cluster.chief`"],
    ),
    "cluster is a list": (config(cluster=["h:1"]), ["`cluster` is ['h:1']", "by task type"]),
    "cluster is null": (config(cluster=None), ["`cluster` is None"]),
    "empty cluster": (config(cluster={}), ["`cluster` is empty", "at least one worker"]),
    "no addresses": (config(cluster={"worker": []}), ["`cluster.worker` is empty"]),
    "empty ps": (config(cluster={**TWO, "ps": []}), ["`cluster.ps` is empty", "remove the key"]),
    "a text for a list": (config(cluster={"worker": "h:1"}), ["`cluster.worker` is 'h:1'", "list"]),
    "only ps": (config({"ps": ["p:1"]}, {"type": "ps", "index": 0}), ["only ps", "nobody trains"]),
    "two chiefs": (
        config({"chief": ["a:1", "b:1"]}, {"type": "chief", "index": 0}),
        ["`cluster.chief` holds 2", "expected one"],
    ),
    "two evaluators": (config({**TWO, "evaluator": ["a:1", "b:1"]}), ["`cluster.evaluator`"]),
    "sparse": (
        config({"worker": {"1": "host1:2222"}}, {"type": "worker", "index": 1}),
        ["`cluster.worker` is a sparse list", "['1']", "list all addresses"],
    ),
    "key twice": (
        '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker"}}',
        ["`worker` is given twice"],
    ),
    "no port": (
        config(cluster={"worker": ["host0", "host1:2222"]}),
        ["`cluster.worker[0]` is 'host0'", "no port", "'host0:2222'"],
    ),
    "port is a word": (config(cluster={"worker": ["h:http"]}), ["`cluster.worker[0]`", "'http'"]),
    "port is empty": (config(cluster={"worker": ["h:"]}), ["whose port is ''"]),
    "port 0": (config(cluster={"worker": ["h:0"]}), ["whose port is '0'", "1 to 65535"]),
    "port 65536": (config(cluster={"worker": ["h:65536"]}), ["'65536'", "1 to 65535"]),
    "port of many digits": (config(cluster={"worker": ["h:" + "9" * 5000]}), ["1 to 65535"]),
    "port in other digits": (config(cluster={"worker": ["h:٢٢٢٢"]}), ["1 to 65535"]),
    "address is a number": (config(cluster={"worker": [2222]}), ["`cluster.worker[0]` is 2222"]),
    "no host": (config(cluster={"worker": [":2222"]}), ["names no host"]),
    "a user": (config(cluster={"worker": ["me@host0:2222"]}), ["names no host"]),
    "a space": (config(cluster={"worker": ["host0 :2222"]}), ["write 'host0:2222'"]),
    "a scheme": (config(cluster={"worker": ["grpc://h:1"]}), ["without a scheme", "write 'h:1'"]),
    "bare IPv6": (config(cluster={"worker": ["::1:2222"]}), ["more than one colon", "[::1]:2222"]),
    "bad IPv6": (config(cluster={"worker": ["[host]:2222"]}), ["expected an IPv6 address"]),
    "open IPv6": (config(cluster={"worker": ["[::1:2222"]}), ["expected an IPv6 address"]),
    "IPv6 without port": (config(cluster={"worker": ["[::1]"]}), ["no port", "'[::1]:2222'"]),
    "address twice": (
        config(cluster={"worker": ["h:1", "H:01"]}),
        ["`cluster.worker[1]` is 'H:01'", "also `cluster.worker[0]`", "its own port"],
    ),
    "address twice in two types": (
        config(cluster={"worker": ["h:1"], "ps": ["h:1"]}),
        ["`cluster.ps[0]`", "also `cluster.worker[0]`"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses(case: str) -> None:
    text, words = BAD[case]
    with pytest.raises(ClusterError) as caught:
        current_cluster({"TF_CONFIG": text})
    message = str(caught.value)
    assert message.startswith("`TF_CONFIG`: ")
    for word in words:
        assert word in message
    assert len(message) < 600
