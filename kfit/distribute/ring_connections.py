"""Connects each worker of the ring with the worker before it and with the next worker.

In the ring, the workers sum arrays over sockets (see `Ring`): each one sends to the next worker.
"""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import cast

from kfit.cluster import sockets
from kfit.cluster.cluster import Cluster, split_address
from kfit.cluster.signing import signature
from kfit.distribute.ring_handshake import (
    CALL,
    answer_to,
    introduce,
    is_of_own_user,
    random_number,
)

# Seconds that a caller may take to identify itself; a neighbour does so at once.
_HELLO_LIMIT = 1.0
_MOST_CALLERS = 64
"""The number of callers that may identify themselves at the same time. Further ones wait."""
_RETRY_EVERY = 0.02
"""Seconds between two calls of a Unix socket at which too many callers wait, and between two
attempts to take a call where no file can be opened."""
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
    thread takes all calls from the beginning, so that strangers cannot fill the queues in which
    callers wait. A listener is a context manager: at the end of the context it stops listening, but
    a connection that `accept` has returned stays open.

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
        self.token = 1 + secrets.randbits(62)
        self._expected = (cluster.worker_index - 1) % cluster.num_workers
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
        self._found: socket.socket | None = None
        self._is_over = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._take_calls, daemon=True)
        self._thread.start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._woken.close()
        if self._found is not None:
            self._found.close()

    def accept(self, timeout: float) -> socket.socket:
        """Waits until the expected worker has connected, and returns the connection.

        Callers identify themselves at the same time, so a stranger that says nothing does not keep
        the expected worker waiting. A caller that does not prove that it is the expected worker is
        disconnected, as is a process of another user that calls the Unix socket.

        Args:
            timeout: Seconds to wait.

        Raises:
            OSError: If the worker does not connect in time.
        """
        if not self._is_over.wait(timeout) or self._found is None:
            raise TimeoutError(
                f"worker {self._expected} did not call port {self.port} within {timeout:g} s"
            )
        found, self._found = self._found, None
        return _tuned(found)

    def _take_calls(self) -> None:
        """Takes calls, in a thread, until the expected worker has called or the context ends."""
        with selectors.DefaultSelector() as selector:
            callers = _Callers(self.token, self._expected, selector)
            for waiting in (*self._listeners, self._woken):
                selector.register(waiting, selectors.EVENT_READ)
            try:
                self._found = self._call_of_neighbour(callers, selector)
            finally:
                callers.close()
                for listener in self._listeners:
                    listener.close()
                self._is_over.set()

    def _call_of_neighbour(
        self, callers: _Callers, selector: selectors.BaseSelector
    ) -> socket.socket | None:
        while True:
            for key, _ in selector.select(_HELLO_LIMIT):
                if key.fileobj is self._woken:
                    return None
                if key.fileobj in self._listeners:
                    callers.take(key.fileobj)
                elif (found := callers.read(cast(socket.socket, key.fileobj))) is not None:
                    return found
            callers.drop_slow_ones()


