"""Keeps other hosts away from TensorFlow's server if the whole cluster is on this host.

TensorFlow's gRPC server listens on all network interfaces, whatever its address is, and runs what
any caller sends it, without a password. If all addresses of the cluster are loopback addresses such
as `localhost`, no other host has a reason to call. Linux can then restrict the socket on which the
server listens to the loopback interface, even after the server has begun to listen. Connections
that other hosts made before are shut down. TensorFlow holds Python's lock (the GIL) while it starts
the server and connects the tasks, so nothing can be done earlier.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kfit.cluster.cluster import Cluster, split_address
from kfit.cluster.sockets import is_loopback

_OWN_DESCRIPTORS = "/proc/self/fd"
_WATCH_FOR, _LOOK_EVERY = 3.0, 0.02
"""Seconds for which connections of other hosts are still looked for after the restriction, and
between two looks. The server may take a connection that was made before it a moment after it."""
_OPEN_TO_OTHERS = (
    "kfit: note: TensorFlow's servers of this run listen on all network interfaces, and run "
    "whatever a caller sends them. Let only the hosts of the cluster reach their ports "
    "(docs/security.md)."
)


@contextmanager
def kept_to_this_host(cluster: Cluster) -> Iterator[None]:
    """Context in which TensorFlow starts its server on this task.

    At the end of the context, the sockets that this process has begun to listen on accept
    connections from this host only, if all tasks of the cluster are on this host. Connections that
    other hosts have made meanwhile are shut down. If the tasks are on several hosts, or if the
    operating system does not allow the restriction, the chief prints a note: the network must then
    keep strangers away.

    Args:
        cluster: The cluster, which also tells which of its tasks this process is.
    """
    before = _listening()
    yield
    is_local = all(
        is_loopback(split_address(address)[0])
        for kind in cluster.addresses.values()
        for address in kind
    )
    listeners = _listening() - before
    if is_local and _confine(listeners):
        _shut_down_strangers(listeners)
        threading.Thread(target=_watch, args=(listeners,), daemon=True).start()
    elif cluster.task == cluster.workers[0][0]:
        print(_OPEN_TO_OTHERS, file=sys.stderr, flush=True)


def _watch(listeners: set[int]) -> None:
    """Shuts down the connections of other hosts that the server takes late."""
    end = time.monotonic() + _WATCH_FOR
    while time.monotonic() < end:
        time.sleep(_LOOK_EVERY)
        _shut_down_strangers(listeners)


def _confine(descriptors: set[int]) -> bool:
    """Lets sockets accept connections through the loopback interface only.

    Args:
        descriptors: The file descriptors of sockets of this process.

    Returns:
        Whether it was possible for all of them. It needs Linux, and for some sockets privileges.
    """
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None or not descriptors:
        return False
    try:
        for descriptor in descriptors:
            with _borrowed(descriptor) as listener:
                listener.setsockopt(socket.SOL_SOCKET, option, b"lo\0")
    except OSError:
        return False
    return True


def _listening() -> set[int]:
    """Returns the file descriptors of the TCP sockets on which this process listens."""
    return {number for number, each in _internet_sockets() if _listens(each)}


def _shut_down_strangers(listeners: set[int]) -> None:
    """Shuts down the connections that other hosts have made to sockets of this process.

    Args:
        listeners: The file descriptors of the sockets on which this process listens.
    """
    others, ports = [], set()
    for number, each in _internet_sockets():
        with contextlib.suppress(OSError):
            if _listens(each):
                if number in listeners:
                    ports.add(each.getsockname()[1])
            elif not is_loopback(each.getpeername()[0].removeprefix("::ffff:")):
                others.append((number, each.getsockname()[1]))
    for number, port in others:
        if port in ports:
            with contextlib.suppress(OSError), _borrowed(number) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _internet_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yields the internet sockets of this process, each to be used before the next is asked for.

    There are none where the system does not list a process's descriptors, as on macOS.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(_OWN_DESCRIPTORS):
            with contextlib.suppress(OSError), _borrowed(int(name)) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), each


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Context with a socket object for a socket of this process, which stays as it is.

    Nothing is duplicated or closed: closing any descriptor of a file would end all locks that the
    program holds on it by `fcntl.lockf`, as SQLite does. The type keeps a default timeout of the
    program (`socket.setdefaulttimeout`) from making the socket non-blocking.

    Raises:
        OSError: If the descriptor is closed, or is no socket.
    """
    each = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=descriptor)
    try:
        yield each
    finally:
        each.detach()
