"""Signals that stop training: they are recorded when they arrive, and take effect after a step.

    SIGINT              Ctrl-C, the notebook's stop button: KeyboardInterrupt, after the step
    SIGTERM, SIGUSR1    the platform ends the task (Kubernetes, Slurm, `kfit run`): the process
                        exits with 128 + the signal's number, 143 or 138
    SIGHUP              the terminal was closed: the process exits with 129

In all cases all tasks stop after the same step, and BackupAndRestore saves the state after that
step. A second Ctrl-C stops at once. So does the first signal while training resumes, before it has
taken a step: then there is nothing to save, and to read the data up to the position of the snapshot
may take long.

A handler that the program itself has installed is called as it is without kfit. Only if the step
can be saved does the signal stop training, too; otherwise it is the program's alone, as in Keras.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from kfit.heartbeat import VARIABLE, Heartbeat
from kfit.heartbeat.reached import Reached
from kfit.heartbeat.signal_handlers import Disposition, TemporaryHandlers
from kfit.heartbeat.stop_notes import ON_ANOTHER
from kfit.heartbeat.terminal import in_notebook
from kfit.heartbeat.tracebacks import say_nothing_of

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Preempted(SystemExit):
    """An error by which a signal stops training; the process exits with 128 + the signal's number.

    Attributes:
        signum: The number of the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum


class StopSignals:
    """A context manager that records the signals which ask to stop training, such as SIGTERM.

    The loop of `fit` checks after each execution (graph call) whether a signal has arrived. Signals
    are recorded only in the main thread, since Python gives them to no other thread. In another
    thread the context does nothing.

    A handler of the program, in Python, is called first when its signal arrives. If the state is
    not saved, the signal is not recorded: then only the program knows what has to follow. A handler
    in C, such as that of `faulthandler`, cannot be called from here, so its signal is left to it.
    But for SIGTERM it is replaced within the context: TensorFlow's multi-worker strategy installs
    one that swallows the signal.

    Args:
        saves: Whether the state is saved when a signal stops training.

    Attributes:
        received: The number of the first signal that arrived; 0 if there was none.
    """

    def __init__(self, *, saves: bool) -> None:
        self.received = 0
        self._saves = saves
        self._stops_at_once = self._is_interrupted = False
        self._handlers = TemporaryHandlers(self._handle)

    def __enter__(self) -> StopSignals:
        self._handlers.__enter__()
        if threading.current_thread() is threading.main_thread():
            for signum in _HEARD:
                if self._records(signum, Disposition.of(signum)):
                    self._handlers.take(signum)
        return self

    def _records(self, signum: int, before: Disposition) -> bool:
        if before.is_in_c:
            return signum == signal.SIGTERM and before.handler is not None
        if before.is_of_program:
            return self._saves
        # A process that was started with a signal ignored (`nohup`) goes on ignoring it.
        return before.handler is not signal.SIG_IGN

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handlers.__exit__(kind, error, traceback)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which a signal stops training at once, and not only after a step."""
        if self.received:
            self._stop_now(self.received)
        self._stops_at_once = True
        try:
            yield
        finally:
            self._stops_at_once = False

    def _stop_now(self, signum: int) -> None:
        if not os.environ.get(VARIABLE):
            name = signal.Signals(signum).name
            print(
                f"\nkfit: {name}: stopping while training resumes; {_again()} resumes from the "
                "same snapshot",
                file=sys.stderr,
                flush=True,
            )
        stop(signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        before = self._handlers.before(signum)
        if before.is_of_program:
            try:
                before.handler(signum, frame)  # an error that it raises counts at once, as in Keras
            except (SystemExit, KeyboardInterrupt):
                # The program is to end, which it does when the step is saved.
                if self.received or self._stops_at_once:
                    raise
        is_interrupt = signum == signal.SIGINT
        if is_interrupt and self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = self._is_interrupted or is_interrupt
        if self._stops_at_once:
            self._stops_at_once, self.received = False, signum
            self._stop_now(signum)
        if is_interrupt or not self.received:
            self.received = self.received or signum
            if not os.environ.get(VARIABLE):  # a supervisor says it once for all of its tasks
                name = signal.Signals(signum).name
                hint = "; again to stop at once" if is_interrupt else ""
                # The line may show "^C", or the progress bar of another library.
                text = f"\nkfit: {name}: stopping after the steps that run now{hint}"
                print(text, file=sys.stderr, flush=True)


def tell_what_is_saved(
    heartbeat: Heartbeat, signum: int, step: int, saved_in: str, *, is_chief: bool, is_own: bool
) -> None:
    """Tells the user where training was stopped, and from where it can resume.

    Under a supervisor, such as `kfit run`, the supervisor tells it, as its last line. Without one,
    the chief tells it, and each task that a Ctrl-C on another one stops.

    Args:
        heartbeat: The object by which this task reports to its supervisor.
        signum: The number of the signal that stops training.
        step: The number of steps taken since the first epoch began.
        saved_in: The directory in which the state after this step was saved; empty if it was not.
        is_chief: Whether this task is the chief.
        is_own: Whether this task has got a signal itself, and not only another one.
    """
    text = f"{'' if is_own else ON_ANOTHER}{after_step(heartbeat.reached(step), saved_in)}"
    is_told_here = is_chief or (signum == signal.SIGINT and not is_own)
    if not heartbeat.note_stop(text) and is_told_here:
        name = signal.Signals(signum).name
        print(f"kfit: stopped by {name} {text}", file=sys.stderr, flush=True)


def after_step(place: Reached, saved_in: str) -> str:
    """Returns in words where training has stopped, and how it is resumed.

    Args:
        place: The number of steps taken since the first epoch began, and of which `fit`.
        saved_in: The directory in which the state after this step was saved; empty if it was not.
    """
    what = f"saved in {saved_in}; {_again()} resumes there"
    if not saved_in:
        what = "its state was not saved (kfit.callbacks.BackupAndRestore saves it)"
    return f"{place.in_words or 'after step 0'}; {what}"


def _again() -> str:
    """Returns in words what the user does to run the program again."""
    if os.environ.get("KFIT_STARTED_BY") == "`kfit.launch`":
        return "the same call of `kfit.launch`"
    return "running the cell again" if in_notebook(sys.stdout) else "the same command"


def stop_after_fit(heartbeat: Heartbeat, signum: int) -> None:
    """Stops the program by a signal that has arrived after the last step, such as in a hook.

    The `fit` has ended as it does without the signal. But what follows, such as another `fit`, must
    not begin.

    Args:
        heartbeat: The object by which this task reports to its supervisor.
        signum: The number of the signal.

    Raises:
        KeyboardInterrupt: For SIGINT.
        Preempted: For any other signal.
    """
    text = "after the end of `fit`"
    if not heartbeat.note_stop(text):
        name = signal.Signals(signum).name
        print(f"kfit: stopped by {name} {text}", file=sys.stderr, flush=True)
    stop(signum)


def stop(signum: int) -> None:
    """Raises the error by which a signal stops training.

    Python prints no traceback if a KeyboardInterrupt of it ends the process.

    Args:
        signum: The number of the signal.

    Raises:
        KeyboardInterrupt: For SIGINT.
        Preempted: For any other signal.
    """
    if signum == signal.SIGINT:
        interrupt = KeyboardInterrupt()
        say_nothing_of(interrupt)
        raise interrupt
    raise Preempted(signum)
