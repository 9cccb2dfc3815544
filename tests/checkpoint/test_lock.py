"""Two runs cannot have one directory; a restarted task can have that of the one it replaces."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint.lock import (
    _SIZE,
    _TYPES,
    DirectoryInUseError,
    DirectoryLock,
    recorded_end,
)
from kfit.user_files.ownership import ForeignFileError


def test_a_second_run_is_refused_and_told_by_whom(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DirectoryLock(str(tmp_path), {})
    with pytest.raises(DirectoryInUseError, match="in use by another callback of this program: "):
        DirectoryLock(str(tmp_path), {})
    holder = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: holder + 1)
        with pytest.raises(DirectoryInUseError, match=f"in use by process {holder} on"):
            DirectoryLock(str(tmp_path), {})
    assert lock.is_held
    lock.release()
    lock.release()
    assert DirectoryLock(str(tmp_path), {}).lock_count == 2


def test_the_lock_goes_with_its_process(tmp_path: Any) -> None:
    program = """
        import os, signal, sys
        from kfit.checkpoint.lock import DirectoryLock
        lock = DirectoryLock(sys.argv[1], {})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=False)
    assert DirectoryLock(str(tmp_path), {}).lock_count == 2


def test_a_restarted_task_takes_over(tmp_path: Any) -> None:
    old = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a", "KFIT_GENERATION": "0"})
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(str(tmp_path), {"KFIT_RUN": "b", "KFIT_GENERATION": "1"})
    with pytest.raises(DirectoryInUseError):
        DirectoryLock(str(tmp_path), {"KFIT_RUN": "a", "KFIT_GENERATION": "0"})
    new = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a", "KFIT_GENERATION": "1"})
    assert new.lock_count == 2
    assert new.is_held
    assert not old.is_held
    old.remove()  # must not remove the new one's
    assert new.is_held
    new.remove()
    assert os.listdir(tmp_path) == []


def test_a_task_that_was_replaced_knows_it_when_the_next_run_has_ended_as_well(
    tmp_path: Any,
) -> None:
    old, new = ({"KFIT_RUN": "run", "KFIT_GENERATION": start} for start in "01")
    first = DirectoryLock(str(tmp_path), old)
    DirectoryLock(str(tmp_path), new).release()
    DirectoryLock(str(tmp_path), {}).remove()
    assert not (tmp_path / ".kfit-lock").exists()
    assert not first.is_held
    first.note_end("run")  # writes nothing that would say otherwise
    assert not first.is_held


@pytest.mark.parametrize("content", [b"", b"\0" * 1024])
def test_a_lock_that_a_loss_of_power_has_emptied_is_no_obstacle(
    tmp_path: Any, content: bytes
) -> None:
    (tmp_path / ".kfit-lock").write_bytes(content)
    assert DirectoryLock(str(tmp_path), {}).lock_count == 1


def test_half_a_character_in_a_lock(tmp_path: Any) -> None:
    """JSON may hold what no encoding has."""
    holder = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a"})
    content = json.loads((tmp_path / ".kfit-lock").read_bytes())
    content |= {"host": "\ud800", "run": "\ud800", "ended": "\ud800"}
    (tmp_path / ".kfit-lock").write_bytes(json.dumps(content).encode().ljust(_SIZE))
    with pytest.raises(DirectoryInUseError, match=r"on '\\ud800'") as raised:
        DirectoryLock(str(tmp_path), {"KFIT_RUN": "b"})
    assert str(raised.value).encode()
    holder.release()
    lock = DirectoryLock(str(tmp_path), {})
    assert lock.ended == "\ud800"
    lock.note_end(lock.ended)
    lock.release()
    assert DirectoryLock(str(tmp_path), {}).lock_count == 3


def _of_others(path: Any, kind: str) -> None:
    outside = path.parent / "outside"
    outside.write_text("mine")
    counted = {"pid": 1, "host": "a", "run": None, "start": 0, "ended": None, "fits": []}
    counted["lock_count"] = 10**300  # no name of a snapshot could begin with it
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(
            {
                "text": b"my door's code",
                "json": b'{"pid": 1}',
                "types": json.dumps({key: [] for key in _TYPES}).encode().ljust(_SIZE),
                "deep": b"[" * _SIZE,
                "count": json.dumps(counted).encode().ljust(_SIZE),
            }[kind]
        )


