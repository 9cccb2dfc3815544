"""Sockets between tasks: listening at this task's address, calling a peer, explaining errors."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import struct

from kfit.cluster.cluster import Cluster, ClusterError, split_address


class AddressError(ClusterError):
    """An error that is raised if this task cannot listen at its own address."""


class PortTakenError(AddressError):
    """An error that is raised if a process already listens at this task's address.

    The process may be this one.
    """


def listen(cluster: Cluster, port: int | None = None) -> socket.socket:
    """Opens a socket that listens at this task's address.

    It listens on all network interfaces, or only on loopback if the address is a loopback one.

    Args:
        cluster: The cluster, as seen by this task.
        port: A port to use instead of the address' own; 0 takes a free one.

    Raises:
        PortTakenError: If the port is taken.
        AddressError: If the system refuses for another reason.
    """
    host, own_port = split_address(cluster.address)
    port = own_port if port is None else port
    backlog = 16 + 2 * cluster.num_workers
    try:
        if is_loopback(host):
            if ":" in host:
                return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog)
            numeric = "127.0.0.1" if host.lower() == "localhost" else host
            return socket.create_server((numeric, port), backlog=backlog)
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
        if error.errno == errno.EADDRINUSE:
            kind = PortTakenError
            reason = (
                f"port {port} is taken: another process listens there, or this one has joined the "
                "cluster already; end it (perhaps a task of an earlier run) or choose another "
                "port in `TF_CONFIG`, on all tasks"
            )
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs privileges; choose one from 1024 up in `TF_CONFIG`"
        else:
            reason = f"the system says: {error.strerror}"
        raise kind(
            f"{cluster.task} cannot listen at its own address {cluster.address}: {reason}"
        ) from None


def call(address: str, timeout: float, port: int | None = None) -> socket.socket:
    """Opens a connection to a task.

    Args:
        address: The `host:port` of the task.
        timeout: Seconds for connecting, and for each later operation on the connection.
        port: A port to use instead of the address' own.

    Raises:
        OSError: If the connection fails; `explain` describes the error.
    """
    host, own_port = split_address(address)
    called = host, own_port if port is None else port
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
    """Explains why a call to another task has failed.

    Args:
        error: The error of the call.
        host: The host that was called.

    Returns:
        The reason; and whether it means that nothing listens at the address.
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
    """Returns a hash that is equal on tasks that were given the same addresses, in the same order.

    The evaluator is left out: it is not part of the training cluster, and tasks need not list it.
    """
    listed = {kind: cluster.addresses.get(kind, ()) for kind in ("chief", "worker", "ps")}
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is a loopback one, which other hosts cannot reach."""
    return host.lower() == "localhost" or host == "::1" or host.startswith("127.")
