"""Variables that break training, and those that do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.doctor.environment import check_environment
from kfit.doctor.findings import Finding

Texts = Callable[[list[Finding]], str]
TWO = Cluster({"worker": ("host-a:1", "host-b:2")}, Task("worker", 0))


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"http_proxy": "http://proxy:3128"}, "`http_proxy` is set, so TensorFlow calls host-b"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "localhost,host-b"}, ""),
        ({"https_proxy": "x", "no_proxy": ".cluster.local"}, "`https_proxy` is set"),
        ({"KERAS_BACKEND": "torch"}, "Keras computes with 'torch'"),
        ({"KERAS_BACKEND": "tensorflow"}, ""),
        ({"TF_USE_LEGACY_KERAS": "1"}, "Keras 2"),
        ({"TF_NUM_INTRAOP_THREADS": "four"}, "`TF_NUM_INTRAOP_THREADS` is 'four'"),
        ({"OMP_NUM_THREADS": "4,2", "TF_NUM_INTEROP_THREADS": "0"}, ""),
        ({"OMP_NUM_THREADS": "0"}, "`OMP_NUM_THREADS` is '0'"),
        ({"KFIT_START_TIMEOUT": "0"}, "above 0"),
        ({"KFIT_WORKER": "a:1,b:2"}, "`KFIT_WORKER` is no variable of kfit, which ignores it"),
        ({"KFIT_SERVICE_HOST": "10.0.0.1"}, ""),
        ({"NCCL_SOCKET_IFNAME": "eth"}, ""),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "fits none of this host's network interfaces, lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, ""),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "fits none"),
    ],
)
def test_variables(environ: dict[str, str], found: str, tmp_path: Path, texts: Texts) -> None:
    environ = {"KERAS_HOME": str(tmp_path), **environ}
    findings = check_environment(environ, TWO, lambda: ["lo", "eth0"])
    assert found in texts(findings)
    assert bool(found) == any(not each.ok for each in findings)


@pytest.mark.parametrize(
    ("addresses", "task", "found"),
    [
        ({"chief": ("a:1",), "worker": ("a:2",), "ps": ("p:1", "q:1")}, "chief", "calls p, q thr"),
        ({"worker": ("a:2",), "ps": ("p:1",)}, "chief", "calls p through"),
        ({"worker": ("a:2",), "ps": ("p:1",)}, "ps", ""),
        ({"worker": ("a:1", "a:2"), "evaluator": ("e:1",)}, "worker", ""),
        ({"worker": ("b:1", "b:2"), "evaluator": ("e:1",)}, "evaluator", ""),
    ],
)
def test_a_proxy_before_tasks_of_each_kind(
    addresses: Any, task: str, found: str, texts: Texts
) -> None:
    environ = {"http_proxy": "http://proxy:3128", "no_proxy": "a", "KERAS_BACKEND": "tensorflow"}
    said = texts(check_environment(environ, Cluster(addresses, Task(task, 0))))
    assert found in said
    assert bool(found) == bool(said)


def test_the_backend_in_the_file_of_keras(tmp_path: Path, texts: Texts) -> None:
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    assert "'jax'" in texts(check_environment({"KERAS_HOME": str(tmp_path)}, None))
    (tmp_path / "keras.json").write_text("[")
    assert texts(check_environment({"KERAS_HOME": str(tmp_path)}, None)) == ""