@pytest.mark.parametrize(
    "kind", ["text", "json", "types", "deep", "count", "link", "directory", "pipe"]
)
def test_a_lock_that_kfit_did_not_write_is_refused_and_stays(tmp_path: Any, kind: str) -> None:
    path = tmp_path / "backup" / ".kfit-lock"
    path.parent.mkdir()
    _of_others(path, kind)
    before = path.read_bytes() if path.is_file() else os.lstat(path)
    assert recorded_end(str(path.parent)) is None
    with pytest.raises(ForeignFileError, match=r"\.kfit-lock must be a lock that kfit wrote"):
        DirectoryLock(str(path.parent), {})
    assert (path.read_bytes() if path.is_file() else os.lstat(path)) == before
    assert (tmp_path / "backup" / "outside").read_text() == "mine"


def test_a_file_called_lock_is_nobodys_business(tmp_path: Any) -> None:
    (tmp_path / "lock").write_text("mine")
    lock = DirectoryLock(str(tmp_path), {})
    lock.remove()
    assert os.listdir(tmp_path) == ["lock"]
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_directory_copied_by_hard_links_has_a_lock_of_its_own(tmp_path: Any) -> None:
    """What `cp -al` makes: one file with a name in each directory."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    DirectoryLock(str(one), {}).release()
    os.link(one / ".kfit-lock", two / ".kfit-lock")
    before = (one / ".kfit-lock").read_bytes()
    assert DirectoryLock(str(two), {}).lock_count == 2
    assert (one / ".kfit-lock").read_bytes() == before
    assert DirectoryLock(str(one), {}).lock_count == 2


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@needs_root
@pytest.mark.parametrize("which", ["directory", "target", "link"])
def test_the_directory_of_another_user_is_refused(tmp_path: Any, which: str) -> None:
    directory, link = tmp_path / "directory", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    if which == "link":
        os.chown(link, 4711, 4711, follow_symlinks=False)
    else:
        os.chown(directory, 4711, 4711)
    tmp_path.chmod(0o1777)
    with pytest.raises(ForeignFileError, match=r"`backup_dir` must .*user 4711.*everybody may"):
        DirectoryLock(str(directory if which == "directory" else link), {})
    assert os.listdir(directory) == []


@needs_root
def test_the_volume_of_a_user_is_taken_where_nobody_else_can_put_one() -> None:
    """Root in a container trains on what belongs to a user; so do the members of a group."""
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as volume:
        os.chown(volume, 1000, 1000)
        os.chmod(volume, 0o2775)
        DirectoryLock(volume, {}).release()
        inside = os.path.join(volume, "shared")
        os.mkdir(inside, 0o700)
        os.chmod(inside, 0o1777)
        backup = os.path.join(inside, "backup")
        os.mkdir(backup)
        os.chown(backup, 1000, 1000)
        with pytest.raises(ForeignFileError, match=r"everybody may write to '.*/shared'"):
            DirectoryLock(backup, {})


def test_a_lock_remembers_the_run_that_ended(tmp_path: Any) -> None:
    lock = DirectoryLock(str(tmp_path), {"KFIT_RUN": "a"})
    lock.note_end("a")
    lock.release()
    lock = DirectoryLock(str(tmp_path), {"KFIT_RUN": "b"})
    assert (lock.run, lock.ended, recorded_end(str(tmp_path))) == ("b", "a", "a")
    lock.note_end(None)
    lock.release()
    assert DirectoryLock(str(tmp_path), {}).ended is None
    assert recorded_end(str(tmp_path)) is None
    assert recorded_end(str(tmp_path / "missing")) is None


def test_a_forked_process_that_outlives_its_parent_holds_nothing(tmp_path: Path) -> None:
    """A pool's, for example, when the program was killed."""
    program = f"""
import os, sys, time
from kfit.checkpoint.lock import DirectoryLock
lock = DirectoryLock({str(tmp_path)!r})
child = os.fork()
if child == 0:
    os.write(1, b"child")
    time.sleep(600)
time.sleep(0.2)
assert lock.is_held
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=(tmp_path / "said").open("w"), check=False
    )
    said = (tmp_path / "said").read_text().removeprefix("child")
    try:
        assert done.returncode == -signal.SIGKILL
        DirectoryLock(str(tmp_path)).release()
    finally:
        os.kill(int(said), signal.SIGKILL)
