"""The tasks of a run give a warning once, and not each of them."""

from pathlib import Path

from kfit.heartbeat import VARIABLE
from kfit.heartbeat.warned import is_told_by_another


def test_the_first_task_of_an_attempt_gives_a_warning(tmp_path: Path) -> None:
    first, second, restarted = ({VARIABLE: str(tmp_path / name)} for name in ("0-0", "0-1", "1-1"))
    assert not is_told_by_another("a loss", first)
    assert is_told_by_another("a loss", second)
    assert not is_told_by_another("a loss", first)  # in a second `fit` of the same task
    assert not is_told_by_another("another loss", second)
    assert not is_told_by_another("a loss", restarted)


def test_without_a_supervisor_or_its_folder_each_task_warns(tmp_path: Path) -> None:
    for environ in ({}, {VARIABLE: str(tmp_path / "gone" / "0-0")}):
        assert not is_told_by_another("a loss", environ)
        assert not is_told_by_another("a loss", environ)


def test_with_verbose_each_task_warns(tmp_path: Path) -> None:
    for name in ("0-0", "0-1"):
        environ = {VARIABLE: str(tmp_path / name), "TF_CPP_MIN_LOG_LEVEL": "0"}
        assert not is_told_by_another("a loss", environ)
