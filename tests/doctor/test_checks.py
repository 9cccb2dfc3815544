"""Each check on what it must tell apart."""

import math
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.doctor import storage
from kfit.doctor.clocks import compare_clocks
from kfit.doctor.description import check_description
from kfit.doctor.environment import check_environment
from kfit.doctor.exchange import Peer
from kfit.doctor.findings import Examination, Finding
from kfit.doctor.gpus import compare_gpus, look_for_gpus
from kfit.doctor.threads import check_threads, cpu_limit, own_threads
from kfit.doctor.versions import check_versions, compare_versions, installed_versions

ReportOf = Callable[..., Any]
TWO = Cluster({"worker": ("host-a:1", "host-b:2")}, Task("worker", 0))
SLURM_STEP = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "n",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
}


def texts(found: list[Finding]) -> str:
    return "\n".join(each.text for each in found if not each.ok)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ""),
        ({"TF_CONFIG": TWO.to_tf_config()}, ""),
        ({"TF_CONFIG": "{'cluster'"}, "is not JSON"),
        ({"KFIT_WORKERS": "a:1,b", "KFIT_INDEX": "0"}, "has no port"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, "batch script of a Slurm job of 4 tasks"),
        ({"SLURM_NTASKS": "4", "KFIT_CLUSTER": "none"}, ""),
        ({"JOB_COMPLETION_INDEX": "1"}, "KFIT_WORKERS is not set"),
        (SLURM_STEP, ""),
        (
            {**SLURM_STEP, "TF_CONFIG": TWO.to_tf_config()},
            "TF_CONFIG and Slurm describe two clusters that differ; kfit takes TF_CONFIG",
        ),
        ({**SLURM_STEP, "TF_CONFIG": TWO.to_tf_config(), "KFIT_CLUSTER": "slurm"}, ""),
        (
            {"KFIT_WORKERS": "localhost:1,host-b:2", "KFIT_INDEX": "0"},
            "localhost:1 means the host itself on every host",
        ),
    ],
)
def test_the_description(environ: dict[str, str], found: str) -> None:
    _, findings = check_description(environ)
    assert found in texts(findings)
    assert bool(found) == any(not each.ok for each in findings)


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
        ({"NCCL_SOCKET_IFNAME": "eth"}, ""),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "fits none of this host's network interfaces, lo, eth0"),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, ""),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "fits none"),
    ],
)
def test_variables(environ: dict[str, str], found: str, tmp_path: Path) -> None:
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
def test_a_proxy_before_tasks_of_each_kind(addresses: Any, task: str, found: str) -> None:
    environ = {"http_proxy": "http://proxy:3128", "no_proxy": "a", "KERAS_BACKEND": "tensorflow"}
    said = texts(check_environment(environ, Cluster(addresses, Task(task, 0))))
    assert found in said
    assert bool(found) == bool(said)


