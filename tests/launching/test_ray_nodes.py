"""`kfit.launch` on a Ray of several nodes, as Ray simulates them on one host."""

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kfit

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.long
SOON = 120.0


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_lost_node_is_replaced(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def work(folder: str) -> str:
        generation = os.environ["KFIT_GENERATION"]
        task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        Path(folder, f"{generation}-{task}").touch()
        time.sleep(600 if generation == "0" else 0)
        return generation

    def lose_a_node() -> None:
        deadline = time.monotonic() + SOON
        while len(list(Path(folder).iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        groups = ray.util.placement_group_table().values()
        [used] = [g["bundles_to_node_id"] for g in groups if g["state"] == "CREATED"]
        nodes = {node.node_id: node for node in cluster.worker_nodes}
        cluster.remove_node(nodes[used[1]], allow_graceful=False)

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=lose_a_node)
        thread.start()
        options = {"placement": "STRICT_SPREAD", "max_restarts": 2, "env": {"KFIT_JOIN": "0"}}
        assert kfit.launch(work, (folder,), workers=2, on="ray", **options) == "1"
        thread.join()
    assert "kfit: worker 1 was lost: " in capsys.readouterr().err
