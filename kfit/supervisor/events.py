"""The events that the supervisor of a run waits for, and the clock by which it waits.

Nothing else in the supervisor's loop waits or reads a clock. So a test that passes events and a
clock of its own runs the whole loop without waiting.
"""

from __future__ import annotations

import queue
import time

from kfit.supervisor.process_group import TaskExit


class Events:
    """The ends of tasks and the signals to the supervisor, in the order in which they happened."""

    def __init__(self) -> None:
        # A SimpleQueue, since a signal handler may add to it while it interrupts the reader.
        self._queue: queue.SimpleQueue[TaskExit | int] = queue.SimpleQueue()

    def now(self) -> float:
        """Returns the present time in seconds; all times in heartbeats are by the same clock."""
        return time.monotonic()

    def put(self, event: TaskExit | int) -> None:
        """Adds an event: a task that has ended, or the number of a signal to the supervisor.

        It may be called from any thread, and from a signal handler.
        """
        self._queue.put(event)

    def get(self, seconds: float) -> TaskExit | int | None:
        """Waits for the next event; returns None if none has happened within so many seconds."""
        try:
            return self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
