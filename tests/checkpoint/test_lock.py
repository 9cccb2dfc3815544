"""Two runs cannot have one directory; a restarted task can have that of the one it replaces."""

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock


def test_a_second_run_is_refused_and_told_by_whom(tmp_path: Any) -> None:
    lock = DirectoryLock(str(tmp_path), {})
    with pytest.raises(DirectoryInUseError, match=f"in use by process {os.getpid()} on"):
        DirectoryLock(str(tmp_path), {})
    assert lock.is_held
    lock.release()
    lock.release()
    assert DirectoryLock(str(tmp_path), {}).generation == 2


def test_the_lock_goes_with_its_process(tmp_path: Any) -> None:
    program = """
        import os, signal, sys
        from kfit.checkpoint.lock import DirectoryLock
        lock = DirectoryLock(sys.argv[1], {})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=False)
    assert DirectoryLock(str(tmp_path), {}).generation == 2


def test_a_restarted_task_takes_over(tmp_path: Any) -> None:
    old = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a", "KFIT_GENERATION": "0"})
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(str(tmp_path), {"KFIT_RUN": "b", "KFIT_GENERATION": "1"})
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(str(tmp_path), {"KFIT_RUN": "a", "KFIT_GENERATION": "0"})
    new = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a", "KFIT_GENERATION": "1"})
    assert new.generation == 2
    assert new.is_held
    assert not old.is_held
    old.remove()  # must not remove the new one's
    assert new.is_held
    new.remove()
    assert os.listdir(tmp_path) == []


def test_a_damaged_lock_is_no_obstacle(tmp_path: Any) -> None:
    (tmp_path / "lock").write_bytes(b"\xff\x00 not json")
    assert DirectoryLock(str(tmp_path), {}).generation == 1
