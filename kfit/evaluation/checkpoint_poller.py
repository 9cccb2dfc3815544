"""Decides which checkpoint an evaluator evaluates next, when, and whether more will come.

An evaluator is a task that evaluates the checkpoints that other tasks write. The decisions are made
from the names of the checkpoints, the clock, and the end marker, a file that the chief writes when
training is over. No checkpoint is opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from kfit.checkpoint.store import SnapshotName, Store
from kfit.evaluation.end_marker import EndMarker, read_end_marker, this_run
from kfit.evaluation.specs import EvalSpec, TrainSpec
from kfit.evaluation.training_id import read_training_id

LOOK_INTERVAL = 0.5
"""Seconds between two polls of the directory."""
_LATEST = 90.0
"""Seconds after which a file that was written before another one is seen, too, on any file system:
those of a network keep what they know of a directory for up to a minute."""
_FIRST_WORD, _LONGEST_SILENCE = 60.0, 900.0
"""Seconds of waiting before the first message about it, and the longest time between two messages.

The time from one message to the next doubles up to the longest time.
"""


def is_repeated(
    name: SnapshotName, last: SnapshotName | None, names: Sequence[SnapshotName]
) -> bool:
    """Returns whether a checkpoint has the same weights as the last evaluated checkpoint.

    Such a checkpoint need not be evaluated. Two checkpoints of the same step usually have the same
    weights. For example, after the last step of an epoch a checkpoint may be saved at once, and
    another one after all callbacks' `on_epoch_end`.

    There is one exception. A restarted program can go back to an earlier step, and then reach the
    step of the last evaluated checkpoint again, with other weights. The function concludes this if
    the two names have different lock counts, so that they were written by different starts of the
    program, and the checkpoint `last` no longer exists.

    Args:
        name: The name of the checkpoint.
        last: The name of the last checkpoint that was evaluated, or None.
        names: The names of the checkpoints that exist.
    """
    if last is None or name.step != last.step:
        return False
    return name.lock_count == last.lock_count or last in names


class TrainingIdleError(RuntimeError):
    """The error that an evaluator raises if it has waited too long for a new checkpoint.

    It means that no checkpoint has appeared for `EvalSpec.idle_timeout_secs`, although training has
    not ended; or that training has ended, and its last checkpoint is not there.
    """


class CheckpointPoller:
    """An evaluator's view of the directory of checkpoints, in which it waits for the next one.

    Checkpoints are found in the order in which they were written.

    Args:
        train_spec: A specification that says where the checkpoints are, and when training ends.
        eval_spec: A specification that says when to evaluate, and when to give up waiting.
        clock: A function that returns the time in seconds.
        sleep: A function that waits for a number of seconds.
        say: A function that prints a line for the user.

    Attributes:
        training: The ID of the training that writes the checkpoints; None while it is not known.
    """

    def __init__(
        self,
        train_spec: TrainSpec,
        eval_spec: EvalSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = print,
    ) -> None:
        self._directory = train_spec.checkpoint_dir
        self._target = train_spec.target
        self._spec = eval_spec
        self.training: str | None = None
        self._clock = clock
        self._sleep = sleep
        self._say = say
        self._may_begin_at = self._could_begin_at = clock() + eval_spec.start_delay_secs
        self._newest: SnapshotName | None = None
        self._last_news = clock()
        self._next_word = _FIRST_WORD
        self._ended_at: float | None = None
        self._passed_over: set[SnapshotName] = set()
        # An end marker of an earlier run that was interrupted does not count: training resumes in
        # this run, but the chief may not have removed the marker yet.
        known = read_end_marker(self._directory)
        is_old = known is not None and known.interrupted and known.run != this_run()
        self._old_run = known.run if known is not None and is_old else None

    def next_after(
        self, last: SnapshotName | None, training: str | None = None
    ) -> SnapshotName | None:
        """Waits for the next checkpoint of the training, and returns its name.

        While training goes on, it also waits until the next evaluation is due by `start_delay_secs`
        and `throttle_secs`. A checkpoint with the same weights as `last` (see `is_repeated`) is
        returned without this delay, and the caller must skip it.

        Args:
            last: The name of the last checkpoint that was evaluated or skipped, or None. It must be
                known to be a checkpoint's, since no earlier ones are found any more.
            training: The ID of the training to which `last` belongs. If another training writes
                there now, it has begun anew, and `last` does not count.

        Returns:
            The name of the next checkpoint, with `newest_only` the newest one; None if training is
            over and all checkpoints were evaluated, skipped or passed over.

        Raises:
            TrainingIdleError: If no checkpoint has appeared for `idle_timeout_secs`, or if training
                is over and its last checkpoint is not there.
            ForeignFileError: If a file named like the end marker was not written by kfit.
        """
        self._could_begin_at = self._may_begin_at
        while True:
            # Read the marker before the names. The chief writes it after the last checkpoint. So if
            # there is a marker, the names that are read after it are complete.
            marker = self._end_marker()
            self._follow(read_training_id(self._directory))
            if None not in (training, self.training) and training != self.training:
                last = None
            names = [name for name in self.names() if name not in self._passed_over]
            new = [name for name in names if last is None or name > last]
            if new:
                chosen = new[-1] if self._spec.newest_only else new[0]
                if is_repeated(chosen, last, names):
                    return chosen
                if marker is not None or self._clock() >= self._may_begin_at:
                    self._may_begin_at = self._clock() + self._spec.throttle_secs
                    return chosen
            if not new and marker is not None and self._is_reached(marker, last):
                return None
            self._wait(names, marker, busy=bool(new))

    def pass_over(self, name: SnapshotName) -> None:
        """Leaves out a folder that is no checkpoint, or is a damaged one, from now on.

        Anybody may have given it its name, so those before it are still found. An evaluation counts
        as not begun, so it delays no other one.

        Args:
            name: The name of the folder, which `next_after` returned.
        """
        self._passed_over.add(name)
        self._may_begin_at = self._could_begin_at

    def names(self) -> list[SnapshotName]:
        """Returns the names of the existing checkpoints, the oldest first, without reading them."""
        if not os.path.isdir(self._directory):
            return []
        return Store(self._directory).names()

    def _follow(self, training: str | None) -> None:
        """Notes the ID of the training that writes there; None if it is not known.

        If it is another one, the directory was deleted, and names may come again.
        """
        if training is not None and training != self.training:
            self.training = training
            self._passed_over.clear()

    def _end_marker(self) -> EndMarker | None:
        """Returns the content of the end marker; None if training is not known to be over.

        The end marker is a file that the chief writes when training is over. An end marker of a
        training with other `epochs` or `max_steps` is ignored. The end marker of an earlier run
        that was interrupted is ignored, too, since training continues in this run.
        """
        marker = read_end_marker(self._directory)
        if marker is None or marker.target != self._target or marker.run == self._old_run:
            return None
        return marker

    def _is_reached(self, marker: EndMarker, last: SnapshotName | None) -> bool:
        """Returns whether the checkpoint that the end marker names was evaluated or left out.

        The result is also True if the end marker names none. It does not depend on the files that
        exist, since a slow file system may show the end marker earlier than the last checkpoint.

        Args:
            marker: The end marker, which contains the name of the last checkpoint, or None.
            last: The name of the last checkpoint that was evaluated or skipped, or None.
        """
        end = marker.last
        return end is None or end in self._passed_over or (last is not None and last >= end)

    def _wait(self, names: list[SnapshotName], marker: EndMarker | None, busy: bool) -> None:
        newest = max(names, default=None)
        now = self._clock()
        if newest != self._newest or busy:
            self._newest, self._last_news, self._next_word = newest, now, _FIRST_WORD
        idle, limit = now - self._last_news, self._spec.idle_timeout_secs
        if marker is None or busy:
            self._ended_at = None
        elif self._ended_at is None:
            self._ended_at = now
        if self._ended_at is not None and marker is not None:
            self._wait_for_last(marker, now - self._ended_at)
            return
        what = "no checkpoint" if newest is None else "no new checkpoint"
        if limit is not None and idle >= limit:
            raise TrainingIdleError(
                f"{what} has come to {self._directory} for {idle:.0f} s (`idle_timeout_secs` is "
                f"{limit:g}), and training has not reported that it ended. Check whether it hangs "
                "or has failed. Run this evaluator again to evaluate further checkpoints; none is "
                "evaluated twice."
            )
        if idle >= self._next_word:
            self._next_word = idle + min(idle, _LONGEST_SILENCE)
            self._say(
                f"kfit: {what} in {self._directory} for {idle:.0f} s, and training has not "
                "reported that it ended; still waiting."
            )
        self._sleep(LOOK_INTERVAL)

    def _wait_for_last(self, marker: EndMarker, seconds: float) -> None:
        """Waits for the last checkpoint, which a slow file system shows later than the end marker.

        Args:
            marker: The end marker, which names the checkpoint.
            seconds: How long it has been waited for.
        """
        limit = self._spec.idle_timeout_secs
        if seconds >= (_LATEST if limit is None else min(limit, _LATEST)):
            raise TrainingIdleError(
                f"Training has ended, but its last checkpoint {marker.checkpoint} is not in "
                f"{self._directory}, so it cannot be evaluated. Was it deleted? To write another "
                "one, train with more `epochs` or `max_steps`."
            )
        self._sleep(LOOK_INTERVAL)
