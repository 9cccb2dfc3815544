"""Reads a `tf.data.Dataset` pass by pass, and comes back to where a snapshot was taken.

A pass is one reading of all the data, by one iterator. When an iterator is created, the data set's
`shuffle`s draw the seeds of its pass; and the pipeline may keep other state from one iterator to
the next (`pipeline_state.py`). So it is not enough to skip batches when training resumes.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any, NamedTuple

import tensorflow as tf

from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.batch_prints import BatchPrints
from kfit.inputs.late_shuffles import LateShuffles, draws_anew
from kfit.inputs.passes import PassCounter
from kfit.inputs.pipeline_state import HeldState, state_of
from kfit.objects import Generators


class DatasetReading:
    """The reading of a data set by one call of `fit` or `evaluate`.

    Args:
        data: What is read: a `tf.data.Dataset` or a distributed data set.
        pipeline: The data set of the whole batches, whose state is inspected; None if it is not
            known, since each task makes its own.
        per_replica: Whether each task (process) reads its own part of the data.
        counter: The counter of the passes over the data.
        is_counted_apart: Whether another pipeline reads a `shuffle` of this one, and its passes are
            counted apart from these.
    """

    def __init__(
        self,
        data: Any,
        pipeline: tf.data.Dataset | None,
        *,
        per_replica: bool,
        counter: PassCounter,
        is_counted_apart: bool,
    ) -> None:
        self._data = data
        self._pipeline = pipeline
        self._per_replica = per_replica
        self._counter = counter
        self._is_counted_apart = is_counted_apart
        self._iterator: Any = None
        self._resume_at: _Place | None = None
        self._held: HeldState | None = None
        self._prints: BatchPrints | None = None
        self._last_pass: int | None = None
        self._ended: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether a pass is open: it has begun, and has not ended."""
        return self._counter.is_open

    @property
    def taken(self) -> int:
        """The number of batches that were taken from the open pass; 0 if none is open."""
        return self._counter.taken

    def iterator(self, *, anew: bool) -> Any:
        """Returns the iterator of the open pass.

        Args:
            anew: Whether a pass begins. One also begins if none is open.
        """
        if self._iterator is None or anew:
            self._begin()
        elif self._held is not None and not self._per_replica and self._counter.taken == 0:
            self._held.begin()  # hooks or the validation may have drawn since the pass was begun
        return self._iterator

    def _begin(self) -> None:
        if self._held is not None:
            self._held.begin()
        if self._prints is not None:
            self._prints.begin()
        self._iterator = iter(self._data)
        self._counter.begin()

    def begin_next(self) -> None:
        """Ends a pass whose batches were all taken, and begins the next one."""
        self._read_end()
        self.leave()
        self._begin()

    def close(self) -> None:
        """Drops the iterator over the data set; its pass stays open."""
        self._iterator = None

    def note_end(self) -> None:
        """Ends the pass, since the data has ended."""
        if self._prints is not None and self._counter.own is not None:
            self._ended.append(self._counter.own)
        self.leave()

    def leave(self) -> None:
        """Ends the pass, and drops its iterator: the next one is read from the data's start."""
        self._iterator = None
        self._counter.end()

    def _read_end(self) -> None:
        """Reads to the end of the data, after the last batch, if a `shuffle` draws a seed there.

        When a `repeat` has read its input for the last time, TensorFlow creates one more iterator
        of this input, and a `shuffle` in the input draws one more seed. In Keras this has always
        happened before the data is read again, since TensorFlow's automatic `prefetch` reads ahead
        to the end. kfit may read the data again so soon that the `prefetch` has not come to the end
        yet. Then the seeds would depend on timing, so this method makes sure that the end is read.
        """
        if self._draws_within and self._iterator is not None:
            self._iterator.get_next_as_optional()

    @cached_property
    def _draws_within(self) -> bool:
        """Whether a `shuffle` of the data set draws seeds after the first batch was read.

        The seeds that it draws next then depend on how far the data was read. The value is also
        False if each task (process) reads its own part of the data, since such data is not
        inspected.
        """
        return not self._per_replica and LateShuffles.of(self._pipeline).draws_within

    def rewind(self) -> None:
        """Ends the pass, also one in which a snapshot was taken.

        If a position in the data was restored but is not applied yet, only its number of passes is
        kept, since it determines the seeds of the data set's `shuffle`s.
        """
        self.leave()
        if self._resume_at is not None:
            self._resume_at = self._resume_at._replace(own=None, taken=0)

    def took(self, steps: int) -> None:
        """Counts the batches that training has taken, since a snapshot needs the position."""
        self._counter.take(steps)
        if steps and self._prints is not None:
            self._prints.took(self._counter.taken)
            self._last_pass = self._counter.own

    def keep_states(self) -> None:
        """Begins to record the state that the pipeline keeps from one iterator to the next.

        A warning is given if the order of the pipeline's batches can't be reproduced.
        """
        if self._pipeline is None:
            return
        held = state_of(self._pipeline)
        if held.unordered:
            warn_user(
                f"`x`, a tf.data.Dataset, has {' and '.join(held.unordered)}: it makes other "
                "batches each time it is read, so training sees others after a restart than it "
                "would have seen without. Give seeds (`keras.utils.set_random_seed`; "
                "`sample_from_datasets` draws by a `random`), leave `deterministic=False` out, and "
                "draw random numbers in a `map` without `num_parallel_calls`, or by "
                "`tf.random.stateless_uniform` and the like, and count in variables instead of "
                "tables."
            )
        if self._is_counted_apart:
            warn_user(
                "Two tf.data.Datasets of this program read one `shuffle`, and at least one of them "
                "has others besides: TensorFlow draws the orders of both from one sequence, so "
                "after a restart some come in another order than they would have without. Give "
                "this `shuffle` `reshuffle_each_iteration=False`, or each data set its own."
            )
        if held:
            self._held = HeldState(held)
        if held.is_remembered and not self._per_replica:
            self._prints = BatchPrints()
            self._data = self._prints.recorded(self._data)

    def belongings(self) -> set[int]:
        """Returns the ids (as of `id`) of the variables that the pipeline writes to.

        They are those of random generators, for example. Their values are saved with the data, so
        they are skipped when the state of the user's callbacks is saved.
        """
        return set() if self._held is None else set(map(id, self._held.written))

    def generators(self) -> Generators | None:
        """Returns the global random generators' states if reading data again has changed them.

        When training resumes, earlier batches may be read again to reach the position of the
        snapshot. If Python code of the pipeline draws from the global random generators meanwhile,
        the generators end up in the states with which this code must continue. The result is then
        their current states. It tells the caller not to overwrite them with states from the
        snapshot.

        Returns:
            The current states; None if reading data again has not changed the generators.
        """
        return Generators.now() if self._held is not None and self._held.has_drawn else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data, and the state of the pipeline, for a snapshot.

        The position is the number of passes (readings of all the data) that have begun, and the
        number of batches taken in the present pass. The state of the pipeline is what it keeps from
        one iterator to the next; it is contained only if `keep_states` was called. If all passes
        are read again when training resumes, there are also a checksum of the last batch, how many
        batches the pipeline has made in this pass, the number of the pass, and the numbers of the
        passes whose end was read.
        """
        state = self._counter.state_dict()
        if self._resume_at is not None:  # as validation data has not been read since the restart
            begun, own, taken = self._resume_at
            state = {"begun": max(begun, state["begun"]), "own": own, "taken": taken}
        if self._held is None:
            return state
        held = self._held.state_dict(self._counter.is_open and self._counter.taken > 0)
        passes = {"first": self._counter.first, "passes": self._counter.passes()}
        if self._prints is not None:
            prints = {"last": self._prints.last, "made": self._prints.made}
            ends = {"last_pass": self._last_pass, "ended_passes": list(self._ended)}
            return {**state, **passes, **held, **prints, **ends}
        return {**state, **passes, **held}

    def load_state_dict(self, state: dict[str, Any], length: int | None) -> None:
        """Restores the position in the data that a snapshot contains, when training resumes.

        To reach the position, batches before it are read again and dropped. Usually these are only
        the earlier batches of the pass (reading of all the data) in which the snapshot was taken,
        and they are read when the next segment (group of steps) begins. But if the pipeline keeps
        state from one iterator to the next, this method reads them at once, and may also read
        batches of earlier passes again. Between two passes there is nothing to read if this state
        is in variables only. Then another pipeline over the same `shuffle` may begin the passes.

        Args:
            state: What `state_dict` returned for the snapshot.
            length: The number of batches in a pass; None if it is not known.
        """
        place = _Place.of(state)
        is_between = place.own is None and self._held is not None and self._held.has_only_variables
        if self._held is not None and "passes" in state and not is_between:
            self._take_again(state, place, length)
            return
        self.leave()
        if self._held is not None and "passes" in state:
            self._held.begin_last(state)
        self._resume_at = place

    def pass_over(self, batches: int) -> None:
        """Skips the next `batches` batches; called after `load_state_dict`.

        Used if a callback goes back to a snapshot because of bad batches, for example if the loss
        became NaN; these batches are then left out. They are skipped at once if `load_state_dict`
        has read the data again; otherwise they are skipped when the next segment (group of steps)
        begins.
        """
        if batches and self._held is not None:
            self.go_on()
            if self._iterator is None:
                self._begin()
            self._drop(batches)
        elif batches and self._resume_at is not None:
            at = self._resume_at
            if at.own is None:  # skips batches of the next pass
                at = at._replace(own=at.begun, begun=at.begun + 1)
            self._resume_at = at._replace(taken=at.taken + batches)

    def settle(self) -> None:
        """Creates the iterators of the passes before a snapshot, if this `fit` takes no more steps.

        A pass is one reading of all the data, by one iterator. Whenever an iterator over the data
        set is created, each `shuffle` of the data set draws a new seed. So the seeds of the next
        `fit` depend on how many iterators were created before it. When training resumes, an
        iterator is therefore created for each pass that began before the snapshot. Usually this is
        done when the next segment (group of steps) begins. If training resumes at its end, no
        segment follows, and this method does it. The next `fit` then gets the seeds that it would
        have had without the restart.
        """
        if self._resume_at is not None:
            self._resume_at = self._resume_at._replace(own=None)
            self.go_on()

    def _take_again(self, state: dict[str, Any], place: _Place, length: int | None) -> None:
        """Restores the state that the pipeline had at the snapshot, by reading batches again.

        Used if the pipeline keeps state from one iterator to the next; otherwise `go_on` is used.
        A pass is one reading of all the data. The pass in which the snapshot was taken is read
        again up to the snapshot's position. All earlier passes of the training are read again, too,
        if Python code may have hidden state, or if shuffles draw seeds in the midst of a pass.
        Otherwise only the first pass is read again, and only if the pipeline has a `cache`, which
        this reading fills.

        Args:
            state: What `state_dict` returned.
            place: The position in the data that `state` describes.
            length: As for `load_state_dict`.
        """
        assert self._held is not None
        self.leave()
        first, passes = int(state["first"]), [int(taken) for taken in state["passes"]]
        while self._counter.begun < first:  # passes begun before this training
            iter(self._data)
            self._held.begin_shuffles()
            self._counter.begin_another()
        numbers = [number for number in range(first, first + len(passes)) if number != place.own]
        count = sum(passes[number - first] for number in numbers)
        self._ended = []
        if count and self._held.is_remembered:
            warn_user(
                f"`x`, a tf.data.Dataset that calls Python, is read again from its start, "
                f"{count} batches of earlier passes, since its code may keep something from "
                "pass to pass. If each pass begins it anew, set the data set's option "
                "`experimental_external_state_policy` to "
                "`tf.data.experimental.ExternalStatePolicy.IGNORE`."
            )
        elif count and self._held.reads_for_shuffles:
            warn_user(
                f"`x`, a tf.data.Dataset, is read again from its start, {count} batches of earlier "
                "passes, since its `shuffle` stands before a `repeat`, in the second part of a "
                "`concatenate`, or in a data set that a function reads: the orders that it has "
                "drawn depend on what was read. Put the `shuffle` after these to avoid this."
            )
        is_same = True
        with self._held.again(state):
            for index, number in enumerate(numbers):
                taken = passes[number - first]
                self._begin()
                read = taken if self._held.is_read(index) else 0
                if read:
                    is_same &= self._drop(read) == read
                    is_same &= self._is_as_before(state, number)
                    if read == length:
                        self._read_end()
                elif taken and self._per_replica:
                    self._drop(1)
                    read = 1
                elif taken:
                    self._held.begin_shuffles()
                self._counter.take(taken - read)
            self.leave()
            self._held.begin_last(state)
            if place.own is not None:
                self._begin()
                is_same &= self._drop(place.taken) == place.taken
                is_same &= self._is_as_before(state, place.own)
        if not is_same:
            self._warn_of_others()

    def _drop(self, batches: int) -> int:
        """Takes batches from the iterator without training on them, to restore a position.

        Returns:
            The number of batches that were taken: fewer than `batches` if the data has ended.
        """
        read = sum(1 for _ in itertools.islice(self._iterator, batches))
        self.took(batches)
        return read

    def _is_as_before(self, state: dict[str, Any], number: int) -> bool:
        """Returns whether a pass that was read again seems to be the same as before the restart.

        Its length and its last batch are compared, as far as the snapshot has them. If training has
        read the end of the pass, this method reads it, too. If batches were made ahead when
        training left the pass, this method takes them.

        Args:
            state: What `state_dict` returned.
            number: The number that the pass had before the restart.
        """
        if self._prints is None or self._counter.own is None:
            return True
        if number in state.get("ended_passes", []):
            self._ended.append(self._counter.own)
            if self._iterator.get_next_as_optional().has_value():
                return False
        if number != state.get("last_pass"):
            return True
        is_same = self._prints.last == state["last"]
        ahead = 0 if number == state["own"] else max(0, state["made"] - self._counter.taken)
        return sum(1 for _ in itertools.islice(self._iterator, ahead)) == ahead and is_same

    def _warn_of_others(self) -> None:
        warn_user(
            "`x`, a tf.data.Dataset, did not yield the same batches again when it was read from "
            "its start up to the position of the snapshot: training may go on with other batches "
            "than it would have without the restart. No hooks run while earlier passes are read "
            "again, so what a hook changes, such as a level of difficulty, must not decide what "
            "the data set's Python code yields or draws. If each pass begins anew, set the data "
            "set's option `experimental_external_state_policy` to "
            "`tf.data.experimental.ExternalStatePolicy.IGNORE`. Otherwise pass a "
            "keras.utils.PyDataset, or an object with `state_dict` and `load_state_dict`."
        )

    def go_on(self) -> None:
        """Moves to the restored position, and draws the seeds of earlier passes over the data.

        Called when the next segment (group of steps) begins, or by `settle`. A pass is one reading
        of all the data, by one iterator. When an iterator is created, the data set's `shuffle`s
        draw the seeds of its pass. So an iterator is created for each pass that began before the
        snapshot. Later passes then get the seeds that they would have had without the restart. If
        the snapshot was taken in the midst of a pass, the batches that had been taken from this
        pass are skipped.
        """
        if self._resume_at is None:
            return
        place, self._resume_at = self._resume_at, None
        while self._counter.begun < (place.begun if place.own is None else place.own):
            self._begin()
        self.leave()
        if place.own is None:
            return
        if self._pipeline is not None and self._counter.begun > place.own:
            self._warn_of_another_pass()
        if isinstance(self._data, tf.data.Dataset):
            # `skip` draws no seeds, so this iterator draws the same ones as without it.
            self._iterator = iter(self._data.skip(place.taken))
            self._counter.begin()
            self._counter.take(place.taken)
        else:
            self._begin()
            if self._drop(place.taken) < place.taken:
                self._warn_of_others()
        while self._counter.begun < place.begun:  # begun by other calls during this pass
            iter(self._data)
            self._counter.begin_another()

    def _warn_of_another_pass(self) -> None:
        assert self._pipeline is not None
        if draws_anew(self._pipeline):
            warn_user(
                "`x`, a tf.data.Dataset whose `shuffle` draws another order in each pass, has been "
                "begun in this process since the snapshot was taken: the rest of the epoch comes "
                "in another order than it would have had, so that some examples are seen twice. "
                "Make the data set anew before this `fit`, or restart the program."
            )


class _Place(NamedTuple):
    """The position in a data set from which training resumes.

    A pass is one reading of all the data. It is open until it has ended.

    Attributes:
        begun: The number of all passes that had begun before the snapshot, including those of other
            calls on the same data set.
        own: The number of the pass that was open at the snapshot, where the first pass of the
            program is 0; None if no pass was open.
        taken: The number of batches that had been taken from the open pass.
    """

    begun: int
    own: int | None
    taken: int

    @classmethod
    def of(cls, state: dict[str, Any]) -> _Place:
        """Creates a position from what `DatasetReading.state_dict` returned."""
        own, taken = state["own"], state["taken"]
        return cls(int(state["begun"]), None if own is None else int(own), int(taken or 0))
