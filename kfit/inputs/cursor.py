"""Defines `Cursor`, by which a loop takes the steps of an epoch, segment by segment.

The data divides an epoch into segments. A segment is a group of consecutive steps that a single
call of a `tf.function` can take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kfit.inputs.batches import Batches, Segment

Take = Callable[[Segment, int], tuple[int, Any]]


class Cursor:
    """The position of a loop in the steps of one epoch.

    The data divides an epoch into segments: groups of consecutive steps that a single call of a
    `tf.function` can take. Creating a cursor requests the first segment from the data, so some
    batches may be read already then.

    Args:
        batches: The data.
        epoch: The number of the epoch; the first one is 0.
        step: The first step to take; not 0 if training resumes within the epoch.

    Attributes:
        step: The number of the next step in the epoch.
    """

    def __init__(self, batches: Batches, epoch: int, step: int = 0) -> None:
        self.batches = batches
        self._wanted = batches.steps
        self._segments: Iterator[Segment] = batches.segments(epoch, step)
        self._segment: Segment | None = None
        self._left: int | None = 0
        self.step = step
        self._next_segment()

    @property
    def more(self) -> bool:
        """Whether the epoch may have a further step.

        The value is False only if the epoch is over. With data of unknown length, the value may be
        True although no batch is left.
        """
        return self._segment is not None

    @property
    def ended_early(self) -> bool:
        """Whether the data ended before the epoch had `steps_per_epoch` steps."""
        return self._segment is None and self._wanted is not None and self.step < self._wanted

    def take(self, take: Take, steps: int) -> tuple[int, Any]:
        """Takes the next `steps` steps, or fewer if the epoch or its data ends before.

        Args:
            take: The function that runs the steps. It is called once for each segment (group of
                steps that a single call of a `tf.function` can take), with the segment and the
                number of steps to take. It returns a pair: the number of steps that it has taken,
                and a result, such as the logs. It may take fewer steps than requested only if the
                data has ended.
            steps: The number of steps to take in total.

        Returns:
            The number of steps taken in total, and a list of the results of `take`, without those
            of calls that took no step.

        Raises:
            Exception: The error of the user's Python code that makes the batches, if it has raised
                one.
        """
        taken, results = 0, []
        while taken < steps and self._segment is not None:
            wanted = steps - taken if self._left is None else min(steps - taken, self._left)
            self.batches.turn += 1
            try:
                done, result = take(self._segment, wanted)
            except tf.errors.OpError:
                if self.batches.error is not None:
                    raise self.batches.error from None  # TensorFlow's has the text of its traceback
                raise
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
                self._next_segment()
        return taken, results

    def _next_segment(self) -> None:
        # A segment has no step if training is resumed at the end of an epoch.
        self._segment = next((segment for segment in self._segments if segment.steps != 0), None)
        self._left = None if self._segment is None else self._segment.steps

    def _end(self) -> None:
        """Ends the epoch because the data has ended; the next epoch reads the data again."""
        self._segment = None
        if self._wanted is None:
            self.batches.learned_steps(self.step)
        self.batches.restart()
