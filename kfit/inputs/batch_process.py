"""What a process that makes batches of a PyDataset runs, until its parent hangs up or dies."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any

import numpy as np

from kfit.supervisor.signals import FORWARDED

SAFE_PATH = "PYTHONSAFEPATH"
_LOOK_EVERY = 0.5  # seconds between two looks whether the parent still lives


@dataclass(frozen=True)
class Task:
    """A batch to make.

    Attributes:
        packed: The pickled data set.
        index: The index of the batch.
        key: Numbers from which the random generators are seeded.
    """

    packed: bytes
    index: int
    key: tuple[int, ...]


@dataclass(frozen=True)
class Failure:
    """What went wrong in the process.

    Attributes:
        text: What to tell the user, unless the error itself can be raised.
        lines: The traceback of the error.
        packed: The pickled error; None if it can't be pickled, would be another one
            afterwards, or is no `Exception`.
    """

    text: str
    lines: str
    packed: bytes | None


def serve(connection: Connection, parent: int, safe_path: str | None) -> None:
    """Makes batches until the parent hangs up or dies. It runs in the process.

    Args:
        connection: This process' end of the pipe.
        parent: The process ID of the parent.
        safe_path: The value of `PYTHONSAFEPATH` from now on.
    """
    _outlive_stops()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    set_safe_path(safe_path)
    with suppress(EOFError, OSError):  # the parent has hung up, or is dead
        while True:
            connection.send_bytes(_answer(connection.recv()))


def _outlive_stops() -> None:
    """Lets this process survive the signals that stop a `fit`, such as Ctrl-C.

    They reach all processes of a terminal, of a job of Slurm, or of a service of systemd. The
    parent still needs batches until it has finished the steps that run, and hangs up then.

    The signals get handlers that do nothing. Ignored signals would stay ignored in programs that
    `__getitem__` starts, which could not be terminated then.
    """

    def nothing(signum: int, frame: FrameType | None) -> None:
        pass

    for signum in FORWARDED:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, nothing)
            signal.siginterrupt(signum, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def _end_with(parent: int) -> None:
    """Ends this process as soon as its parent is dead, even while it makes a batch."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os._exit(1)


def _answer(task: Task) -> Any:
    """Makes a batch; returns what to send: whether it is there, and the batch or a `Failure`."""
    try:
        batch = _made(task)
    except BaseException as error:  # `sys.exit` in `__getitem__` must not end the process silently
        what = "raised an error in another process when it made"
        text = f"`__getitem__` {what} batch {task.index}: {_last_line(error)}"
        packed = _packed(error) if isinstance(error, Exception) else None
        return ForkingPickler.dumps((False, Failure(text, _lines(error), packed)))
    try:
        return ForkingPickler.dumps((True, batch))
    except Exception as error:
        text = (
            f"batch {task.index}, which `__getitem__` returned in another process, cannot be sent "
            f"to this one: {_last_line(error)}. Return arrays, or pass use_multiprocessing=False."
        )
        return ForkingPickler.dumps((False, Failure(text, _lines(error), None)))


def _made(task: Task) -> Any:
    """Makes a batch, after seeding the random generators of this process."""
    seed = np.random.SeedSequence(task.key).generate_state(4)
    dataset = pickle.loads(task.packed)  # noqa: S301  written by our own parent, for us
    np.random.seed(seed)
    random.seed(int(seed[0]))
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(seed[0]))
    return dataset[task.index]


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _lines(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _packed(error: Exception) -> bytes | None:
    """Pickles an error, or returns None if the error could not be read as what it is.

    The parent finds a class of the program's file in its own `__main__`. So that pickle lets such a
    class pass, this process, which has not run the file, must have it in its `__main__`, too.
    """
    kind = type(error)
    if kind.__module__ == "__main__":
        setattr(sys.modules["__main__"], kind.__qualname__, kind)
    try:
        packed = pickle.dumps(error)
        again = pickle.loads(packed)  # noqa: S301  what was written just now
        return packed if type(again) is kind and str(again) == str(error) else None
    except Exception:
        return None


def set_safe_path(text: str | None) -> None:
    """Sets or deletes the environment variable that keeps the current folder off the path."""
    if text is None:
        os.environ.pop(SAFE_PATH, None)
    else:
        os.environ[SAFE_PATH] = text
