"""GPUs that TensorFlow does not see, and those that two tasks would use."""

from collections.abc import Callable
from typing import Any

import pytest

from kfit.doctor.findings import Finding
from kfit.doctor.gpus import compare_gpus, look_for_gpus

Texts = Callable[[list[Finding]], str]
ReportOf = Callable[..., Any]


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
def test_gpus_of_this_task(
    visible: str | None, devices: int, seen: Any, found: str, texts: Texts
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    def answer() -> Any:
        assert seen is not None, "TensorFlow need not be asked"
        return seen

    gpus = look_for_gpus(environ, ask=False, devices=lambda: devices, answer=answer)
    assert found in texts(gpus.findings)
    assert bool(found) == any(not each.ok for each in gpus.findings)


def test_gpus_of_all(report_of: ReportOf, texts: Texts) -> None:
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
