"""Keeps the error of a hook that has failed on this task, until all tasks can stop together.

The other tasks learn of the error when all tasks next decide how to continue. But they may never
get there. For example, if a hook fails before it calls `model.evaluate`, the others wait in that
evaluation for this task. So the error is printed at once. After a limited time, this task aborts
the collectives (operations of all tasks together) in which the others wait.
"""

from __future__ import annotations

import sys
import threading
import traceback

from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.heartbeat.errors import is_consequence
from kfit.heartbeat.tracebacks import of_user, say_nothing_of, with_callers

PATIENCE = 10.0
"""Seconds that a failed task waits for the others' next step decision, in addition to the longest
time that a hook has taken so far: the chief may be saving in a hook, which is no failure."""


class NotedFailure:
    """The first error of this task that the other tasks have not learned of yet, if there is one.

    The other tasks learn of the error when all tasks next decide together how to continue. Then all
    tasks stop.

    Args:
        heartbeat: The object that reports the error to the supervisor (`kfit run`), the process
            that watches the tasks.
        strategy: The adapter (kfit's wrapper of the strategy), which can abort the collectives in
            which other tasks wait.
        patience: How many seconds this task waits for the other tasks after an error, in addition
            to the longest time that a hook has taken (`usual`).

    Attributes:
        error: The error that is kept; None if there is none.
        usual: The longest time in seconds that a hook, here or on another task, has taken so far.
    """

    def __init__(
        self, heartbeat: Heartbeat, strategy: Strategy, patience: float = PATIENCE
    ) -> None:
        self._heartbeat = heartbeat
        self._strategy = strategy
        self._patience = patience
        self._timer: threading.Timer | None = None
        self.error: Exception | None = None
        self.usual = 0.0

    def note(self, error: Exception) -> None:
        """Keeps the error, prints it and reports it; does nothing if an error is already kept.

        The error is reported to the supervisor (`kfit run`), the process that watches the tasks. It
        is not printed if it results from another task's failure, since that task prints the cause.
        If it ends the process later, it is not printed again.
        Then a timer of `patience` + `usual` seconds starts. If `forget` is not called before the
        timer ends, this task aborts the collectives in which the other tasks wait for it.

        If there is no other task, the error is only kept.

        Args:
            error: The error that a hook has raised on this task.
        """
        if self.error is not None:
            return
        self.error = error
        if self._strategy.num_workers == 1:
            return
        self._heartbeat.note_error(error)
        if not is_consequence(error):
            self._print(error)
        reason = f"A peer has failed: {type(error).__name__}"
        self._strategy.mark_failed(True)
        seconds = self._patience + self.usual
        self._timer = threading.Timer(seconds, self._strategy.break_off, [reason])
        self._timer.daemon = True
        self._timer.start()

    def _print(self, error: Exception) -> None:
        shown = with_callers(of_user(error, error.__traceback__))
        line = self._heartbeat.in_short(error, shown)
        if line is None:
            text = "".join(traceback.format_exception(type(error), error, shown)).rstrip()
            line = f"kfit: a callback has failed; this call ends when the other tasks know:\n{text}"
        if line:
            print(line, file=sys.stderr, flush=True)
        say_nothing_of(error)

    def forget(self) -> Exception | None:
        """Stops the timer, and returns the error without keeping it any longer.

        It is called when the other tasks know the error, or when `fit` has ended.

        Returns:
            The error, or None if none was kept.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._strategy.mark_failed(False)
        error, self.error, self._timer = self.error, None, None
        return error
