"""Measures how fast training is."""

from __future__ import annotations

import time


class TrainingSpeed:
    """The speed of training since `begin` was called, without the time of validations."""

    def __init__(self) -> None:
        self._step = 0
        self._began = time.monotonic()
        self._paused: float | None = None

    def begin(self, step: int) -> None:
        """Begins to measure.

        Args:
            step: The number of steps taken.
        """
        self._step, self._began, self._paused = step, time.monotonic(), None

    def pause(self) -> None:
        """Stops the clock until `begin`, since what follows is no training."""
        if self._paused is None:
            self._paused = time.monotonic()

    def numbers(self, step: int, batch_size: int | None) -> dict[str, float]:
        """Returns the speed since `begin`.

        Args:
            step: The number of steps taken.
            batch_size: The global batch size; None if it is not known.

        Returns:
            "steps_per_second", "step_milliseconds" and, if the batch size is known,
            "examples_per_second", which counts the last batch of an epoch as a whole one. Nothing
            if no step was taken.
        """
        now = time.monotonic() if self._paused is None else self._paused
        steps, seconds = step - self._step, now - self._began
        if steps <= 0 or seconds <= 0:
            return {}
        speed = {"steps_per_second": steps / seconds, "step_milliseconds": 1000 * seconds / steps}
        if batch_size is not None:
            speed["examples_per_second"] = steps * batch_size / seconds
        return speed
