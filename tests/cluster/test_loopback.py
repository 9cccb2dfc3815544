"""Who can connect to a server that listens on all interfaces, after it was kept to this host."""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfit.cluster import loopback
from kfit.cluster.cluster import Cluster, Task
from kfit.cluster.loopback import kept_to_this_host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
LOCAL = Cluster({"worker": ("localhost:1", "127.0.0.1:2")}, Task("worker", 0))
AWAY = Cluster({"worker": ("host-a:1", "host-b:2")}, Task("worker", 0))


def device_of(listener: socket.socket) -> str:
    name = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    return name.rstrip(b"\0").decode()


@contextlib.contextmanager
def server() -> Iterator[socket.socket]:
    with socket.create_server(("", 0)) as listener:
        yield listener


def test_what_begins_to_listen_on_a_local_cluster_is_kept_to_this_host(capsys: Any) -> None:
    with server() as earlier, socket.socket() as idle, contextlib.ExitStack() as stack:
        with kept_to_this_host(LOCAL):
            later = stack.enter_context(server())
        assert [device_of(each) for each in (earlier, idle, later)] == ["", "", "lo"]
        with socket.create_connection(("localhost", later.getsockname()[1]), 5):
            later.accept()[0].close()
    assert capsys.readouterr().err == ""


def test_a_cluster_of_several_hosts_is_told_what_its_network_must_do(capsys: Any) -> None:
    with contextlib.ExitStack() as stack:
        with kept_to_this_host(AWAY):
            listener = stack.enter_context(server())
        assert device_of(listener) == ""
    assert "run whatever a caller sends them" in capsys.readouterr().err


def test_only_the_chief_says_so(capsys: Any) -> None:
    with kept_to_this_host(Cluster(AWAY.addresses, Task("worker", 1))):
        pass
    assert capsys.readouterr().err == ""


def test_where_the_system_refuses_it_is_said(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(socket, "SO_BINDTODEVICE", -1)
    with contextlib.ExitStack() as stack, kept_to_this_host(LOCAL):
        stack.enter_context(server())
    assert "(docs/security.md)" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_the_privilege_is_told() -> None:
    """Linux lets no other user than root bind a socket to a device if it is bound to one already.

    Before Linux 5.7 it let none bind any socket.
    """
    program = """
import os, socket
from kfit.cluster.cluster import Cluster, Task
from kfit.cluster.loopback import kept_to_this_host

cluster = Cluster({"worker": ("localhost:1", "127.0.0.1:2")}, Task("worker", 0))
with kept_to_this_host(cluster):
    listener = socket.create_server(("", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    os.setgroups([])
    os.setresgid(4711, 4711, 4711)
    os.setresuid(4711, 4711, 4711)
try:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
except PermissionError:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    assert done.stderr == loopback._OPEN_TO_OTHERS + "\n"


def test_descriptors_stay_open() -> None:
    with server() as listener:
        before = set(os.listdir("/proc/self/fd"))
        assert listener.fileno() in loopback._listening()
        assert set(os.listdir("/proc/self/fd")) == before


def test_locks_and_sockets_of_the_program_stay_as_they_are(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops all of the process's locks on it (POSIX)."""
    probe = """if True:
        import fcntl, sys
        with open(sys.argv[1], "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    """
    path, near_and_far = tmp_path / "database", socket.socketpair()
    with path.open("w") as file, server() as listener, near_and_far[0], near_and_far[1]:
        fcntl.lockf(file, fcntl.LOCK_EX)
        socket.setdefaulttimeout(5.0)
        try:
            assert listener.fileno() in loopback._listening()
            loopback._shut_down_strangers({listener.fileno()})
        finally:
            socket.setdefaulttimeout(None)
        assert all(os.get_blocking(each.fileno()) for each in (listener, *near_and_far))
        command = [sys.executable, "-c", probe, str(path)]
        taken = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "Resource temporarily unavailable" in taken.stderr


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def other_host() -> Iterator[tuple[list[str], str]]:
    """Makes a network namespace; yields the command that runs there, and this host's address."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network namespace needs root and the command `ip`")
    name = f"kfit{os.getpid()}"
    here, there = f"ka{os.getpid()}"[:15], f"kb{os.getpid()}"[:15]
    with contextlib.ExitStack() as stack:
        try:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            _ip("addr", "add", "10.213.17.1/24", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", name, "addr", "add", "10.213.17.2/24", "dev", there)
            _ip("-n", name, "link", "set", there, "up")
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"this machine makes no network namespace: {error}")
        yield ["ip", "netns", "exec", name], "10.213.17.1"


def reaches(command: list[str], host: str, port: int) -> bool:
    program = f"import socket; socket.create_connection(({host!r}, {port}), 3)"
    done = subprocess.run(
        [*command, sys.executable, "-c", program], capture_output=True, timeout=60
    )
    return done.returncode == 0


PROGRAM = """
import os, sys, time
import kfit
from kfit.cluster.resolvers import current_cluster

kfit.distribute.MultiWorker().tf_strategy
print("LISTENS", current_cluster().address.rpartition(":")[2], flush=True)
deadline = time.monotonic() + 120
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.1)
"""


@pytest.mark.long
def test_another_host_is_kept_away_from_the_servers_of_a_run(
    other_host: Any, tmp_path: Path
) -> None:
    command, host = other_host
    program, over = tmp_path / "program.py", tmp_path / "over"
    program.write_text(PROGRAM)
    run = [sys.executable, "-m", "kfit", "run", "--workers", "2", str(program), str(over)]
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(run, stdout=file, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while output.read_text().count("LISTENS") < 2:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        ports = [int(port) for port in re.findall(r"LISTENS (\d+)", output.read_text())]
        assert [reaches([], "127.0.0.1", port) for port in ports] == [True, True]
        assert [reaches(command, host, port) for port in ports] == [False, False]
        with server() as open_to_all:  # so it is not the network that keeps strangers away
            assert reaches(command, host, open_to_all.getsockname()[1])
    finally:
        over.touch()
        process.wait(60)
    assert process.returncode == 0, output.read_text()


EARLY = """
import select, socket, sys, time

