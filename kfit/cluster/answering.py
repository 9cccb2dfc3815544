"""Answers the calls of other processes in one thread, however many strangers call."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress

Conversation = Generator[bytes, bytes, None]
"""What is said to a caller.

A generator that yields the bytes to send, and is sent the next line of the caller in return. The
line has no newline character at its end if the caller has closed the connection, or if the line is
too long.
"""

_MOST_CALLERS = 512
"""The number of callers that are answered at the same time, far below the usual limit of 1,024
files of a process."""
_CLOCK = 0.5
"""Seconds between two looks for callers that take too long."""
_PAUSE = 0.05
"""Seconds until the next try if this process cannot open more files."""


class Answering:
    """A thread that answers calls, from its start until the end of the context.

    A caller that takes too long is disconnected, and if there are too many, the one that came
    first. At the end of the context no new calls are taken, and callers that have sent nothing yet
    are disconnected. The others have `last_seconds` to end their conversation. Afterwards nothing
    is left open, and the port is free.

    Args:
        listener: The socket on which others call. It is closed at the end.
        converse: Begins the conversation with a caller, whose host it is given.
        seconds: How long a whole conversation may take.
        last_seconds: How long it may still take at the end of the context.
        longest_line: The length of the longest line that a caller may send, in bytes.
    """

    def __init__(
        self,
        listener: socket.socket,
        converse: Callable[[str], Conversation],
        seconds: float,
        last_seconds: float,
        longest_line: int,
    ) -> None:
        self._listener = listener
        self._converse = converse
        self._seconds = seconds
        self._last_seconds = last_seconds
        self._longest_line = longest_line
        self._callers: dict[socket.socket, _Caller] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._answer_all, name="kfit answers", daemon=True)
        # A caller may have gone between the report that it is there and `accept`.
        listener.setblocking(False)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._woken.close()

    def _answer_all(self) -> None:
        with selectors.DefaultSelector() as self._selector:
            for waiting in (self._listener, self._woken):
                self._selector.register(waiting, selectors.EVENT_READ)
            is_over = False
            while not is_over or self._callers:
                for key, _ in self._selector.select(_CLOCK):
                    if key.fileobj is self._woken:
                        is_over = True
                        self._take_no_more_calls()
                    elif key.fileobj is self._listener and not is_over:
                        for _ in range(_MOST_CALLERS):
                            if not self._accept():
                                break
                    elif key.fileobj in self._callers:
                        self._go_on(key.fileobj)
                now = time.monotonic()
                for caller in [s for s, each in self._callers.items() if each.deadline < now]:
                    self._drop(caller)

    def _take_no_more_calls(self) -> None:
        for waiting in (self._listener, self._woken):
            self._selector.unregister(waiting)
        self._listener.close()
        deadline = time.monotonic() + self._last_seconds
        for connection, caller in [*self._callers.items()]:
            if caller.has_spoken:
                caller.deadline = min(caller.deadline, deadline)
            else:
                self._drop(connection)

    def _accept(self) -> bool:
        """Takes a call; returns whether there was one, so that another may be waiting."""
        if len(self._callers) >= _MOST_CALLERS:
            self._drop(next(iter(self._callers)))
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError:
            # The caller has gone, or this process has too many open files.
            if self._callers:
                self._drop(next(iter(self._callers)))
            time.sleep(_PAUSE)
            return False
        connection.setblocking(False)
        conversation = self._converse(str(address[0]).removeprefix("::ffff:"))
        self._callers[connection] = _Caller(conversation, time.monotonic() + self._seconds)
        self._selector.register(connection, selectors.EVENT_READ)
        self._go_on(connection)
        return True

    def _go_on(self, connection: socket.socket) -> None:
        caller = self._callers[connection]
        try:
            goes_on = caller.go_on(connection, self._longest_line)
        except Exception:
            # The caller has gone. Whatever else it may be must not end the thread: no caller may
            # keep this process from answering the others.
            goes_on = False
        if goes_on:
            waits_for = selectors.EVENT_WRITE if caller.unsent else selectors.EVENT_READ
            self._selector.modify(connection, waits_for)
        else:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._callers.pop(connection).conversation.close()
        connection.close()


class _Caller:
    """How far the conversation with a caller has come.

    Attributes:
        conversation: The conversation.
        deadline: The time, by `time.monotonic()`, at which the caller is disconnected.
        unsent: What must be sent before the next line is read.
        has_spoken: Whether the caller has sent a line.
    """

    def __init__(self, conversation: Conversation, deadline: float) -> None:
        self.conversation = conversation
        self.deadline = deadline
        self.unsent = next(conversation)
        self.has_spoken = False
        self._received = b""

    def go_on(self, connection: socket.socket, longest_line: int) -> bool:
        """Sends and reads what is possible without waiting; returns False when all is said.

        Raises:
            OSError: If the caller has gone.
        """
        with suppress(BlockingIOError):
            while True:
                while self.unsent:
                    self.unsent = self.unsent[connection.send(self.unsent) :]
                part = connection.recv(longest_line - len(self._received))
                line, newline, rest = (self._received + part).partition(b"\n")
                self._received = line
                if not part or newline or len(line) == longest_line:
                    self._received, self.has_spoken = rest, True
                    try:
                        self.unsent = self.conversation.send(line + newline)
                    except StopIteration:
                        return False
        return True
