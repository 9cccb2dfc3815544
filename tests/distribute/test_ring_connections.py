"""How neighbours are connected, and whom they do not let in."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.distribute import ring_connections as neighbours
from kfit.distribute.ring_connections import Listener, connect
from kfit.distribute.ring_handshake import MAGIC, NUMBER, PROOF, proof


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(
        Cluster({"worker": ["localhost:1", "localhost:2"]}, Task("worker", 0))
    ) as listener:
        yield listener


def connected(listener: Listener, worker: int = 1) -> tuple[socket.socket, socket.socket]:
    to_next = connect("localhost:1", listener.port, listener.token, worker, 5)
    return listener.accept(5), to_next


def pass_a_message(*connection: socket.socket) -> None:
    connection[0].sendall(b"hello")
    assert connection[1].recv(5) == b"hello"
    for each in connection:
        each.close()


@pytest.fixture
def between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host does not have the name of the Unix socket, and another address."""
    monkeypatch.setattr(neighbours, "_unix_connection", lambda token, deadline: None)
    monkeypatch.setattr(neighbours.sockets, "is_loopback", lambda host: False)


def test_on_one_host_by_a_unix_socket(listener: Listener) -> None:
    connection = connected(listener)
    assert {each.family for each in connection} == {socket.AF_UNIX}
    pass_a_message(*connection)


def test_between_hosts_by_tcp(listener: Listener, between_hosts: None) -> None:
    connection = connected(listener)
    assert {each.family for each in connection} == {socket.AF_INET}
    assert connection[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    pass_a_message(*connection)


def test_strangers_are_sent_away(listener: Listener) -> None:
    strangers = [
        socket.create_connection(("127.0.0.1", listener.port)) for _ in range(3)
    ]  # the last one says nothing
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 64)
    greeting, number = strangers[1].recv(NUMBER), b"n" * NUMBER
    strangers[1].sendall(MAGIC + number + proof(b"caller", listener.token + 1, 1, greeting, number))
    pass_a_message(*connected(listener))
    for stranger in strangers:
        stranger.close()


def test_at_the_limit_of_open_files_it_waits_until_there_are_fewer(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, before = [], len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    def accept(each: socket.socket) -> None:
        attempts.append(each)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with socket.create_connection(("127.0.0.1", listener.port)) as silent:
        while sys.platform == "linux" and len(os.listdir("/proc/self/fd")) < before + 2:
            time.sleep(0.01)  # until the call is taken
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", accept)
            with socket.create_connection(("127.0.0.1", listener.port)):
                time.sleep(0.5)
        assert 0 < len(attempts) < 50
        assert silent.recv(NUMBER)
        assert silent.recv(1) == b""  # who waited longest has made room
    pass_a_message(*connected(listener))


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_strangers_take_no_time_of_the_neighbour(listener: Listener, family: str) -> None:
    """More than the queues hold, before anybody waits for the neighbour; half of them drip."""
    strangers = []
    for _ in range(150):
        stranger = socket.socket(socket.AF_INET if family == "tcp" else socket.AF_UNIX)
        stranger.setblocking(False)
        name = ("127.0.0.1", listener.port)
        with contextlib.suppress(BlockingIOError):  # of TCP always, else if the queue is full
            stranger.connect(name if family == "tcp" else neighbours._unix_name(listener.token))
        strangers.append(stranger)
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            for stranger in strangers[::2]:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"K")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    try:
        pass_a_message(*connected(listener))
        assert time.monotonic() - began < 4.0
    finally:
        over.set()
        thread.join(5)
        for stranger in strangers:
            stranger.close()


def test_the_token_alone_is_not_enough_in_a_run_with_a_secret(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = socket.create_connection(("127.0.0.1", listener.port))
    greeting, number = stranger.recv(NUMBER), b"n" * NUMBER
    call = MAGIC + number + proof(b"caller", listener.token, 1, greeting, number)
    monkeypatch.setenv("KFIT_SECRET", "0123456789abcdef")
    stranger.sendall(call)
    assert stranger.recv(1) == b""
    pass_a_message(*connected(listener))


def test_a_proof_of_another_connection_is_worth_nothing(
    listener: Listener, between_hosts: None
) -> None:
    """A stranger between two workers shows the listener what the caller has told the stranger."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def listen_in() -> None:
            with between.accept()[0] as caller:
                caller.sendall(b"g" * NUMBER)
                heard.append(caller.recv(1000))
                caller.sendall(b"a" * PROOF)

        thread = threading.Thread(target=listen_in)
        thread.start()
        port = between.getsockname()[1]
        with pytest.raises(ConnectionError, match="does not know the secret of the run"):
            connect("localhost:1", port, listener.token, 1, 5)
        thread.join(5)
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.recv(NUMBER)
        stranger.sendall(heard[0])
        assert stranger.recv(1) == b""
    pass_a_message(*connected(listener))


@pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets of Linux")
def test_on_one_host_nobody_is_called_by_tcp(listener: Listener) -> None:
    """A process of another user may listen at any port, but has no access to the Unix socket."""
    with socket.create_server(("127.0.0.1", 0)) as stranger, pytest.raises(ConnectionRefusedError):
        connect("localhost:1", stranger.getsockname()[1], listener.token + 1, 1, 5)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="becomes another user")
def test_the_unix_socket_is_for_processes_of_the_same_user(listener: Listener) -> None:
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
        "s.settimeout(10); s.connect(chr(0) + sys.argv[1]); sys.exit(len(s.recv(1)))"
    )
    name = neighbours._unix_name(listener.token)[1:]
    done = subprocess.run([sys.executable, "-c", program, name], timeout=30)
    assert done.returncode == 0  # it was closed before anything was said
    pass_a_message(*connected(listener))


@pytest.mark.skipif(not os.path.exists("/proc/net/unix"), reason="Linux shows sockets there")
def test_the_name_of_the_unix_socket_does_not_tell_the_token(listener: Listener) -> None:
    with open("/proc/net/unix") as table:
        names = table.read()
    assert neighbours._unix_name(listener.token)[1:] in names
    assert f"{listener.token:x}" not in names
    assert str(listener.token) not in names


def test_only_the_neighbour_is_let_in(listener: Listener) -> None:
    with pytest.raises(ConnectionError, match="closed the connection"):
        connect("localhost:1", listener.port, listener.token, 2, 5)
    pass_a_message(*connected(listener))


def test_nobody_calls(listener: Listener) -> None:
    with pytest.raises(TimeoutError, match=f"worker 1 did not call port {listener.port}"):
        listener.accept(0.1)


def test_a_door_that_is_closed() -> None:
    with Listener(Cluster({"worker": ["localhost:1"]}, Task("worker", 0))) as listener:
        pass
    with pytest.raises(ConnectionRefusedError):
        connect("localhost:1", listener.port, listener.token, 1, 2)


def test_nothing_is_left_of_a_listener() -> None:
    threads, files = threading.active_count(), os.listdir("/dev/fd")
    with Listener(Cluster({"worker": ["localhost:1"]}, Task("worker", 0))) as listener:
        connection = connect("localhost:1", listener.port, listener.token, 0, 5)
    connection.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/dev/fd")) == len(files)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="options of Linux")
def test_a_cut_in_either_direction_is_found_within_ten_seconds(
    listener: Listener, between_hosts: None
) -> None:
    for connection in connected(listener):
        with connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, times, limit = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
            assert idle + interval * times <= 10  # where nothing is on its way
            assert limit <= 10_000  # where something is