class _Callers:
    """The callers of a listener that have not identified themselves yet.

    Args:
        token: The token of the listener.
        expected: The index of the worker that is expected.
        selector: The selector to which the callers' sockets are added.
    """

    def __init__(self, token: int, expected: int, selector: selectors.BaseSelector) -> None:
        self._token = token
        self._expected = expected
        self._selector = selector
        self._greetings: dict[socket.socket, bytes] = {}
        self._received: dict[socket.socket, bytes] = {}
        self._deadlines: dict[socket.socket, float] = {}

    def take(self, listener: socket.socket) -> None:
        """Adds the callers that wait at a listener, but not an endless number of them.

        If the process has too many open files, the caller that waits longest is dropped.
        """
        for _ in range(_MOST_CALLERS):
            try:
                caller = listener.accept()[0]
            except BlockingIOError:  # none waits any more
                return
            except OSError:  # the caller has gone, or no file can be opened
                if self._received:
                    self._drop(next(iter(self._received)))
                time.sleep(_RETRY_EVERY)
                return
            with suppress(OSError):
                self.add(caller)

    def add(self, caller: socket.socket) -> None:
        """Adds and greets a caller; if there are too many, the one that waits longest is dropped.

        Raises:
            OSError: If the caller has gone already.
        """
        if not is_of_own_user(caller):
            caller.close()
            return
        if len(self._received) >= _MOST_CALLERS:
            self._drop(next(iter(self._received)))
        caller.setblocking(False)
        greeting = random_number()
        try:
            caller.sendall(greeting)
        except OSError:
            caller.close()
            raise
        self._greetings[caller] = greeting
        self._received[caller] = b""
        self._deadlines[caller] = time.monotonic() + _HELLO_LIMIT
        self._selector.register(caller, selectors.EVENT_READ)

    def read(self, caller: socket.socket) -> socket.socket | None:
        """Reads from a caller, and returns its connection if it is the expected one; else None."""
        if caller not in self._received:
            return None
        received = self._received[caller]
        try:
            part = caller.recv(CALL - len(received))
        except OSError:
            part = b""
        self._received[caller] = received = received + part
        if len(received) == CALL:
            answer = answer_to(received, self._token, self._expected, self._greetings[caller])
            if answer is not None:
                with suppress(OSError):
                    caller.sendall(answer)
                    self._forget(caller)
                    caller.setblocking(True)
                    return caller
        if not part or len(received) == CALL:
            self._drop(caller)
        return None

    def drop_slow_ones(self) -> None:
        """Disconnects the callers that have not identified themselves in time."""
        now = time.monotonic()
        for caller in [each for each, end in self._deadlines.items() if end < now]:
            self._drop(caller)

    def close(self) -> None:
        """Disconnects all callers that have not identified themselves."""
        for caller in [*self._received]:
            self._drop(caller)

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._greetings[caller], self._received[caller], self._deadlines[caller]


def connect(address: str, port: int, token: int, worker: int, timeout: float) -> socket.socket:
    """Connects this worker to the next worker in the ring.

    On Linux a Unix socket is used if both workers are on one host. Otherwise the workers are
    connected by TCP. Both workers prove to each other that they belong to the run.

    Args:
        address: The `host:port` of the next worker, as the cluster lists it. Only the host is used.
        port: The port of the next worker's `Listener`.
        token: The token of that `Listener`, which refuses callers that do not know it.
        worker: The index of this worker, which is a part of the proof that it knows the token.
        timeout: Seconds to wait for the connection.

    Returns:
        The connection. Its socket timeout is still `timeout`.

    Raises:
        OSError: If the next worker cannot be reached, or who answers is not this worker.
    """
    deadline = time.monotonic() + timeout
    connection = _unix_connection(token, deadline) if sys.platform == "linux" else None
    if connection is None:
        host, _ = split_address(address)
        if sys.platform == "linux" and sockets.is_loopback(host):
            # The next worker is on this host: whoever listens at its TCP port alone is another.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")
        connection = sockets.call(address, max(_HELLO_LIMIT, deadline - time.monotonic()), port)
    try:
        connection.settimeout(max(_HELLO_LIMIT, deadline - time.monotonic()))
        introduce(connection, token, worker)
        connection.settimeout(timeout)
        return _tuned(connection)
    except BaseException:
        connection.close()
        raise


def _unix_connection(token: int, deadline: float) -> socket.socket | None:
    """Connects to a listener on this host by its Unix socket.

    Args:
        token: The token of the listener.
        deadline: The time, by `time.monotonic()`, at which to give up if too many callers wait.

    Returns:
        The connection. None if no process of this user listens there: the next worker is on another
        host, or in another container of this one.
    """
    while True:
        unix = socket.socket(socket.AF_UNIX)
        try:
            unix.settimeout(_HELLO_LIMIT)
            unix.connect(_unix_name(token))
            if is_of_own_user(unix):
                return unix
        except BlockingIOError:  # the queue of callers is full
            if time.monotonic() < deadline:
                unix.close()
                time.sleep(_RETRY_EVERY)
                continue
        except OSError:
            pass
        unix.close()
        return None


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
