"""How tasks exchange messages: each listens at its own address, and calls the others.

A call is one TCP connection, with one line in each direction: a magic word and a JSON object. The
caller sends first, and closes the connection when it has read the answer. A subclass of `Meeting`
defines the messages, when a task is called again, and how answers are handled.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from kfit.cluster import sockets
from kfit.cluster.cluster import split_address

# Seconds that one connection may take: many times what it takes on a slow network.
PATIENCE = 3.0
# Seconds between two calls of the same task. The pauses grow from the shortest to the longest.
_SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Message:
    """A message that one task sends to another; a call and its answer have the same form.

    A subclass is a dataclass whose fields are texts, numbers, lists, dictionaries and dataclasses
    of these. Each line that is sent begins with the class attribute `magic`.
    """

    magic: ClassVar[bytes]

    def encode(self) -> bytes:
        """Returns the line to send."""
        return self.magic + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls: type[M], line: bytes) -> M | None:
        """Decodes a line; returns None if it is not a message of this class."""
        if not line.startswith(cls.magic) or not line.endswith(b"\n"):
            return None
        try:
            message: M = _checked(cls, json.loads(line[len(cls.magic) :]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return message


@dataclass
class Peer:
    """What this task has learned about one other task, its peer.

    Args:
        task: The name of the peer, such as "worker 0".
        address: The peer's `host:port` in the cluster.
        trouble: The reason why the last failed call to the peer has failed; empty if none has
            failed.
        stage: How far the latest call has got, in words that also give the reason if it gets no
            further.
    """

    task: str
    address: str
    trouble: str = field(default="", kw_only=True)
    stage: str = field(default="it was not called yet", kw_only=True)

    @property
    def problem(self) -> str:
        """The reason why the peer has not answered."""
        return self.trouble or self.stage


M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=Peer)


class Meeting(ABC, Generic[P, M]):
    """The calls between this task and its peers.

    A subclass defines the messages and handles them. Its methods are called from many threads.

    Attributes:
        changed: A condition that is held, and notified, whenever the state changes.
        over: Whether this task has stopped calling and answering.
    """

    message_type: type[M]

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over = False

    @abstractmethod
    def message(self, receiver: str) -> M:
        """Returns the message to send to `receiver` now."""

    @abstractmethod
    def called(self, message: M, host: str) -> M:
        """Handles a message that another process has sent in a call, and returns the answer.

        Args:
            message: The message.
            host: The host from which the process has called.
        """

    def on_message(self, message: M) -> None:
        """Called when the process that sent `message` has read this task's answer.

        By default it does nothing.
        """

    @abstractmethod
    def answered(self, peer: P, sent: M, reply: M) -> None:
        """Handles the reply of the process at the address of `peer` to the message `sent`.

        The connection is closed after this method has returned; until then that process waits.
        """

    @abstractmethod
    def failed(self, peer: P, trouble: str, *, closed: bool) -> None:
        """Handles a failed call.

        Args:
            peer: The peer that was called.
            trouble: The reason why the call has failed.
            closed: Whether the failure shows that no other task of kfit listens at the address now.
        """

    @abstractmethod
    def pause(self, peer: P, seconds: float) -> bool:
        """Waits before `peer` is called again; returns False if no more call is needed."""

    def who_answers(self, received: bytes) -> str:
        """Describes a process whose answer to a call is not a message of kfit.

        Args:
            received: The bytes that the process has answered; empty if it sent none.
        """
        there = "something other than kfit answers there"
        return there if received else "it closed the connection without an answer"

    @contextmanager
    def under_way(
        self, listener: socket.socket | None, peers: Iterable[P]
    ) -> Iterator[list[threading.Thread]]:
        """Context in which this task answers calls, and calls the peers.

        Args:
            listener: The socket on which others call; None if this task cannot be called. It is
                closed at the end.
            peers: The tasks to call.

        Yields:
            The threads that call the peers. They end soon after the block.
        """
        server = _Server(listener, self) if listener else None
        if server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        callers = [
            threading.Thread(target=self._call_until_done, args=(peer,), daemon=True)
            for peer in peers
        ]
        for caller in callers:
            caller.start()
        try:
            yield callers
        finally:
            with self.changed:
                self.over = True
                self.changed.notify_all()
            if server:
                server.shutdown()
                # No thread is in accept() any more, so this really frees the port.
                server.server_close()

    def _call_until_done(self, peer: P) -> None:
        pause = _SHORTEST_PAUSE
        self._call(peer)
        while self.pause(peer, pause):
            pause = min(LONGEST_PAUSE, pause * 1.5)
            self._call(peer)

    def _call(self, peer: P) -> None:
        host, port = split_address(peer.address)
        connected = False
        try:
            if not peer.trouble:
                # `sockets.call` looks the name up again. This separate look-up makes it possible to
                # report that the look-up is what does not end.
                peer.stage = (
                    f"the look-up of its host name {host!r} does not end (no name server answers)"
                )
                socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            peer.stage = "no answer (host down, or a firewall drops packets)"
            with sockets.call(peer.address, PATIENCE) as connection:
                connected = True
                peer.stage = "it took the connection and said nothing"
                sent = self.message(peer.task)
                connection.sendall(sent.encode())
                line = _read_line(connection, self.message_type.magic)
                reply = self.message_type.decode(line)
                if reply is None:
                    self.failed(peer, self.who_answers(line), closed=True)
                else:
                    self.answered(peer, sent, reply)
        except OSError as error:
            trouble, closed = sockets.explain(error, host)
            if isinstance(error, TimeoutError):
                trouble = peer.stage
            # If a peer has left, TensorFlow's server, which it starts next, may accept the call.
            self.failed(peer, trouble, closed=closed or connected)


class _Server(socketserver.ThreadingTCPServer):
    """A server that answers the callers of a `Meeting`, each in a thread of its own."""

    # A stranger that connects and sends nothing must not keep this task from leaving.
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, meeting: Meeting[Any, Any]) -> None:
        super().__init__(("", 0), _Answer, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.meeting = meeting

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores callers that hang up or send garbage; they are not part of the cluster."""