host, port = sys.argv[1], int(sys.argv[2])
print("calls", flush=True)
made, end = [], time.monotonic() + 60
while not made or select.select([sys.stdin], [], [], 0)[0] == []:
    assert time.monotonic() < end
    try:
        made.append(socket.create_connection((host, port), 1))
    except OSError:
        pass
    if len(made) == 4:
        break
sys.stdin.readline()
held = 0
for each in made:
    each.settimeout(10)
    try:
        held += each.recv(1) != b""
    except ConnectionError:
        pass
    except TimeoutError:
        held += 1
print(len(made), held, flush=True)
"""


@pytest.mark.parametrize("late", [False, True])
def test_who_connects_before_the_restriction_is_disconnected(other_host: Any, late: bool) -> None:
    """Another host connects as early as it can; the server takes its calls at once, or late."""
    command, host = other_host
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stranger = subprocess.Popen(
        [*command, sys.executable, "-c", EARLY, host, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(stranger.wait, 60)
        stack.callback(stranger.kill)
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "calls\n"
        taken = stack.enter_context(contextlib.ExitStack())
        with kept_to_this_host(LOCAL):
            listener = stack.enter_context(socket.create_server(("", port)))
            listener.settimeout(0.01)
            if late:
                time.sleep(0.5)
            else:
                _take(listener, taken, 0.5)
        _take(listener, taken, 0.5)
        own = socket.create_connection(("127.0.0.1", port), 5)
        stack.enter_context(own)
        answers = listener.accept()[0]
        stack.enter_context(answers)
        told, _ = stranger.communicate("stop\n", 60)
        made, held = map(int, told.split())
        answers.sendall(b"a")
        assert own.recv(1) == b"a"  # connections of this host are left alone
    assert made > 0, "the stranger came too late: the test shows nothing"
    assert held == 0


def _take(listener: socket.socket, taken: contextlib.ExitStack, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            taken.enter_context(listener.accept()[0])


def test_another_host_is_kept_away(other_host: Any) -> None:
    command, host = other_host
    with server() as listener:
        port = listener.getsockname()[1]
        assert reaches(command, host, port)
        assert loopback._confine({listener.fileno()})
        assert not reaches(command, host, port)
        assert reaches([], "127.0.0.1", port)
