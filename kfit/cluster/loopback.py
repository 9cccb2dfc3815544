"""Keeps other hosts away from TensorFlow's server if the whole cluster is on this host.

TensorFlow's gRPC server listens on all network interfaces, whatever its address is, and runs what
any caller sends it, without a password. If all addresses of the cluster are loopback addresses such
as `localhost`, no other host has a reason to call. Linux can then restrict the socket on which the
server listens to the loopback interface, even after the server has begun to listen.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kfit.cluster.cluster import Cluster, split_address
from kfit.cluster.sockets import is_loopback

_OWN_DESCRIPTORS = "/proc/self/fd"
_OPEN_TO_OTHERS = (
    "kfit: note: TensorFlow's servers of this run listen on all network interfaces, and run "
    "whatever a caller sends them. Let only the hosts of the cluster reach their ports "
    "(docs/security.md)."
)


@contextmanager
def kept_to_this_host(cluster: Cluster) -> Iterator[None]:
    """Context in which TensorFlow starts its server on this task.

    At the end of the context, the sockets that this process has begun to listen on accept
    connections from this host only, if all tasks of the cluster are on this host. If they are not,
    or if the operating system does not allow it, the chief prints a note: the network must then
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
    if is_local and _confine(_listening() - before):
        return
    if cluster.task == cluster.workers[0][0]:
        print(_OPEN_TO_OTHERS, file=sys.stderr, flush=True)


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
            with _opened(descriptor) as listener:
                listener.setsockopt(socket.SOL_SOCKET, option, b"lo\0")
    except OSError:
        return False
    return True


def _listening() -> set[int]:
    """Returns the file descriptors of the TCP sockets on which this process listens.

    The result is empty where the system does not list a process's descriptors, as on macOS.
    """
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(_OWN_DESCRIPTORS):
            with contextlib.suppress(OSError), _opened(int(name)) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    found.add(int(name))
    return found


def _opened(descriptor: int) -> socket.socket:
    """Returns a socket object for a descriptor of this process; closing it keeps the descriptor.

    Raises:
        OSError: If the descriptor is closed, or is no socket.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
