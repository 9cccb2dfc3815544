"""`TimeLimit`: a callback that interrupts training after a time, to be resumed in a later run."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from kfit.training.callback import TrainingCallback


class TimeLimit(TrainingCallback):
    """A callback that interrupts training when a time is up, to be resumed in a later run.

    All workers stop after the same step, `fit` returns, and `Trainer.interrupted` is True. With the
    callback BackupAndRestore, the state after this step is saved, and the next run of the program
    resumes there. `on_epoch_end` is called only in the run that completes the epoch. Until then
    another `fit` of the program with the same directory takes no step.

    Args:
        limit: The time from the beginning of `fit`, in seconds or as a `datetime.timedelta`. It is
            measured on the chief.

    Raises:
        ValueError: If `limit` is not above 0.
    """

    _needs_kfit = True

    def __init__(self, limit: float | dt.timedelta) -> None:
        super().__init__()
        seconds = limit.total_seconds() if isinstance(limit, dt.timedelta) else limit
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise ValueError(
                f"`limit` must be a number of seconds or a timedelta above 0. Received: {limit!r}"
            )
        self._seconds = float(seconds)
        self._begun = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts to measure the time of this `fit`."""
        super().on_train_begin(logs)
        self._begun = time.monotonic()

    def is_due(self) -> bool:
        """Returns whether the time is up; always False on workers other than the chief.

        If the chief returns True, `on_due` is called on all workers.
        """
        return self.training.is_chief and time.monotonic() - self._begun >= self._seconds

    def on_due(self) -> None:
        """Interrupts training after the current step; called on all workers when the time is up."""
        self.training.interrupted = True
