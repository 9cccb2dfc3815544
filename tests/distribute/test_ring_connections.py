"""How neighbours are connected, and whom they do not let in."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.distribute import ring_connections as neighbours
from kfit.distribute.ring_connections import Listener, connect


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(
        Cluster({"worker": ["localhost:1", "localhost:2"]}, Task("worker", 0))
    ) as listener:
        yield listener


def connected(listener: Listener, worker: int = 1) -> tuple[socket.socket, socket.socket]:
    entered: list[socket.socket] = []
    thread = threading.Thread(
        target=lambda: entered.append(
            connect("localhost:1", listener.port, listener.token, worker, 5)
        )
    )
    thread.start()
    accepted = listener.accept(1, 5)
    thread.join(5)
    return accepted, entered[0]


def pass_a_message(*connection: socket.socket) -> None:
    connection[0].sendall(b"hello")
    assert connection[1].recv(5) == b"hello"
    for each in connection:
        each.close()


def test_on_one_host_by_a_unix_socket(listener: Listener) -> None:
    connection = connected(listener)
    assert {each.family for each in connection} == {socket.AF_UNIX}
    pass_a_message(*connection)


def test_between_hosts_by_tcp(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another host does not have the name.
    monkeypatch.setattr(neighbours, "_unix_name", lambda token: "\0kfit-elsewhere")
    connection = connected(listener)
    assert {each.family for each in connection} == {socket.AF_INET}
    assert connection[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    pass_a_message(*connection)


def test_strangers_are_sent_away(listener: Listener) -> None:
    strangers = [
        socket.create_connection(("localhost", listener.port)) for _ in range(3)
    ]  # the last one says nothing
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 64)
    strangers[1].sendall(neighbours._proof(listener.token + 1, 1))
    pass_a_message(*connected(listener))
    for stranger in strangers:
        stranger.close()


def test_silent_and_dripping_strangers_take_no_time_of_the_neighbour(listener: Listener) -> None:
    strangers = [socket.create_connection(("localhost", listener.port)) for _ in range(16)]
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
    stranger = connect("localhost:1", listener.port, listener.token, 1, 5)
    monkeypatch.setenv("KFIT_SECRET", "0123456789abcdef")
    with pytest.raises(TimeoutError, match="worker 1"):
        listener.accept(1, 0.5)
    stranger.close()
    pass_a_message(*connected(listener))


@pytest.mark.skipif(not os.path.exists("/proc/net/unix"), reason="Linux shows sockets there")
def test_the_name_of_the_unix_socket_does_not_tell_the_token(listener: Listener) -> None:
    with open("/proc/net/unix") as table:
        names = table.read()
    assert neighbours._unix_name(listener.token)[1:] in names
    assert f"{listener.token:x}" not in names
    assert str(listener.token) not in names


def test_only_the_neighbour_is_let_in(listener: Listener) -> None:
    other = connect("localhost:1", listener.port, listener.token, 2, 5)
    with pytest.raises(TimeoutError, match="worker 1"):
        listener.accept(1, 0.5)
    other.close()


def test_nobody_calls(listener: Listener) -> None:
    with pytest.raises(TimeoutError, match=f"worker 1 did not call port {listener.port}"):
        listener.accept(1, 0.1)


def test_a_door_that_is_closed() -> None:
    with Listener(Cluster({"worker": ["localhost:1"]}, Task("worker", 0))) as listener:
        pass
    with pytest.raises(ConnectionRefusedError):
        connect("localhost:1", listener.port, listener.token, 1, 2)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="options of Linux")
def test_a_cut_in_either_direction_is_found_within_ten_seconds(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_unix_name", lambda token: "\0kfit-elsewhere")
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
