"""Processes that run no code of the user, in a folder with files named like Python's modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfit.doctor import gpus
from kfit.supervisor.process_group import own_program


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder whose modules, if they are imported, write a file."""
    sprung = tmp_path / "sprung"
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("argparse", "json", "runpy", "socket", "kfit", "tensorflow", "numpy"):
        (folder / f"{name}.py").write_text(f"open({str(sprung)!r}, 'a').write(__name__)\n")
    monkeypatch.chdir(folder)
    return sprung


def test_they_run_none_of_its_files(trap: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for module, arguments in (("kfit.supervisor.sidecar", ["--help"]), ("kfit", ["server", "-h"])):
        command = own_program(module, *arguments)
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout
    assert not trap.exists()
    # The trap works.
    subprocess.run([sys.executable, "-m", "json"], capture_output=True, timeout=60, check=False)
    assert trap.exists()


@pytest.mark.long
def test_nor_does_the_question_about_gpus(trap: Path) -> None:
    answer = gpus._ask_tensorflow()
    assert isinstance(answer, tuple), answer
    assert not trap.exists()
