"""Whether a process can still be connected. This one runs TensorFlow, and stands alone."""

import pytest
import tensorflow as tf

from kfit.distribute import Cluster, ClusterError, MultiWorker, ParameterServer, Task
from kfit.distribute.connection import check_in_time, is_connected

ADDRESSES = {"worker": ("localhost:23456", "localhost:23457")}
CLUSTER = Cluster(ADDRESSES, Task("worker", 1))


@pytest.fixture(autouse=True)
def has_run() -> None:
    assert int(tf.constant(1)) == 1


def test_a_process_that_stands_alone_is_not_connected() -> None:
    assert not is_connected()


def test_a_cluster_of_the_environment_is_joined_by_join_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", CLUSTER.to_tf_config())
    with pytest.raises(ClusterError, match=r"Write `import kfit; kfit.join_cluster\(\)` as the"):
        check_in_time(CLUSTER)


@pytest.mark.parametrize("described", [None, "{", Cluster(ADDRESSES, Task("worker", 0))])
def test_one_of_the_program_s_own_by_its_strategy(
    monkeypatch: pytest.MonkeyPatch, described: str | Cluster | None
) -> None:
    text = described.to_tf_config() if isinstance(described, Cluster) else described
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ClusterError, match="Make the strategy in the first lines of the program"):
        check_in_time(CLUSTER)


def test_the_strategies_look() -> None:
    with pytest.raises(ClusterError, match="worker 1 cannot join its cluster any more"):
        MultiWorker(CLUSTER).tf_strategy  # noqa: B018
    servers = {"worker": ["localhost:23456"], "ps": ["localhost:23457"]}
    with pytest.raises(ClusterError, match="chief 0 cannot join its cluster any more"):
        ParameterServer(servers)
