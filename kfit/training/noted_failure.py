"""The error of a hook on this task, kept until the other tasks have learned of it.

They learn of it at the next step decision of all tasks. But they may never get there: if a hook
fails before it calls `model.evaluate`, the others wait in that evaluation for this task. So the
error is printed at once, and after a limited time this task aborts the collectives in which the
others wait.
"""

from __future__ import annotations

import sys
import threading
import traceback

from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.heartbeat.errors import is_consequence

PATIENCE = 10.0
"""Seconds that a failed task waits for the others' next step decision, in addition to the longest
time that a hook has taken so far: the chief may be saving in a hook, which is no failure."""


class NotedFailure:
    """The first error of this task that the other tasks have not learned of yet, if there is one.

    Args:
        heartbeat: Reports the error to the supervisor.
        strategy: The adapter, which can abort the collectives that tasks wait in.
        patience: Seconds, in addition to `usual`, to wait for the other tasks after an error.

    Attributes:
        error: The error, or None.
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
        """Keeps the first error, prints it, and reports it to the supervisor; ignores later errors.

        It also starts a timer, which aborts the collectives in which the other tasks wait, unless
        `forget` is called before. If there is no other task, it only keeps the error. An error that
        is a consequence of another task's failure is not printed, since that task prints the cause.
        """
        if self.error is not None:
            return
        self.error = error
        if self._strategy.num_workers == 1:
            return
        self._heartbeat.note_error(error)
        if not is_consequence(error):
            text = "".join(traceback.format_exception(error))
            headline = "kfit: this task has failed, and stops when the others know it:"
            print(f"{headline}\n{text}", end="", file=sys.stderr, flush=True)
        reason = f"A peer has failed: {type(error).__name__}"
        self._strategy.mark_failed(True)
        seconds = self._patience + self.usual
        self._timer = threading.Timer(seconds, self._strategy.break_off, [reason])
        self._timer.daemon = True
        self._timer.start()

    def forget(self) -> Exception | None:
        """Stops the timer, and returns the error without keeping it any longer.

        It is called when the other tasks know the error, or when `fit` has ended.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._strategy.mark_failed(False)
        error, self.error, self._timer = self.error, None, None
        return error
