"""The place in an epoch's runs from which the next execution takes its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kfit.inputs.batches import Batches, Segment

Take = Callable[[Segment, int], tuple[int, Any]]


class Cursor:
    """Hands out the steps of one epoch, across its runs.

    Args:
        batches: The input.
        epoch: Which epoch.
        step: First step in it.
    """

    def __init__(self, batches: Batches, epoch: int, step: int = 0) -> None:
        self.batches = batches
        self._wanted = batches.steps
        self._segments: Iterator[Segment] = batches.segments(epoch, step)
        self._segment: Segment | None = None
        self._left: int | None = 0
        self.step = step
        self._next_run()

    @property
    def more(self) -> bool:
        """Whether there may be another step; of a stream of unknown length nobody knows."""
        return self._segment is not None

    @property
    def ended_early(self) -> bool:
        """Whether the data ended before the epoch had the steps that were asked for."""
        return self._segment is None and self._wanted is not None and self.step < self._wanted

    def take(self, take: Take, steps: int) -> tuple[int, Any]:
        """Takes up to `steps` steps.

        Args:
            take: Called with a segment and a number of steps; returns the number of steps taken,
                fewer where the data ended, and a result.
            steps: Number of steps.

        Returns:
            The number of steps taken, and the results of `take`, in order.
        """
        taken, results = 0, []
        while taken < steps and self._segment is not None:
            wanted = steps - taken if self._left is None else min(steps - taken, self._left)
            self.batches.turn += 1
            done, result = take(self._segment, wanted)
            self.batches.turn += 1
            if done:
                results.append(result)
            taken += done
            self.step += done
            self.batches.took(done)
            if self._left is not None:
                self._left -= done
            if done < wanted:
                self._end()
            elif self._left == 0:
                self._next_run()
        return taken, results

    def _next_run(self) -> None:
        # Where training resumes at the very end of an epoch, a segment has no step left.
        self._segment = next((segment for segment in self._segments if segment.steps != 0), None)
        self._left = None if self._segment is None else self._segment.steps

    def _end(self) -> None:
        """The data ended."""
        self._segment = None
        if self._wanted is None:
            self.batches.learned_steps(self.step)
        self.batches.restart()
