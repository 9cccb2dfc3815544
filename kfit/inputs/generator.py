"""Batches of a generator, which is read once, across all epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfit.checkpoint.schema import Check, count
from kfit.distribute.strategy import Strategy
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.python import PythonBatches


class GeneratorBatches(PythonBatches):
    """Batches of a generator, which is read only once, across all epochs.

    When training resumes, a generator without a `state_dict` is read from its beginning up to the
    position of the snapshot. While it is read, the global random generators are in the states that
    the restarted program has given them, for example by a seed. A warning is given if the last
    batch before the position is not the same as before the restart.

    Args:
        generator: The generator or iterator that the user passed.
        strategy: As for `PythonBatches`.
        steps: The number of steps in an epoch, or None for all batches.
    """

    def __init__(self, generator: Iterator[Any], *, strategy: Strategy, steps: int | None) -> None:
        super().__init__(generator, strategy=strategy, steps=steps, again=False)
        self._taken = 0
        self._last = 0

    def _iterate(self, pass_index: int, batch: int) -> Iterator[Any]:
        return iter(self._source)

    def restart(self) -> None:
        """Stops reading, and records that the generator has ended and cannot be read again.

        The method is called when the data has ended.
        """
        super().restart()
        self.has_ended = True

    def took(self, steps: int) -> None:
        """Counts the batches that were trained on, since a snapshot needs the position."""
        super().took(steps)
        self._taken += steps
        if steps and self._reader is not None and self._reader.mark is not None:
            self._last = self._reader.mark.print

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the generator, and the generator's own state, for a snapshot.

        The generator's own state is contained if it has a `state_dict` or a similar method.

        Returns:
            "taken", the number of batches that were trained on or skipped; "last", a checksum of
            the last of them; "ended", whether the generator has ended; and the generator's own
            state.
        """
        said = super().state_dict() if self._own.is_said else {}
        return {"taken": self._taken, "last": self._last, "ended": self.has_ended, **said}

    @property
    def checks(self) -> Mapping[str, Check]:
        """A check of each value of a state that was read from a file, by its key."""
        return {"taken": count, "last": count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the position in the generator that a snapshot contains, when training resumes.

        A generator that has a `state_dict` gets the saved state back. Any other generator is read
        on to the position in `state`.

        Args:
            state: What `state_dict` returned for the snapshot.

        Raises:
            ValueError: If a generator without a `state_dict` is past the position already.
        """
        self.has_ended = bool(state.get("ended"))
        if self._own.is_said:
            super().load_state_dict(state)
            self._taken, self._last = int(state["taken"]), int(state["last"])
            return
        if state["taken"] < self._taken:
            raise ValueError(
                "`x` is a generator, which cannot go back to an earlier batch. Pass a "
                "keras.utils.PyDataset, a tf.data.Dataset or arrays."
            )
        self.pass_over(int(state["taken"]) - self._taken)
        if self._last != state["last"] and self._keeps:
            warn_user(
                f"`x`, a {type(self._source).__name__}, did not yield the same batches again when "
                f"it was read on to batch {state['taken']}: training goes on with other batches "
                "than it would have without the restart. Give a seed to what it draws from, or "
                "give it `state_dict` and `load_state_dict`."
            )

    def pass_over(self, batches: int) -> None:
        """Takes the next `batches` batches from the generator, without training on them.

        Used when training resumes, to reach the position of a snapshot. Also used if a callback
        goes back to a snapshot because of bad batches, for example if the loss became NaN; these
        batches are then left out. If fewer batches are left, all of them are taken.
        """
        if self._reader is None:
            self._open(0, 0)
        assert self._reader is not None
        for _ in range(batches):
            if self._looked:
                self._looked.pop(0)
            elif next(self._reader, _END) is _END:
                return
            self.took(1)


_END = object()
