"""The backup directory, and a directory that all tasks share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfit.doctor import storage
from kfit.doctor.findings import Finding

Texts = Callable[[list[Finding]], str]
ReportOf = Callable[..., Any]


def test_a_backup_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
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


def test_a_url_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.chdir(tmp_path)
    for is_chief in (True, False):
        found = storage.check_backup("gs://bucket/x", is_chief=is_chief)
        assert texts(found).startswith("gs://bucket/x is a URL; expected a path")
    with storage.shared_probe("gs://bucket/x") as (name, wrong):
        assert name == ""
        assert texts(wrong).startswith("gs://bucket/x is a URL")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_others_is_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    (tmp_path / "lost+found").mkdir()
    scan = os.scandir

    def refused(path: str) -> Any:
        if path.endswith("lost+found"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert texts(storage.check_backup(str(tmp_path), is_chief=True, environ={})) == ""


def test_a_backup_directory_that_goes_with_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    monkeypatch.setattr(storage, "_file_system", lambda directory: "overlay")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert texts(storage.check_backup(str(tmp_path), is_chief=True, environ={})) == ""
    found = texts(storage.check_backup(str(tmp_path), is_chief=True, environ=pod))
    assert "is gone when the pod is replaced" in found


def test_a_shared_directory(tmp_path: Path, report_of: ReportOf, texts: Texts) -> None:
    with storage.shared_probe(str(tmp_path)) as (name, wrong):
        assert wrong == []
        assert storage.sees_probe(str(tmp_path), report_of(probe=name))
        assert not storage.sees_probe(str(tmp_path / "other"), report_of(probe=name))
    assert not storage.sees_probe(str(tmp_path), report_of(probe=name))
    with storage.shared_probe(str(tmp_path / "none")) as (name, wrong):
        assert name == ""
        assert "cannot be written" in texts(wrong)
    assert "does not see the file that worker 1 wrote there" in texts(
        storage.compare_shared(str(tmp_path), ["worker 1"], {})
    )
