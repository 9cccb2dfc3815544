"""Tasks meet: each listens at its own address, and calls the others at theirs.

The protocol is one line each way on a connection of its own: a magic word and a JSON object. The
caller speaks first, and hangs up when it has read the answer. What tasks say, when they call again
and what they make of the answers is up to a subclass of `Meeting`.
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

# Seconds that one connection may take; many times what a slow network needs.
PATIENCE = 3.0
# Seconds between two calls to a task: few at first, then more.
_SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Message:
    """What a task says, the same in both directions.

    A subclass is a dataclass of texts, numbers, lists, dictionaries and such dataclasses.
    """

    magic: ClassVar[bytes]

    def encode(self) -> bytes:
        """Returns the line to send."""
        return self.magic + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls: type[M], line: bytes) -> M | None:
        """Reads a line; None when it is no message of this kind."""
        if not line.startswith(cls.magic) or not line.endswith(b"\n"):
            return None
        try:
            message: M = _checked(cls, json.loads(line[len(cls.magic) :]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return message


@dataclass
class Peer:
    """What is known of one task.

    Args:
        task: Its name, such as "worker 0".
        address: Where it should be.
        trouble: Why the last call to it that failed did so.
        stage: How far the latest call has come, as the trouble there is if it stays there.
    """

    task: str
    address: str
    trouble: str = field(default="", kw_only=True)
    stage: str = field(default="it was not called yet", kw_only=True)

    @property
    def problem(self) -> str:
        """Why it has not answered."""
        return self.trouble or self.stage


M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=Peer)


class Meeting(ABC, Generic[P, M]):
    """What a task tells the others, and what it makes of what they tell.

    Its methods are called from many threads; `changed` is held while what is known changes, and
    notified then. `over` says that this task has left.
    """

    message_type: type[M]

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over = False

    @abstractmethod
    def message(self, receiver: str) -> M:
        """Returns what to say to `receiver` now."""

    @abstractmethod
    def called(self, message: M, host: str) -> M:
        """Takes in what a process that called us from `host` said, and returns the answer."""

    def heard(self, message: M) -> None:
        """Takes in that the process that said `message` has read our answer."""

    @abstractmethod
    def answered(self, peer: P, sent: M, reply: M) -> None:
        """Takes in what the process at the address of `peer` replied to `sent`.

        It waits for us to hang up meanwhile.
        """

    @abstractmethod
    def failed(self, peer: P, trouble: str, *, closed: bool) -> None:
        """Takes in that a call came to nothing; `closed` says that none of ours listens there."""

    @abstractmethod
    def pause(self, peer: P, seconds: float) -> bool:
        """Waits before `peer` is called again; False when it need not be."""

    def who_answers(self, said: bytes) -> str:
        """Says what may be at an address where `said` was the answer, which is no message."""
        there = "something other than kfit answers there"
        return there if said else "it closed the connection without an answer"

    @contextmanager
    def under_way(
        self, listener: socket.socket | None, peers: Iterable[P]
    ) -> Iterator[list[threading.Thread]]:
        """Answers calls, and calls the peers, until the block is left.

        Args:
            listener: The socket that others call; None where this task cannot be called.
            peers: The tasks to call.

        Yields:
            The threads that call, which end soon after the block has.
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
                # Nobody is in accept() any more, so this really frees the port.
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
                # Each call looks it up; this one tells how far the first call comes.
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
            # Where a peer has left, the server that it starts next may take the call.
            self.failed(peer, trouble, closed=closed or connected)


class _Server(socketserver.ThreadingTCPServer):
    """Answers who calls, each in a thread of its own."""

    # A stranger that connects and says nothing must not keep us from leaving.
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, meeting: Meeting[Any, Any]) -> None:
        super().__init__(("", 0), _Answer, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.meeting = meeting

    def handle_error(self, request: object, client_address: object) -> None:
        """Overlooks callers that hang up or send garbage; they are not part of the cluster."""


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
        # The caller hangs up first: the side that does keeps the connection for a minute.
        self.rfile.read(1)
        meeting.heard(message)


def _read_line(connection: socket.socket, magic: bytes) -> bytes:
    """Reads one line, or as much as shows that what speaks there is none of ours."""
    said = b""
    while len(said) <= _LONGEST_LINE and not said.endswith(b"\n"):
        try:
            more = connection.recv(_LONGEST_LINE)
        except ConnectionError:
            break
        if not more:
            break
        said += more
        if not magic.startswith(said[: len(magic)]):
            break
    return said


def _checked(kind: type[Any], value: Any) -> Any:
    """Returns what JSON has for a value of a type as that type.

    Raises:
        TypeError: If it is of another type.
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
