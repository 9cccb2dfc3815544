"""Profiles chosen steps of a training, for the profile page of TensorBoard."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.argument_checks import is_integer
from kfit.heartbeat.tracebacks import warn_user


class ProfiledSteps:
    """The steps that are profiled, and the profiler while it runs.

    The profiler of TensorFlow finds the steps in its record by marks. A mark is set around a graph
    call, so each of the chosen steps is a graph call of its own.

    Args:
        profile_batch: As for `keras.callbacks.TensorBoard`: the number of a step, from 1; the
            numbers of the first and the last step, also as text ("10,20"); 0 for no step.

    Raises:
        ValueError: If `profile_batch` has another form.
    """

    def __init__(self, profile_batch: Any) -> None:
        self._first, self._last = _parsed(profile_batch)
        self._mark: Any = None
        self._is_running = False
        self._seen = -1

    def __bool__(self) -> bool:
        return self._last > 0

    def begin(self) -> None:
        """Forgets an earlier training; called when a training begins."""
        self._seen = -1

    def steps_until_due(self, step: int) -> int | None:
        """Returns the number of steps until `visit` must be called; None if all are profiled.

        Args:
            step: The number of steps taken.
        """
        if not self or step >= self._last:
            return None
        return max(1, self._first - 1 - step)

    def is_due(self, step: int) -> bool:
        """Returns whether `visit` must be called now, when `step` steps were taken."""
        return bool(self) and self._seen < step and self._first - 1 <= step <= self._last

    def visit(self, step: int, log_dir: str) -> None:
        """Starts the profiler before the first of the steps, and stops it after the last one.

        Args:
            step: The number of steps taken.
            log_dir: The folder in which the profile is written.
        """
        if not self.is_due(step):
            return
        self._seen = step
        self._end_mark()
        if step >= self._last:
            self.end()
            return
        if not self._is_running:
            self._is_running = _started(log_dir)
        if self._is_running:
            self._mark = tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1)
            self._mark.__enter__()

    def end(self) -> None:
        """Stops the profiler and writes the profile, if the profiler runs."""
        self._end_mark()
        if self._is_running:
            self._is_running = False
            tf.profiler.experimental.stop()

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)


def _started(log_dir: str) -> bool:
    """Starts TensorFlow's profiler, and returns whether it has started; warns if it has not."""
    try:
        tf.profiler.experimental.start(log_dir)
    except (tf.errors.AlreadyExistsError, tf.errors.UnavailableError) as error:
        warn_user(
            "The steps of `profile_batch` are not profiled, since the profiler does not start. "
            f"Only one profiler can run in a process: {error}"
        )
        return False
    return True


def _parsed(profile_batch: Any) -> tuple[int, int]:
    """Returns the numbers of the first and the last step of `profile_batch`."""
    given = profile_batch
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(",")]
        given = [int(part) if part.isdecimal() else None for part in parts]
    steps = list(given) if isinstance(given, list | tuple) else [given]
    if len(steps) in (1, 2) and all(map(is_integer, steps)):
        first, last = int(steps[0]), int(steps[-1])
        if 0 < first <= last or (first == last == 0):
            return first, last
    raise ValueError(
        "`profile_batch` must be the number of a step, a pair of the numbers of the first and the "
        f"last step, counted from 1, or 0 to profile no step. Received: {profile_batch!r}"
    )
