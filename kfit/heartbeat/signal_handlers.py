"""Signal handlers that kfit installs for a while, and only in its own process.

    with TemporaryHandlers(handle) as handlers:
        handlers.take(signal.SIGTERM)

Two things need care. A process that is forked meanwhile, such as one of a pool or of a data loader,
inherits the handlers. But they only record a signal for the process that has installed them, so
the forked process could not be terminated; it gets the handlers back that were there before. And
Python does not know handlers that are written in C, such as those of `faulthandler`: it could
neither tell that there is one, nor install it again. The C library can do both.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TypeAlias

Handle: TypeAlias = Callable[[int, "FrameType | None"], Any]

# More than a `struct sigaction` has on any system. It is kept as it is, and never looked into.
_SIZE = 1024
_sigaction: Any = getattr(ctypes.CDLL(None), "sigaction", None)
_address_of: Any = getattr(ctypes.pythonapi, "PyOS_getsig", None)
if _address_of is not None:
    _address_of.restype = ctypes.c_void_p


def _address(signum: int) -> int | None:
    """Returns the address of the C function that handles a signal; None if it is unknown."""
    return None if _address_of is None else (_address_of(int(signum)) or 0)


@dataclass(frozen=True)
class Disposition:
    """What happens in this process when a signal arrives.

    Attributes:
        handler: What `signal.getsignal` returns: a Python function, SIG_DFL or SIG_IGN; None for a
            handler that was installed before Python has started.
        is_in_c: Whether the handler is a function in C, which Python does not know.
    """

    handler: Any
    is_in_c: bool
    _action: Any

    @classmethod
    def of(cls, signum: int) -> Disposition:
        """Returns what happens now when a signal arrives."""
        handler, address = signal.getsignal(signum), _address(signum)
        is_in_c = handler is None
        if handler in (signal.SIG_DFL, signal.SIG_IGN) and address is not None:
            is_in_c = address != int(handler)
        action = ctypes.create_string_buffer(_SIZE) if _sigaction is not None else None
        if action is not None and _sigaction(int(signum), None, action) != 0:
            action = None
        return cls(handler, is_in_c, action)

    @property
    def is_of_program(self) -> bool:
        """Whether the handler is a Python function, but neither Python's own nor one of kfit."""
        python = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, None)
        return self.handler not in python and not self.is_of_kfit

    @property
    def is_of_kfit(self) -> bool:
        """Whether kfit has installed the handler, such as for a `fit` that calls another one."""
        return isinstance(getattr(self.handler, "__self__", None), TemporaryHandlers)

    def restore(self, signum: int) -> None:
        """Lets the same happen again. It must be called in the main thread."""
        signal.signal(signum, signal.SIG_DFL if self.handler is None else self.handler)
        if self._action is not None:
            _sigaction(int(signum), self._action, None)


class TemporaryHandlers:
    """A context manager that handles signals by a function, as long as it lasts.

    At its end, and in every process that is forked within it, signals are handled as before, but
    for those for which another handler has been installed meanwhile.

    Args:
        handle: The function. It is called as a signal handler in Python.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle_signal = handle
        self._is_in_force = False
        self._before: dict[int, Disposition] = {}
        self._addresses: dict[int, int | None] = {}

    def __enter__(self) -> TemporaryHandlers:
        self._is_in_force = True
        _in_force.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _in_force.remove(self)
        self.end()

    def take(self, signum: int) -> None:
        """Begins to handle a signal. It must be called in the main thread.

        Args:
            signum: The number of the signal.
        """
        self._before[signum] = Disposition.of(signum)
        signal.signal(signum, self._handle)
        self._addresses[signum] = _address(signum)

    def before(self, signum: int) -> Disposition:
        """Returns what happened on a signal that is handled now, before it was."""
        return self._before[signum]

    def end(self) -> None:
        """Handles the signals as before, but for those that have another handler by now."""
        self._is_in_force = False
        for signum, before in self._before.items():
            is_own = signal.getsignal(signum) == self._handle
            if is_own and _address(signum) == self._addresses[signum]:
                before.restore(signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._is_in_force:
            self._handle_signal(signum, frame)
            return
        # A handler that was installed meanwhile has kept this one, and calls it.
        before = self._before[signum]
        if callable(before.handler):
            before.handler(signum, frame)
        elif before.handler is not signal.SIG_IGN:
            before.restore(signum)
            signal.raise_signal(signum)


class _Postponing(TemporaryHandlers):
    """The handlers of `postponed`."""


@contextmanager
def postponed(*signals: int) -> Iterator[None]:
    """A context, or decorator, at whose end the signals are handled that have arrived within it.

    So what the context does is not left half done if a handler raises an error, as that of Ctrl-C
    does. A second one is handled at once: what the context waits for may never come.

    Only handlers in Python are postponed, and only in the main thread: Python calls them in no
    other one. Within another such context their signals wait for the end of the outer one.

    Args:
        *signals: The numbers of the signals.
    """
    arrived: set[int] = set()

    def handle(signum: int, frame: FrameType | None) -> None:
        if signum not in arrived:
            arrived.add(signum)
            return
        arrived.remove(signum)
        handlers.before(signum).handler(signum, frame)

    try:
        with _Postponing(handle) as handlers:
            if threading.current_thread() is threading.main_thread():
                for signum in signals:
                    handler = signal.getsignal(signum)
                    is_waiting = isinstance(getattr(handler, "__self__", None), _Postponing)
                    if callable(handler) and not is_waiting:
                        handlers.take(signum)
            yield
    finally:
        for signum in arrived:
            signal.raise_signal(signum)


_in_force: list[TemporaryHandlers] = []
"""The handlers of this process, the innermost last."""


def _end_in_child() -> None:
    while _in_force:
        _in_force.pop().end()


os.register_at_fork(after_in_child=_end_in_child)