def test_the_backend_in_the_file_of_keras(tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    assert "'jax'" in texts(check_environment({"KERAS_HOME": str(tmp_path)}, None))
    (tmp_path / "keras.json").write_text("[")
    assert texts(check_environment({"KERAS_HOME": str(tmp_path)}, None)) == ""


def test_versions_here() -> None:
    installed = installed_versions()
    assert texts(check_versions(installed)) == ""
    assert "tensorflow 2.3.0rc1 is older" in texts(
        check_versions({**installed, "tensorflow": "2.3.0rc1"})
    )
    assert "keras is not installed" in texts(check_versions({**installed, "keras": ""}))


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tensorflow-tpu"])
def test_any_tensorflow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(asked: str) -> str:
        if asked.startswith("tensorflow") and asked != name:
            raise metadata.PackageNotFoundError
        return "2.21.0"

    monkeypatch.setattr(metadata, "version", version)
    assert installed_versions()["tensorflow"] == "2.21.0"


def test_versions_of_all(report_of: ReportOf) -> None:
    one = report_of()
    patch = report_of(task="worker 1", versions={**one.versions, "python": "3.11.9"})
    other = report_of(task="worker 2", versions={**one.versions, "tensorflow": "2.20.0"})
    python = report_of(task="worker 3", versions={**one.versions, "python": "3.12.1"})
    assert texts(compare_versions({"worker 0": one, "worker 1": patch})) == ""
    found = texts(compare_versions({r.task: r for r in (one, patch, other)}))
    assert "tensorflow differs" in found
    assert "2.21.0 on worker 0, worker 1; 2.20.0 on worker 2" in found
    assert "python differs" in texts(compare_versions({"worker 0": one, "worker 3": python}))


def test_clocks(report_of: ReportOf) -> None:
    near = Peer("worker 1", "b:2", report_of(), clock=(1.5, 0.1))
    slow_network = Peer("worker 2", "c:2", report_of(), clock=(-4.0, 3.0))
    behind = Peer("worker 3", "d:2", report_of(), clock=(-40.0, 0.1))
    silent = Peer("worker 4", "e:2", None, clock=(99.0, 0.0))
    assert texts(compare_clocks([near, slow_network, silent])) == ""
    assert "worker 3 is 40 s behind" in texts(compare_clocks([near, behind]))


def test_threads(report_of: ReportOf, tmp_path: Path) -> None:
    own, alike = report_of(), report_of(task="worker 1")
    away = report_of(task="worker 2", machine="there", threads=64)
    apart = report_of(task="worker 1", cpus=[4, 5, 6, 7], threads=4)
    full = report_of(threads=4)

    def found(own: Any, *others: Any, limit: float = math.inf) -> str:
        return texts(check_threads(own, {r.task: r for r in (own, *others)}, limit))

    assert found(own, alike, away) == ""
    assert found(full, apart) == ""
    assert "2 tasks on this host would compute on 6 threads, for 4 CPUs" in found(full, alike)
    assert "this task would compute on 4 threads, for 2 CPUs" in found(full, limit=1.5)
    # With one thread each there is nothing left to lower.
    assert found(report_of(threads=1), limit=0.5) == ""
    assert own_threads({"TF_NUM_INTRAOP_THREADS": "3"}, 8) == 3
    assert own_threads({"TF_NUM_INTRAOP_THREADS": "0"}, 8) == 8
    assert cpu_limit(tmp_path) == math.inf
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_limit(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_limit(tmp_path) == math.inf


@pytest.mark.parametrize(
    ("visible", "devices", "seen", "found"),
    [
        (None, 0, None, ""),
        ("", 0, None, ""),
        ("0", 0, None, "'0', but this host has no NVIDIA device"),
        (None, 2, (True, 2), ""),
        (None, 2, (True, 0), "has 2 visible to this task, TensorFlow sees 0"),
        (None, 2, (False, 0), "this TensorFlow was built without them"),
        ("-1", 2, None, ""),
        ("1", 2, (True, 1), ""),
        ("2", 2, None, "'2', but this host has 2 NVIDIA devices"),
        ("0,0", 2, None, "names a device twice"),
        ("GPU-8932f937", 2, (True, 1), ""),
        (None, 1, "it did not answer", "cannot be asked for GPUs: it did not answer"),
    ],
)
def test_gpus_of_this_task(visible: str | None, devices: int, seen: Any, found: str) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    def answer() -> Any:
        assert seen is not None, "TensorFlow need not be asked"
        return seen

    gpus = look_for_gpus(environ, ask=False, devices=lambda: devices, answer=answer)
    assert found in texts(gpus.findings)
    assert bool(found) == any(not each.ok for each in gpus.findings)


def test_gpus_of_all(report_of: ReportOf) -> None:
    own = report_of(gpus=1, visible_gpus=["0"])
    same = report_of(task="worker 1", gpus=1, visible_gpus=["0"])
    next_one = report_of(task="worker 1", gpus=1, visible_gpus=["1"])
    away = report_of(task="worker 1", machine="there", gpus=1, visible_gpus=["0"])
    more = report_of(task="worker 1", machine="there", gpus=2, visible_gpus=["0", "1"])
    server = report_of(task="ps 0", machine="there", gpus=0)

    def found(*others: Any) -> str:
        return texts(compare_gpus(own, {r.task: r for r in (own, *others)}))

    assert found(next_one) == found(away) == found(server) == ""
    assert "worker 0 and worker 1 would both use GPU 0" in found(same)
    assert "different numbers of GPUs (worker 0 1, worker 1 2)" in found(more)
    assert compare_gpus(own, {r.task: r for r in (own, more)}, in_step=False) == []


def test_a_backup_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "new"
    assert texts(storage.check_backup(str(new), is_chief=True, environ={})) == ""
    assert not new.exists()
    (tmp_path / "there").mkdir()
    deep = tmp_path / "there" / "is" / "nothing" / "yet"
    assert texts(storage.check_backup(str(deep), is_chief=True, environ={})) == ""
    assert list((tmp_path / "there").iterdir()) == []
    kept = tmp_path / "kept"
    (kept / "step-1").mkdir(parents=True)
    (kept / "step-1" / "arrays.h5").write_bytes(b"0" * 1000)
    assert texts(storage.check_backup(str(kept), is_chief=True, environ={})) == ""
    assert [entry.name for entry in kept.iterdir()] == ["step-1"]
    (tmp_path / "file").write_text("")
    wrong = str(tmp_path / "file" / "backup")
    assert "cannot be written" in texts(storage.check_backup(wrong, is_chief=True))
    assert texts(storage.check_backup(wrong, is_chief=False)) == ""
    monkeypatch.setattr(storage, "_LEAST", 1 << 60)
    assert "of free space" in texts(storage.check_backup(str(kept), is_chief=True))


def test_a_backup_directory_that_goes_with_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_file_system", lambda directory: "overlay")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert texts(storage.check_backup(str(tmp_path), is_chief=True, environ={})) == ""
    found = texts(storage.check_backup(str(tmp_path), is_chief=True, environ=pod))
    assert "is gone when the pod is replaced" in found


def test_a_shared_directory(tmp_path: Path, report_of: ReportOf) -> None:
    with storage.shared_probe(str(tmp_path)) as (name, wrong):
        assert wrong == []
        assert storage.sees_probe(str(tmp_path), report_of(probe=name))
        assert not storage.sees_probe(str(tmp_path / "other"), report_of(probe=name))
    assert not storage.sees_probe(str(tmp_path), report_of(probe=name))
    with storage.shared_probe(str(tmp_path / "none")) as (name, wrong):
        assert name == ""
        assert "cannot be written" in texts(wrong)
    assert "what worker 1 wrote there is not seen" in texts(
        storage.compare_shared(str(tmp_path), ["worker 1"], {})
    )


def test_how_it_is_told() -> None:
    found = [
        Finding("cluster", True, "well"),
        Finding("peer", False, "worker 1 is down", "start it", about="worker 1"),
    ]
    told = Examination("worker 0", "TF_CONFIG", found, seconds=1.25)
    assert told.as_text().splitlines() == [
        "ok       cluster  well",
        "problem  peer     worker 1 is down",
        "                  fix: start it",
        "kfit doctor: worker 0: 1 problem (1.2 s)",
    ]
    assert not told.ok
