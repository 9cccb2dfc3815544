"""Whether the tasks of a host compute on more threads than it has CPUs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfit.doctor.findings import Finding
from kfit.doctor.threads import check_threads, cpu_limit, own_threads

Texts = Callable[[list[Finding]], str]
ReportOf = Callable[..., Any]


def test_threads(report_of: ReportOf, tmp_path: Path, texts: Texts) -> None:
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
