"""Callers are answered by one thread, whatever others do."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from kfit.cluster import answering
from kfit.cluster.answering import Answering

SOON = 20.0


class Echo:
    """Says to each caller what it has said, many times; remembers what nobody listened to."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.lines: list[bytes] = []

    def __call__(self, host: str) -> Any:
        assert host == "127.0.0.1"
        line = yield b""
        self.lines.append(line)
        if line == b"fails\n":
            raise KeyError(line)
        while line.endswith(b"\n"):
            line = yield line * self.times
            self.lines.append(line)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as made:
        yield made


def received(connection: socket.socket, wanted: int) -> bytes:
    """Returns so many bytes, or what arrives until the connection ends."""
    got = b""
    with suppress(ConnectionResetError):
        while len(got) < wanted and (part := connection.recv(wanted - len(got))):
            got += part
    return got


def says(port: int, line: bytes, answer: int) -> bytes:
    """Calls, says a line, and returns so many bytes of the answer."""
    with socket.create_connection(("127.0.0.1", port), SOON) as connection:
        connection.sendall(line)
        return received(connection, answer)


def test_a_long_answer_arrives_as_a_whole(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with Answering(listener, Echo(times=1 << 20), SOON, SOON, 100):
        with socket.create_connection(("127.0.0.1", port), SOON) as slow:
            slow.sendall(b"0123456\n")
            # The other one is answered while this one does not read.
            assert len(says(port, b"another\n", 8 << 20)) == 8 << 20
            got = received(slow, 8 << 20)
        assert got == b"0123456\n" * (1 << 20)


def test_what_is_no_line(listener: socket.socket) -> None:
    echo, port = Echo(), listener.getsockname()[1]
    with Answering(listener, echo, SOON, SOON, 10):
        assert says(port, b"x" * 11, 1) == b""
        with socket.create_connection(("127.0.0.1", port), SOON) as connection:
            connection.sendall(b"half")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
        assert says(port, b"fails\n", 1) == b""  # and the thread goes on
        assert says(port, b"a line\n", 7) == b"a line\n"
    assert echo.lines[:4] == [b"x" * 10, b"half", b"fails\n", b"a line\n"]


@pytest.mark.parametrize("drips", [False, True])
def test_many_strangers_take_no_time_of_a_real_caller(
    listener: socket.socket, drips: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(answering, "_MOST_CALLERS", 100)
    port = listener.getsockname()[1]
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with ExitStack() as strangers, Answering(listener, Echo(), SOON, SOON, 100):
        for _ in range(300):
            made = socket.create_connection(("127.0.0.1", port), SOON)
            strangers.enter_context(made)
            if drips:
                with suppress(OSError):
                    made.send(b"K")
        assert threading.active_count() <= threads + 1
        start = time.monotonic()
        assert says(port, b"a line\n", 7) == b"a line\n"
        assert time.monotonic() - start < SOON / 4
        # 300 ends of the strangers, and at most 100 of this task.
        assert len(os.listdir("/proc/self/fd")) < files + 300 + 110
    assert threading.active_count() == threads


def test_who_takes_too_long_is_disconnected(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with (
        Answering(listener, Echo(), 0.2, 0.2, 100),
        socket.create_connection(("127.0.0.1", port), SOON) as dripping,
    ):
        assert dripping.send(b"a") == 1
        assert dripping.recv(1) == b""


def test_at_the_end_a_conversation_is_ended_and_silent_callers_are_left(
    listener: socket.socket,
) -> None:
    port = listener.getsockname()[1]
    files = len(os.listdir("/proc/self/fd"))
    silent = socket.create_connection(("127.0.0.1", port), SOON)
    speaks = socket.create_connection(("127.0.0.1", port), SOON)
    answers = Answering(listener, Echo(), SOON, SOON, 100)
    with answers:
        speaks.sendall(b"first\n")
        assert speaks.recv(100) == b"first\n"
        over = threading.Thread(target=answers.__exit__)
        over.start()
        assert silent.recv(1) == b""
        speaks.sendall(b"second\n")
        assert speaks.recv(100) == b"second\n"
        assert over.is_alive()
        speaks.close()
        over.join(SOON)
        assert not over.is_alive()
    silent.close()
    assert len(os.listdir("/proc/self/fd")) <= files
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free
