"""Temporary folders of a task are within that of its run, if there is one."""

from pathlib import Path

import pytest

from kfit.heartbeat.aside import ASIDE, root_aside


def test_it_is_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASIDE, str(tmp_path))
    assert root_aside() == str(tmp_path)


@pytest.mark.parametrize("folder", [None, "", "removed"])
def test_without_one_it_is_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    monkeypatch.delenv(ASIDE, raising=False)
    if folder is not None:
        monkeypatch.setenv(ASIDE, folder and str(tmp_path / folder))
    assert root_aside() is None
