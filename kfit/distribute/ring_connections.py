"""Connects each worker of the ring with the worker before it and with the next worker.

In the ring, the workers sum arrays over sockets (see `Ring`): each one sends to the next worker.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
import sys
import time
from contextlib import ExitStack, suppress
from typing import cast

from kfit.cluster import sockets
from kfit.cluster.cluster import Cluster
from kfit.cluster.secret import secret_of_run
from kfit.cluster.signing import signature

_MAGIC = b"KFITRING"
# Seconds that a caller may take to identify itself; a neighbour does so at once.
_HELLO_LIMIT = 1.0
_MOST_CALLERS = 64
"""The number of callers that may identify themselves at the same time. Further ones wait."""
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
        token: A random number from 1 to 2^62. The other worker must prove that it knows this number
            and the secret of the run, so that connections from strangers can be refused.

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
        for listener in self._listeners:
            # A caller may have gone between the report that it is there and `accept`.
            listener.setblocking(False)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()

    def accept(self, worker: int, timeout: float) -> socket.socket:
        """Waits until the expected worker has connected, and returns the connection.

        Callers identify themselves at the same time, so a stranger that says nothing does not keep
        the expected worker waiting. A caller whose first bytes are not the proof of the expected
        worker is disconnected.

        Args:
            worker: The index of the expected worker.
            timeout: Seconds to wait.

        Raises:
            OSError: If the worker does not connect in time.
        """
        deadline = time.monotonic() + timeout
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            callers = _Callers(_proof(self.token, worker), selector)
            stack.callback(callers.close)
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, _HELLO_LIMIT)):
                    if key.fileobj in self._listeners:
                        with suppress(OSError):
                            callers.add(key.fileobj.accept()[0])
                    elif (found := callers.read(cast(socket.socket, key.fileobj))) is not None:
                        return _tuned(found)
                callers.drop_slow_ones()
        raise TimeoutError(f"worker {worker} did not call port {self.port} within {timeout:g} s")


class _Callers:
    """The callers of a listener that have not identified themselves yet.

    Args:
        expected: The first bytes of the expected caller.
        selector: The selector to which the callers' sockets are added.
    """

    def __init__(self, expected: bytes, selector: selectors.BaseSelector) -> None:
        self._expected = expected
        self._selector = selector
        self._received: dict[socket.socket, bytes] = {}
        self._deadlines: dict[socket.socket, float] = {}

    def add(self, caller: socket.socket) -> None:
        """Adds a caller; if there are too many, the one that has waited longest is dropped."""
        if len(self._received) >= _MOST_CALLERS:
            self._drop(next(iter(self._received)))
        caller.setblocking(False)
        self._received[caller] = b""
        self._deadlines[caller] = time.monotonic() + _HELLO_LIMIT
        self._selector.register(caller, selectors.EVENT_READ)

    def read(self, caller: socket.socket) -> socket.socket | None:
        """Reads from a caller, and returns its connection if it is the expected one; else None."""
        if caller not in self._received:
            return None
        received = self._received[caller]
        try:
            part = caller.recv(len(self._expected) - len(received))
        except OSError:
            part = b""
        self._received[caller] = received = received + part
        if hmac.compare_digest(received, self._expected):
            self._forget(caller)
            caller.setblocking(True)
            return caller
        if not part or len(received) == len(self._expected):
            self._drop(caller)
        return None

    def drop_slow_ones(self) -> None:
        """Disconnects the callers that have not identified themselves in time."""
        now = time.monotonic()
        for caller in [each for each, end in self._deadlines.items() if end < now]:
            self._drop(caller)

    def close(self) -> None:
        """Disconnects all callers that have not identified themselves."""
        for caller in self._received:
            caller.close()

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._received[caller], self._deadlines[caller]


def connect(address: str, port: int, token: int, worker: int, timeout: float) -> socket.socket:
    """Connects this worker to the next worker in the ring.

    On Linux a Unix socket is tried first, which works if both workers are on one host. If it fails,
    the workers are connected by TCP.

    Args:
        address: The `host:port` of the next worker, as the cluster lists it. Only the host is used.
        port: The port of the next worker's `Listener`.
        token: The token of that `Listener`, which refuses callers that do not know it.
        worker: The index of this worker, which is a part of the proof that it knows the token.
        timeout: Seconds to wait for the connection.

    Returns:
        The connection. Its socket timeout is still `timeout`.

    Raises:
        OSError: If the next worker cannot be reached.
    """
    proof = _proof(token, worker)
    deadline = time.monotonic() + timeout
    if sys.platform == "linux":
        unix = socket.socket(socket.AF_UNIX)
        try:
            unix.settimeout(timeout)
            unix.connect(_unix_name(token))
            unix.sendall(proof)
            return _tuned(unix)
        except OSError:  # another host, or another container of this one
            unix.close()
    connection = sockets.call(address, max(_HELLO_LIMIT, deadline - time.monotonic()), port)
    try:
        connection.sendall(proof)
        connection.settimeout(timeout)
        return _tuned(connection)
    except BaseException:
        connection.close()
        raise


def _proof(token: int, worker: int) -> bytes:
    """Returns the bytes by which a worker proves that it belongs to the run.

    Args:
        token: The token of the `Listener` that the worker calls.
        worker: The index of the worker.
    """
    return _MAGIC + signature(secret_of_run(), struct.pack("!qI", token, worker))


def _unix_name(token: int) -> str:
    """Returns the name of the Unix socket of the `Listener` with this token.

    The name is in Linux's abstract namespace: it is not a file, and it is free again when the
    process ends. All users of the host can see the name, so it does not tell the token.
    """
    return f"\0kfit-{signature(b'socket', struct.pack('!q', token)).hex()}"


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
