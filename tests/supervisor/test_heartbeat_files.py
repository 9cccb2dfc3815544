import errno
import io
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfit.heartbeat import VARIABLE, Heartbeat, Pulse
from kfit.supervisor import heartbeat_files
from kfit.supervisor.heartbeat_files import (
    HeartbeatFiles,
    ask_for_stacks,
    heartbeat_root,
    is_stopped,
)

SOON = 20.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that SIGUSR2 ends."""
    code = "import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_each_task_has_a_file_of_its_own_that_goes_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    heartbeats = HeartbeatFiles(str(folder), 3, ["worker 0", "worker 1"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert heartbeats.pulse("worker 1") == Pulse()
    paths = {heartbeats.environment(name)[VARIABLE] for name in ("worker 0", "worker 1")}
    assert {Path(path).parent for path in paths} == {folder}
    assert len(paths) == 2
    Heartbeat.of_environment(heartbeats.environment("worker 1")).beat(5)
    assert heartbeats.pulse("worker 1").step == 5
    assert heartbeats.pulse("worker 0").beats == 0
    heartbeats.close()
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tells_a_stopped_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert not is_stopped(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + SOON
    while not is_stopped(sleeper.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    sleeper.kill()
    sleeper.wait()
    assert not is_stopped(sleeper.pid)


def test_asks_nobody_but_the_processes_of_the_task(sleeper: subprocess.Popen[bytes]) -> None:
    assert not ask_for_stacks(sleeper.pid, os.getsid(0))
    assert sleeper.poll() is None
    assert ask_for_stacks(sleeper.pid, sleeper.pid)
    assert sleeper.wait(SOON) == -signal.SIGUSR2
    assert not ask_for_stacks(sleeper.pid, sleeper.pid)
    # What is read before a task has opened its heartbeat.
    assert not ask_for_stacks(0, 12345678)


def test_a_folder_without_room_is_not_taken(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(heartbeat_files, "_MEMORY", str(tmp_path))
    assert heartbeat_root() == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(heartbeat_files, "_MEMORY", str(tmp_path / "missing"))
    assert heartbeat_root() is None

    class Full(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(heartbeat_files, "_MEMORY", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    assert heartbeat_root() is None
