"""What has failed on this task, from when it fails until the other tasks know of it.

The others are told where all agree next. They may never come there: where a hook fails before it
calls `model.evaluate`, the others wait in that evaluation for this task. So the error is shown at
once, and this task waits for a limited time.
"""

from __future__ import annotations

import sys
import threading
import traceback

from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.heartbeat.errors import is_consequence

PATIENCE = 10.0
"""Seconds that a task which has failed waits for the others to come to where all agree, besides the
longest that is usual: where the chief saves in a hook for a minute, that is no reason to end it."""


class NotedFailure:
    """The first error of this task that the others have still to be told, if there is one.

    Args:
        heartbeat: What tells the supervisor of this task.
        strategy: The adapter; after a while it breaks off what this task and its peers wait for.
        patience: Seconds until then, besides what is usual.

    Attributes:
        error: The error, or None.
        usual: Seconds that a hook here, or waiting for those of the others, has taken at the most.
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
        """Shows an error, tells the supervisor, and lets the time run; the first one alone.

        Where there is no other task it is raised at once, and where it comes of another task's
        failure it is that which is to be seen.
        """
        if self.error is not None:
            return
        self.error = error
        if self._strategy.num_workers == 1:
            return
        self._heartbeat.note_error(error)
        if not is_consequence(error):
            text = "".join(traceback.format_exception(error))
            told = "kfit: this task has failed, and stops when the others know it:"
            print(f"{told}\n{text}", end="", file=sys.stderr, flush=True)
        reason = f"A peer has failed: {type(error).__name__}"
        self._strategy.mark_failed(True)
        seconds = self._patience + self.usual
        self._timer = threading.Timer(seconds, self._strategy.break_off, [reason])
        self._timer.daemon = True
        self._timer.start()

    def forget(self) -> Exception | None:
        """Returns the error, and notes it no longer: the others know, or `fit` is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._strategy.mark_failed(False)
        error, self.error, self._timer = self.error, None, None
        return error
