"""The handshake of two neighbours in the ring: each proves to the other that it belongs to the run.

    listener to caller   a random number
    caller to listener   another random number, and the caller's proof
    listener to caller   the listener's proof

A proof is an HMAC, made with the secret of the run, of the listener's token, the index of the
caller, both random numbers, and the side that proves. So a proof that a stranger has read in one
connection is worth nothing in another.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import sys

from kfit.cluster.secret import secret_of_run
from kfit.cluster.signing import signature

MAGIC = b"KFITRING"
NUMBER = 16
"""The size of a random number in bytes."""
PROOF = 32
"""The size of a proof in bytes."""
CALL = len(MAGIC) + NUMBER + PROOF
"""The size in bytes of what a caller sends."""


def random_number() -> bytes:
    """Returns a random number, with which a listener greets a caller."""
    return secrets.token_bytes(NUMBER)


def proof(side: bytes, token: int, worker: int, greeting: bytes, number: bytes) -> bytes:
    """Returns the bytes by which one side of a connection proves that it belongs to the run.

    Args:
        side: The side that proves: `b"caller"` or `b"listener"`.
        token: The token of the listener.
        worker: The index of the caller among the workers.
        greeting: The random number of the listener.
        number: The random number of the caller.
    """
    content = struct.pack("!qI", token, worker) + greeting + number + side
    return signature(secret_of_run(), content)


def answer_to(call: bytes, token: int, worker: int, greeting: bytes) -> bytes | None:
    """Checks what a caller has sent, and returns the listener's answer.

    Args:
        call: What the caller has sent, `CALL` bytes.
        token: The token of the listener.
        worker: The index of the worker that is expected.
        greeting: The random number that the listener has sent to this caller.

    Returns:
        The answer; None if the caller is not the expected worker.
    """
    number = call[len(MAGIC) : len(MAGIC) + NUMBER]
    expected = MAGIC + number + proof(b"caller", token, worker, greeting, number)
    if not hmac.compare_digest(call, expected):
        return None
    return proof(b"listener", token, worker, greeting, number)


def introduce(connection: socket.socket, token: int, worker: int) -> None:
    """Proves to a listener that this worker belongs to the run, and checks the listener's proof.

    Args:
        connection: The connection to the listener. Its timeout limits each wait.
        token: The token of the listener.
        worker: The index of this worker.

    Raises:
        OSError: If the listener does not answer in time, or does not belong to the run.
    """
    greeting, number = _received(connection, NUMBER), random_number()
    connection.sendall(MAGIC + number + proof(b"caller", token, worker, greeting, number))
    answer = _received(connection, PROOF)
    if not hmac.compare_digest(answer, proof(b"listener", token, worker, greeting, number)):
        raise ConnectionError(None, "who answers there does not know the secret of the run")


def is_of_own_user(connection: socket.socket) -> bool:
    """Returns whether the other side of a Unix socket is a process of the same user (Linux)."""
    if sys.platform != "linux" or connection.family != socket.AF_UNIX:
        return True
    size = struct.calcsize("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", peer)
    return bool(user == os.geteuid())


def _received(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError(None, "it closed the connection")
        received += part
    return received
