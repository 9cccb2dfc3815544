"""TimeLimit: training is interrupted, not ended, when its time is up."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from kfit.training.callback import TrainingCallback


class TimeLimit(TrainingCallback):
    """Interrupts training after a step, on all tasks the same one, when its time is up.

    `fit` returns, and `trainer.interrupted` is true. BackupAndRestore saves that very step and
    keeps it, so that running the program again goes on from there: what a job with a time limit
    needs. No epoch is ended early: `on_epoch_end` comes when it is whole, in a later run.

    Args:
        limit: Seconds, or a `datetime.timedelta`, from the beginning of `fit`, on the chief.

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
        """Starts the clock."""
        self._begun = time.monotonic()

    def is_due(self) -> bool:
        """Whether the time is up, on the chief."""
        assert self.training is not None
        return self.training.is_chief and time.monotonic() - self._begun >= self._seconds

    def on_due(self) -> None:
        """Interrupts training."""
        assert self.training is not None
        self.training.interrupted = True