class _Answer(socketserver.StreamRequestHandler):
    timeout = PATIENCE
    server: _Server

    def handle(self) -> None:
        meeting = self.server.meeting
        message = meeting.message_type.decode(self.rfile.readline(_LONGEST_LINE))
        if message is None:
            return
        host = str(self.client_address[0]).removeprefix("::ffff:")
        self.wfile.write(meeting.called(message, host).encode())
        # Wait until the caller has closed the connection. On the side that closes first, the
        # system keeps the port busy for a while.
        self.rfile.read(1)
        meeting.on_message(message)


def _read_line(connection: socket.socket, magic: bytes) -> bytes:
    """Reads one line, or enough bytes to see that the sender is not a task of kfit.

    If the connection ends before, it returns what was read until then.
    """
    received = b""
    while len(received) <= _LONGEST_LINE and not received.endswith(b"\n"):
        try:
            more = connection.recv(_LONGEST_LINE)
        except ConnectionError:
            break
        if not more:
            break
        received += more
        if not magic.startswith(received[: len(magic)]):
            break
    return received


def _checked(kind: type[Any], value: Any) -> Any:
    """Converts a decoded JSON value to `kind`, checking its type and those of its parts.

    Raises:
        TypeError: If a value has another type.
        KeyError: If a field is missing.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(value, dict) and is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(*(_checked(types[each.name], value[each.name]) for each in fields(kind)))
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_checked(inner[0], each) for each in value)
    if origin is dict and isinstance(value, dict):
        return {name: _checked(inner[1], each) for name, each in value.items()}
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    raise TypeError(f"{value!r} is no {kind}")
