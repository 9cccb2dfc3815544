"""Connections between the neighbours of a ring: how a worker is reached, and by whom."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import sys
import time

from kfit.cluster import sockets
from kfit.cluster.cluster import Cluster

_HELLO = struct.Struct("!8sqI")
_MAGIC = b"KFITRING"
# Seconds that who comes in may take to say who it is: a neighbour says it at once.
_HELLO_LIMIT = 1.0
_UNIX_BUFFER = 4 << 20
"""Bytes that a Unix socket holds, if the system lets it: each fill costs two system calls."""
# Seconds. A host that is cut off or has lost power says nothing: the system asks it after 3 s of
# silence, and gives the connection up by 10. The systems talk of it, not the programs: a peer that
# is stopped, or busy for hours, is there all the same.
_ASK_AFTER, _ASK_EVERY, _ASK_TIMES, _GIVE_UP_AFTER = 3, 2, 3, 9


class Listener:
    """Where the worker before this one comes in: a port of its own and, on Linux, a Unix socket.

    Only who knows the token is let in. Use it as a context manager, which closes it.

    Args:
        cluster: The cluster, as this task sees it; it listens on the host of its own address.

    Attributes:
        port: The TCP port.
        token: What a caller must know, from 1 to 2^62.

    Raises:
        ClusterError: If the system gives no port.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.token = 1 + secrets.randbits(62)
        self._listeners = [sockets.listen(cluster, port=0)]
        self.port = int(self._listeners[0].getsockname()[1])
        if sys.platform == "linux":
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(_unix_name(self.token))
            unix.listen()
            self._listeners.append(unix)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()

    def accept(self, worker: int, timeout: float) -> socket.socket:
        """Waits for a worker to come in.

        Args:
            worker: Its index; others are sent away.
            timeout: Seconds to wait.

        Raises:
            OSError: If it does not come.
        """
        expected = _HELLO.pack(_MAGIC, self.token, worker)
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            for listener in select.select(self._listeners, [], [], left)[0]:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError):
                    connection.settimeout(_HELLO_LIMIT)
                    if _read(connection, len(expected)) == expected:
                        return _tuned(connection)
                connection.close()
        raise TimeoutError(f"worker {worker} did not call port {self.port} within {timeout:g} s")


def connect(address: str, port: int, token: int, worker: int, timeout: float) -> socket.socket:
    """Connects to another worker: by its Unix socket where both share a host, else by TCP.

    Args:
        address: Its address in the cluster, whose host is called.
        port: The port of its listener.
        token: The token of its listener.
        worker: The index of this worker.
        timeout: Seconds that it may take.

    Raises:
        OSError: If it cannot be reached.
    """
    hello = _HELLO.pack(_MAGIC, token, worker)
    if sys.platform == "linux":
        unix = socket.socket(socket.AF_UNIX)
        try:
            unix.settimeout(timeout)
            unix.connect(_unix_name(token))
            unix.sendall(hello)
            return _tuned(unix)
        except OSError:  # another host, or another container of this one
            unix.close()
    connection = sockets.call(address, timeout, port)
    connection.sendall(hello)
    return _tuned(connection)


def _unix_name(token: int) -> str:
    """An abstract name, which is gone with its process and leaves no file."""
    return f"\0kfit-{token:x}"


def _tuned(connection: socket.socket) -> socket.socket:
    if connection.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _UNIX_BUFFER)
        return connection
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _ASK_AFTER),
        ("TCP_KEEPINTVL", _ASK_EVERY),
        ("TCP_KEEPCNT", _ASK_TIMES),
        ("TCP_USER_TIMEOUT", _GIVE_UP_AFTER * 1000),
    ):
        if hasattr(socket, name):  # what the system has
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size and (part := connection.recv(size - len(content))):
        content += part
    return content
