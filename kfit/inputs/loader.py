"""Batches of a loader, such as torch's `DataLoader`, which is iterated over in each epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from kfit.checkpoint.schema import Check, count, is_a, optional
from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.inputs.python import LOOKED_AT, PythonBatches
from kfit.objects import Generators


class LoaderBatches(PythonBatches):
    """Batches of a loader, such as torch's `DataLoader`, which is iterated over in each epoch.

    When training resumes, a `state_dict` of the loader or of its iterator is restored, if there is
    one. Otherwise the data is read again up to the snapshot's position, beginning with the states
    that the random generators had when the interrupted iterator was created.

    Args:
        iterable: The loader that the user passed.
        strategy: As for `PythonBatches`.
        steps: The number of steps in an epoch, or None for all batches.
    """

    def __init__(self, iterable: Iterable[Any], *, strategy: Strategy, steps: int | None) -> None:
        length = _length_of(iterable)
        super().__init__(
            iterable, strategy=strategy, steps=steps or length, again=True, length=length
        )
        # A loader without a length, or with a state, continues after the first batches.
        self._looks_apart = length is not None and not self._own.is_said
        self._taken = 0
        self._begun: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None
        self._skip = 0

    def _iterate(self, pass_index: int, batch: int) -> Iterator[Any]:
        resumed, self._resume = self._resume, None
        if resumed is not None:
            return self._begin_again(resumed)
        self._taken, self._begun = batch, self._beginning()
        iterator = iter(self._source)
        self._own.follow(iterator)
        return itertools.islice(_told(iterator), batch, None)

    def _first_batches(self) -> list[Any]:
        if not self._looks_apart:
            return super()._first_batches()
        self._share_beginning()
        iterator = iter(self._source)
        self._own.follow(iterator)
        return [self.prepared(batch) for batch in itertools.islice(iterator, LOOKED_AT)]

    def _begin_again(self, resumed: dict[str, Any]) -> Iterator[Any]:
        """Creates an iterator that continues where a snapshot was taken.

        The iterator begins at the snapshot's position, or later if there are batches to skip
        (`pass_over`).

        Args:
            resumed: The state that `state_dict` returned for the snapshot.
        """
        here, self._begun, self._taken = Generators.now(), resumed["begun"], resumed["taken"]
        Generators.of_state_dict(resumed["begun"]["generators"]).give()
        is_of_source = self._own.is_said_by_source  # False if it is an iterator's state
        # A loader with a `state_dict` creates its next iterator at the state that it has loaded. If
        # a loader is its own iterator, `iter` may reset it, so its state is loaded again below.
        self._own.load_state_dict(resumed if is_of_source else resumed["begun"])
        iterator = iter(self._source)
        self._own.follow(iterator)
        if not self._own.is_said:
            for _ in itertools.islice(_told(iterator), self._taken):
                pass
        if not is_of_source or iterator is self._source:
            self._own.load_state_dict(resumed)
        here.give()
        skip, self._skip = self._skip, 0
        self._taken += skip
        return itertools.islice(_told(iterator), skip, None)

    def took(self, steps: int) -> None:
        """Counts the batches taken from the iterator, since a snapshot needs the position."""
        super().took(steps)
        self._taken += steps

    def restart(self) -> None:
        """Drops the iterator over the loader, so that the next epoch creates a new iterator."""
        super().restart()
        self._taken = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the loader, and the position in the data, for a snapshot.

        Returns:
            The state of the loader or of its iterator; "taken", the number of batches taken from
            the present iterator; and "begun", the states of the random generators and of the loader
            when this iterator was created. "begun" is None if no iteration has begun or it has
            ended. The dict is empty if `keep_states` was not called.
        """
        state = super().state_dict()
        if not self._keeps:
            return state
        if self._reader is None or self._taken == self.length:
            return {**state, "taken": 0, "begun": None}
        return {**state, "taken": self._taken, "begun": self._begun}

    @property
    def checks(self) -> Mapping[str, Check]:
        """A check of each value of a state that was read from a file, by its key."""
        return {**super().checks, "taken": count, "begun": optional(is_a(dict))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of the loader, when training resumes from a snapshot.

        If the snapshot was taken in the midst of an iteration over the loader, the state is
        restored only when the next iterator is created. Otherwise it is restored at once.

        Args:
            state: What `state_dict` returned for the snapshot.
        """
        self._resume = state if state.get("begun") else None
        super().load_state_dict(state if self._resume is None else {"looked": state.get("looked")})

    def pass_over(self, batches: int) -> None:
        """Makes the next iterator skip `batches` batches; called after `load_state_dict`.

        Used if a callback goes back to a snapshot because of bad batches, for example if the loss
        became NaN; these batches are then left out. If the snapshot was taken between two
        iterations, the method does nothing: the next iterator then begins at the batch that the
        number of the step tells.
        """
        self._skip = batches if self._resume is not None else 0

    def _beginning(self) -> dict[str, Any] | None:
        if not self._keeps:
            return None
        own = {} if self._own.is_said else self._own.state_dict(None)
        return {"generators": Generators.now().state_dict(), **own}


def _told(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the same batches, and reports each one as progress to the supervisor.

    The supervisor is the process that detects hangs. Without the reports, skipping many batches
    could be taken for a hang.
    """
    heartbeat = Heartbeat.of_environment()
    for batch in batches:
        heartbeat.moved()
        yield batch


def _length_of(iterable: Iterable[Any]) -> int | None:
    """Returns the number of batches of a loader, or None if it is unknown.

    torch's loaders always have `__len__`, which raises a TypeError if the length is unknown.
    """
    try:
        return len(iterable) if isinstance(iterable, Sized) else None
    except TypeError:
        return None
