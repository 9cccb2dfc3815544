"""TimeLimit: interrupts training after a time, so that a later run can resume it."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from kfit.training.callback import TrainingCallback


class TimeLimit(TrainingCallback):
    """A callback that interrupts training when its time is up, on all tasks after the same step.

    `fit` returns, and `trainer.interrupted` is true. BackupAndRestore saves the state after that
    step and keeps it, so that the next run of the program resumes there. This is useful for jobs
    with a time limit. The interrupted epoch does not count as ended: `on_epoch_end` is called in
    the run that completes the epoch.

    Args:
        limit: Seconds or a `datetime.timedelta`, measured on the chief from the beginning of `fit`.

    Raises:
        ValueError: If `limit` is not above 0.
    """

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
        """Starts to measure the time."""
        self._begun = time.monotonic()

    def is_due(self) -> bool:
        """Returns whether the time is up. On tasks other than the chief it returns False."""
        assert self.training is not None
        return self.training.is_chief and time.monotonic() - self._begun >= self._seconds

    def on_due(self) -> None:
        """Interrupts training: it stops after this step."""
        assert self.training is not None
        self.training.interrupted = True
