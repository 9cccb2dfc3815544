"""Connects each worker of the ring with the worker before it and with the next worker.

In the ring, the workers sum arrays over sockets (see `Ring`): each one sends to the next worker.
"""

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
# Seconds that a caller may take to identify itself; a neighbour does so at once.
_HELLO_LIMIT = 1.0
_UNIX_BUFFER = 4 << 20
"""The buffer size in bytes of Unix sockets. Each time that the buffer is full, two system calls are
needed."""
# Seconds of TCP keepalive. A host that was cut off or lost power sends nothing: the system probes
# it after 3 s of silence, and closes the connection within 10 s. The operating system of the peer
# answers the probes, so a peer process that is stopped, or busy for hours, stays connected.
_ASK_AFTER, _ASK_EVERY, _ASK_TIMES, _GIVE_UP_AFTER = 3, 2, 3, 9


class Listener:
    """Waits for the connection from the worker before this one in the ring.

    That worker connects by a Unix socket if it is on the same Linux host, and otherwise by TCP. A
    listener is a context manager: at the end of the context it stops listening, but a connection
    that it has accepted stays open.

    Args:
        cluster: The cluster. The listener uses the host in this task's (process's) address, and a
            port of its own.

    Attributes:
        port: The TCP port, which the operating system has chosen.
        token: A random number from 1 to 2^62. The other worker must send it, so that connections
            from strangers can be refused.

    Raises:
        ClusterError: If the operating system gives no port.
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
        """Waits until the expected worker has connected, and returns the connection.

        A connection that does not begin with the token and the index of that worker is closed.

        Args:
            worker: The index of the expected worker.
            timeout: Seconds to wait.

        Raises:
            OSError: If the worker does not connect in time.
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
    """Connects this worker to the next worker in the ring.

    On Linux a Unix socket is tried first, which works if both workers are on one host. If it fails,
    the workers are connected by TCP.

    Args:
        address: The `host:port` of the next worker, as the cluster lists it. Only the host is used.
        port: The port of the next worker's `Listener`.
        token: The token of that `Listener`, which refuses connections that do not send it.
        worker: The index of this worker, which is sent with the token.
        timeout: Seconds to wait for the connection.

    Returns:
        The connection. Its socket timeout is still `timeout`.

    Raises:
        OSError: If the next worker cannot be reached.
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
    """Returns the name of the Unix socket of the `Listener` with this token.

    The name is in Linux's abstract namespace: it is not a file, and it is free again when the
    process ends.
    """
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
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size and (part := connection.recv(size - len(content))):
        content += part
    return content
