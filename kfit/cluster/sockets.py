"""Sockets between the tasks (processes) of a cluster: listening, calling, explaining errors."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import struct

from kfit.cluster.cluster import Cluster, ClusterError, split_address
from kfit.cluster.resolvers import cluster_source

COMPARED = ("chief", "worker", "ps")
"""The types of the tasks whose addresses all tasks of a cluster must have been given alike."""


class AddressError(ClusterError):
    """An error that is raised if this task cannot listen at its own address."""


class PortTakenError(AddressError):
    """An error that is raised if this task's port is taken, perhaps by this process itself."""


def listen(cluster: Cluster, port: int | None = None) -> socket.socket:
    """Opens a socket on which other tasks can connect to this task.

    The socket listens on all network interfaces. But if this task's address is a loopback address,
    such as `localhost`, the socket only listens there.

    Args:
        cluster: The description of the cluster, with the address of this task.
        port: The port to listen on, 0 for any free port; by default the port of the address.

    Raises:
        PortTakenError: If the port is taken.
        AddressError: If the socket cannot be opened for any other reason.
    """
    host, own_port = split_address(cluster.address)
    port = own_port if port is None else port
    backlog = 16 + 2 * cluster.num_workers
    try:
        if is_loopback(host):
            if ":" in host:
                return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog)
            return socket.create_server((_numeric(host), port), backlog=backlog)
        if socket.has_dualstack_ipv6():
            try:
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
                )
            except OSError as error:
                # IPv6 is compiled in but switched off, as in many containers.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
        return socket.create_server(("", port), backlog=backlog)
    except OSError as error:
        kind: type[AddressError] = AddressError
        source = cluster_source() or "the description of the cluster"
        if error.errno == errno.EADDRINUSE:
            kind = PortTakenError
            reason = (
                f"port {port} is taken: another process listens there, or this one has joined the "
                "cluster already, or two tasks have the same index; end it (perhaps a task of an "
                "earlier run), give each task its own index, or choose another port in "
                f"{source}, on all tasks"
            )
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs privileges; choose one from 1024 up in {source}"
        else:
            reason = f"the system says: {error.strerror}"
        raise kind(
            f"{cluster.task} cannot listen at its own address {cluster.address}: {reason}"
        ) from None


def call(address: str, timeout: float, port: int | None = None) -> socket.socket:
    """Connects to another task, and returns the socket of the connection.

    Args:
        address: The `host:port` of the task.
        timeout: How many seconds connecting may take, for each IP address of the host. Each later
            operation on the returned socket has the same limit.
        port: The port to connect to; by default the port in `address`.

    Raises:
        OSError: If the connection fails. `explain` turns this error into a text.
    """
    host, own_port = split_address(address)
    called = _numeric(host), own_port if port is None else port
    connection = socket.create_connection(called, timeout=timeout)
    try:
        if connection.getsockname() == connection.getpeername():
            # A call of a local port on which nothing listens can get that very port as its own and
            # connect to itself. Reset the connection, or the peer finds its port taken.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", True, 0))
            raise ConnectionRefusedError
    except BaseException:
        connection.close()
        raise
    return connection


def explain(error: OSError, host: str) -> tuple[str, bool]:
    """Explains to the user why connecting to another task has failed.

    Args:
        error: The error that `call` raised, or a later operation on its connection.
        host: The host of the other task.

    Returns:
        The reason as a text, and whether the error shows that no task listens at the address now.
    """
    if isinstance(error, socket.gaierror):
        return f"its host name {host!r} cannot be resolved ({error.strerror})", False
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (connection refused)", True
    if isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN:
        return f"the connection broke ({error.strerror})", True
    if isinstance(error, TimeoutError):
        return "no answer (host down, or a firewall drops packets)", False
    return f"it cannot be reached ({error.strerror or error})", False


def digest(cluster: Cluster) -> str:
    """Returns a hash of a cluster's addresses.

    Tasks compare their hashes to find out whether all of them were given the same addresses in the
    same order. The address of an evaluator is left out, since only some of the tasks may list it.
    """
    listed = {kind: cluster.addresses.get(kind, ()) for kind in COMPARED}
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _numeric(host: str) -> str:
    """Returns the host at which a task with this host in its address listens, if it is loopback.

    `localhost` may have two addresses. Tasks listen at the one of IPv4, and must be called there: a
    process of another user may listen at the other one.
    """
    return "127.0.0.1" if host.lower() == "localhost" else host


def is_loopback(host: str) -> bool:
    """Returns whether a host name or IP address, such as `localhost`, always means this host."""
    return host.lower() == "localhost" or host == "::1" or host.startswith("127.")
