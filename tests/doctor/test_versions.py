"""Versions here and on the other tasks, and whether their clocks agree."""

from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest

from kfit.doctor.findings import Finding
from kfit.doctor.peer_reports import Peer
from kfit.doctor.versions import (
    check_versions,
    compare_clocks,
    compare_versions,
    installed_versions,
)

Texts = Callable[[list[Finding]], str]
ReportOf = Callable[..., Any]


def test_versions_here(texts: Texts) -> None:
    installed = installed_versions()
    assert texts(check_versions(installed)) == ""
    assert "tensorflow 2.3.0rc1 is older" in texts(
        check_versions({**installed, "tensorflow": "2.3.0rc1"})
    )
    assert "keras 99.0 is newer than kfit supports" in texts(
        check_versions({**installed, "keras": "99.0"})
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


def test_what_has_no_version_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(asked: str) -> Any:
        if asked == "keras":
            raise KeyError("Version")
        return None

    monkeypatch.setattr(metadata, "version", version)
    installed = installed_versions()
    assert (installed["numpy"], installed["keras"], installed["tensorflow"]) == ("", "", "")


def test_versions_of_all(report_of: ReportOf, texts: Texts) -> None:
    one = report_of()
    patch = report_of(task="worker 1", versions={**one.versions, "python": "3.11.9"})
    other = report_of(task="worker 2", versions={**one.versions, "tensorflow": "2.20.0"})
    python = report_of(task="worker 3", versions={**one.versions, "python": "3.12.1"})
    assert texts(compare_versions({"worker 0": one, "worker 1": patch})) == ""
    found = texts(compare_versions({r.task: r for r in (one, patch, other)}))
    assert "tensorflow differs" in found
    assert "2.21.0 on worker 0, worker 1; 2.20.0 on worker 2" in found
    assert "python differs" in texts(compare_versions({"worker 0": one, "worker 3": python}))


def test_clocks(report_of: ReportOf, texts: Texts) -> None:
    near = Peer("worker 1", "b:2", report_of(), clock=(1.5, 0.1))
    slow_network = Peer("worker 2", "c:2", report_of(), clock=(-4.0, 3.0))
    behind = Peer("worker 3", "d:2", report_of(), clock=(-40.0, 0.1))
    silent = Peer("worker 4", "e:2", None, clock=(99.0, 0.0))
    assert texts(compare_clocks([near, slow_network, silent])) == ""
    assert "worker 3 is 40 s behind" in texts(compare_clocks([near, behind]))
