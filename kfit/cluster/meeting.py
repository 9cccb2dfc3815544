"""How the tasks (processes) of a cluster exchange messages before TensorFlow connects them.

Each task listens at its own address, and calls every other task. A call is one TCP connection, with
two lines in each direction. First the caller and then the other task send a greeting: a magic word
and a random number. Then the caller sends a message, and the other task answers it: a magic word, a
random number, a signature and a JSON object. The caller closes the connection when it has read the
answer. A subclass of `Meeting` defines the messages, when a task is called again, and how answers
are handled. The rendezvous of workers and `kfit doctor` are such meetings.

The signature is made with the secret of the run (`secret.py`). A message with another signature is
dropped, whether a stranger has sent it or a task that was given another secret. What is signed
includes the line that the other task has sent before, with its random number. So a stranger cannot
use a message again that it has read in another connection.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

from kfit.cluster import sockets
from kfit.cluster.answering import Answering, Conversation
from kfit.cluster.cluster import split_address
from kfit.cluster.secret import secret_of_run
from kfit.cluster.signing import signature

# Seconds to wait for each line of a connection: many times what it takes on a slow network.
PATIENCE = 3.0
# Seconds between two calls of the same task. The pauses grow from the shortest to the longest.
_SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
_LONGEST_LINE = 1 << 16
OTHER_SECRET = (
    "its messages are not signed with the secret of this run; give all tasks the same KFIT_SECRET"
)
"""The reason why the message of another task of kfit was dropped, for an error message."""


@dataclass(frozen=True)
class Message:
    """The base class of messages that one task sends to another, as a line of JSON text.

    A subclass is a dataclass whose fields are texts, numbers, lists, dictionaries and dataclasses
    of these. A question and its answer are messages of the same class. The line that is sent begins
    with the class attribute `magic`, by which the receiver recognizes the class. A random number
    and the signature follow, in hexadecimal digits, and then the JSON text.

    The signature is of all these, and of the line that the other task has sent before.
    """

    magic: ClassVar[bytes]

    def encode(self, secret: bytes, answers: bytes) -> bytes:
        """Returns the message as the line of bytes that is sent.

        Args:
            secret: The secret of the run, with which the message is signed.
            answers: The line that the other task has sent before: its greeting, or its question.
        """
        return self.signed(json.dumps(asdict(self)).encode(), secret, answers)

    @classmethod
    def signed(cls, content: bytes, secret: bytes, answers: bytes) -> bytes:
        """Returns the line that is sent for the JSON text of a message."""
        head = cls.magic + _random_digits() + b" "
        return b"%b%b %b\n" % (head, _digits(secret, head + content + answers), content)

    @classmethod
    def greeting(cls) -> bytes:
        """Returns the line with which each side of a connection begins."""
        return cls.magic + _random_digits() + b"\n"

    @classmethod
    def decode(cls: type[M], line: bytes, secret: bytes, answers: bytes) -> M | None:
        """Returns the message in a received line.

        Args:
            line: The line.
            secret: The secret of the run, with which the message must be signed.
            answers: The line that this task has sent before: its greeting, or its question.

        Returns:
            The message; None if the line is no message of this class, or is not signed with the
            secret as an answer to that line.
        """
        if not line.startswith(cls.magic) or not line.endswith(b"\n"):
            return None
        number, _, rest = line[len(cls.magic) : -1].partition(b" ")
        digits, _, content = rest.partition(b" ")
        whole = cls.magic + number + b" " + content + answers
        if not hmac.compare_digest(_digits(secret, whole), digits):
            return None
        try:
            message: M = _checked(cls, json.loads(content))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return message


def _random_digits() -> bytes:
    return secrets.token_hex(16).encode()


def _digits(secret: bytes, content: bytes) -> bytes:
    return signature(secret, content).hex().encode()


@dataclass
class Peer:
    """What this task knows about one of the other tasks, which are called its peers.

    Args:
        task: The name of the peer, such as "worker 0".
        address: The peer's `host:port`.
        trouble: Why the last failed call to the peer has failed; empty if none has failed.
        stage: The text for an error message if the latest call gets no further, such as "no
            answer". It is replaced as soon as the call gets further.
    """

    task: str
    address: str
    trouble: str = field(default="", kw_only=True)
    stage: str = field(default="it was not called yet", kw_only=True)

    @property
    def problem(self) -> str:
        """The reason why the peer has not answered, as a text for an error message."""
        return self.trouble or self.stage


M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=Peer)


class Meeting(ABC, Generic[P, M]):
    """An exchange of messages between this task and its peers, the other tasks of the cluster.

    This base class opens the connections: it calls each peer, again and again, each in a thread of
    its own, and answers the calls of the peers in one more. A subclass defines the messages, and
    how they are handled. The methods of the subclass are called from all these threads.

    Attributes:
        message_type: The class of the messages, which a subclass sets.
        changed: A condition variable. A thread holds it while it changes the state of the meeting,
            and then notifies the threads that wait for a change.
        over: Whether this task has stopped calling and answering.
        secret: The secret of the run, with which messages are signed; empty if there is none.

    Raises:
        ClusterError: If the secret is too short.
    """

    message_type: type[M]

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over = False
        self.secret = secret_of_run()

    @abstractmethod
    def message(self, receiver: str) -> M:
        """Returns the message to send now to the task with the name `receiver`."""

    @abstractmethod
    def called(self, message: M, host: str) -> M:
        """Handles the message of another process that calls this task, and returns the answer.

        Args:
            message: The message of the caller.
            host: The host from which the caller has connected.
        """

    def dropped(self, host: str, received: bytes) -> None:
        """Handles a call that was no valid message, and was not answered; by default does nothing.

        Args:
            host: The host from which the caller has connected.
            received: What the caller has sent; it may be incomplete.
        """

    def on_message(self, message: M) -> None:
        """Handles a caller's message after the caller has read the answer; by default does nothing.

        Args:
            message: The message of the caller, which `called` has answered.
        """

    @abstractmethod
    def answered(self, peer: P, sent: M, reply: M) -> None:
        """Handles the answer to a call that this task has made.

        The connection is closed after this method has returned. Until then the other side waits.

        Args:
            peer: The peer that was called. By mistake, a different task may have answered at the
                peer's address.
            sent: The message that this task has sent.
            reply: The message that was received in answer.
        """

    @abstractmethod
    def failed(self, peer: P, trouble: str, *, closed: bool) -> None:
        """Handles a call that this task has made, and that has failed.

        Args:
            peer: The peer that was called.
            trouble: The reason why the call has failed, as a text.
            closed: Whether the failure shows that no task of kfit listens at the peer's address
                now. It is False if the peer may only be unreachable.
        """

    @abstractmethod
    def pause(self, peer: P, seconds: float) -> bool:
        """Waits before a peer is called again.

        Args:
            peer: The peer to call next.
            seconds: How long to wait, if nothing happens that makes another call urgent or useless.

        Returns:
            Whether to call the peer again; False if no further call is needed.
        """

    def who_answers(self, received: bytes) -> str:
        """Returns a text for an error message about an answer that is no message of kfit.

        Args:
            received: The bytes of the answer; empty if the connection was closed without any.
        """
        if received.startswith(self.message_type.magic):
            return OTHER_SECRET
        there = "something other than kfit answers there"
        return there if received else "it closed the connection without an answer"

    @contextmanager
    def under_way(
        self, listener: socket.socket | None, peers: Iterable[P]
    ) -> Iterator[list[threading.Thread]]:
        """Context in which threads call the peers, and answer the calls of other tasks.

        Args:
            listener: The socket on which other tasks connect to this task; None if they cannot. The
                socket is closed at the end of the block.
            peers: The tasks to call.

        Yields:
            The threads that call the peers. They end soon after the block has ended.
        """
        callers = [
            threading.Thread(target=self._call_until_done, args=(peer,), daemon=True)
            for peer in peers
        ]
        with ExitStack() as stack:
            if listener:
                answering = Answering(
                    listener, self._converse, 3 * PATIENCE, PATIENCE, _LONGEST_LINE
                )
                stack.enter_context(answering)
            try:
                for caller in callers:
                    caller.start()
                yield callers
            finally:
                with self.changed:
                    self.over = True
                    self.changed.notify_all()

    def _converse(self, host: str) -> Conversation:
        """What this task says to a caller: a greeting, and the answer to the caller's message.

        Args:
            host: The host from which the caller has connected.
        """
        line = yield b""
        if not line.startswith(self.message_type.magic):
            self.dropped(host, line)
            return
        greeting = self.message_type.greeting()
        line = yield greeting
        message = self.message_type.decode(line, self.secret, greeting)
        if message is None:
            self.dropped(host, line)
            return
        # Nothing follows but the end of the connection. On the side that closes first, the system
        # keeps the port busy for a while.
        yield self.called(message, host).encode(self.secret, line)
        self.on_message(message)

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
                connection.sendall(self.message_type.greeting())
                greeting = _read_line(connection, self.message_type.magic)
                if not greeting.startswith(self.message_type.magic):
                    self.failed(peer, self.who_answers(greeting), closed=True)
                    return
                sent = self.message(peer.task)
                question = sent.encode(self.secret, greeting)
                connection.sendall(question)
                line = _read_line(connection, self.message_type.magic)
                reply = self.message_type.decode(line, self.secret, question)
                if reply is None:
                    # A task that drops a message with another secret has sent its greeting.
                    self.failed(peer, self.who_answers(line or greeting), closed=True)
                else:
                    self.answered(peer, sent, reply)
        except OSError as error:
            trouble, closed = sockets.explain(error, host)
            if isinstance(error, TimeoutError):
                trouble = peer.stage
            # If a peer has left, TensorFlow's server, which it starts next, may accept the call.
            self.failed(peer, trouble, closed=closed or connected)


def _read_line(connection: socket.socket, magic: bytes) -> bytes:
    """Reads a line of bytes from a connection.

    It stops earlier, and returns the bytes read so far, if the connection ends or if the bytes
    cannot be the beginning of a message.

    Args:
        connection: The connection to another process.
        magic: The bytes with which each message begins.
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
    """Converts a decoded JSON value to a type, and checks the types of all its parts.

    This ensures that a message from another process has the fields that its class declares.

    Args:
        kind: The type: a dataclass, a number or text type, or a generic list, tuple or dict.
        value: The decoded value.

    Raises:
        TypeError: If a value has a different type.
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
