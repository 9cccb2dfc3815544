"""Batches of `tf.data.Dataset`s, which the user has batched to the global batch size.

kfit does not change the order of a data set. `kfit.distribute.dataset_sharding` divides the data
set among workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.checkpoint.schema import Check, count, optional
from kfit.distribute.dataset_sharding import share, spec_of_replica
from kfit.distribute.pipeline_parts import parts_of
from kfit.distribute.strategy import Strategy
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.batch_prints import BatchPrints
from kfit.inputs.batches import (
    NO_BATCH,
    Batches,
    BatchLayout,
    Segment,
    Stream,
    Template,
    are_counted_apart,
    as_keras_tensor,
    empty_pipeline,
    is_missing,
    static_batch_size,
)
from kfit.inputs.late_shuffles import LateShuffles, draws_anew, shuffles_of, source_of_orders
from kfit.inputs.pipeline_state import HeldState, state_of
from kfit.internals.tf_data import batch_size_of
from kfit.objects import Generators


class DatasetBatches(Batches):
    """Batches of a `tf.data.Dataset`, a distributed data set, or a function that makes a data set.

    Args:
        source: A `tf.data.Dataset` batched to the global batch size; a distributed data set; or a
            function from a `tf.distribute.InputContext` to a data set batched per replica.
        strategy: kfit's wrapper of the `tf.distribute` strategy, whose replicas share each batch.
        steps_per_epoch: The number of steps in an epoch, or None for one reading of all the data.
        class_weight: The weight of each class, as for `fit`; converted to sample weights.

    Raises:
        ValueError: If the data set is empty, or an argument can't be used with it.
    """

    def __init__(
        self,
        source: Any,
        *,
        strategy: Strategy,
        steps_per_epoch: int | None,
        class_weight: Mapping[int, float] | None = None,
    ) -> None:
        self._continues = steps_per_epoch is not None
        self._iterator: Any = None
        self._stream = Stream()
        self._counted_apart = False
        self._resume_at: _Place | None = None
        self._endless = False
        self._per_replica = False
        self._has_one_size = True
        self._pipeline: tf.data.Dataset | None = None
        self._held: HeldState | None = None
        self._prints: BatchPrints | None = None
        self._last_pass: int | None = None
        self._ended: list[int] = []
        self._template: Template | None = None
        self._strategy = strategy
        if isinstance(source, tf.data.Dataset):
            given = source
            weighed = _with_class_weight(source, class_weight)
            source = self._pipeline = _read_in_step(self._without_missing(weighed))
            cardinality = int(source.cardinality())
            self._endless = cardinality == tf.data.INFINITE_CARDINALITY
            self._spec = source.element_spec
            self.batch_size = static_batch_size(self._spec)
            self._data, self._per_replica = share(source, strategy)
            if not self._per_replica:
                self.counted_by = source_of_orders(given)
                self._stream = Stream(self.counted_by)
                self._counted_apart = are_counted_apart(shuffles_of(given), self.counted_by)
            if strategy.num_workers > 1 and not self._per_replica:
                HeldState(state_of(source)).share(strategy.host_collectives)
            if cardinality == 0:
                raise ValueError(NO_BATCH)
            if cardinality > 0 and not self._per_replica:
                self.length = cardinality  # with TensorFlow's sharding, the length may be another
        else:
            if class_weight is not None:
                raise ValueError(
                    "`class_weight` needs `x` to be arrays, a tf.data.Dataset or a PyDataset. "
                    f"Received: x={source!r}"
                )
            if steps_per_epoch is None and not strategy.synchronous:
                # Raised before the workers create their data sets: the process would abort if it
                # ended while they do.
                raise ValueError(
                    "`steps_per_epoch` (or `steps`) must be given: each worker has a data set of "
                    "its own, and no epoch has an end."
                )
            if callable(source):
                make = _returning_a_data_set(source)
                source = strategy.distribute_datasets_from_function(
                    lambda context: self._without_missing(make(context))
                )
            self._data, self._per_replica = source, True
            self._spec = spec_of_replica(source.element_spec)
            _require_all_parts(self._spec)
            cardinality = getattr(source, "cardinality", tf.data.UNKNOWN_CARDINALITY)
            self._endless = cardinality == tf.data.INFINITE_CARDINALITY
        if self._per_replica:
            self._has_one_size = _agree_on_form(
                self._endless, static_batch_size(self._spec), strategy
            )
        self.steps = steps_per_epoch or self.length
        self._is_counted = self.length is not None
        self.lacks_end = self._endless and self.steps is None
        self.has_parts = self._per_replica

    @property
    def examples_per_step(self) -> int | None:
        """The batch size that the pipeline was made with, even if a last batch may be smaller."""
        if self.batch_size is not None or self._pipeline is None:
            return self.batch_size
        sizes = (batch_size_of(part) for part in parts_of(self._pipeline))
        return next((size for size in sizes if size), None)

    @property
    def spec(self) -> Any:
        """The structure of a global batch, made of `keras.KerasTensor`s of shape `(None, ...)`."""
        spec = tf.nest.map_structure(as_keras_tensor, self._spec)
        return spec if self._template is None else self._template.pack(spec)

    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """Yields the steps of an epoch, from `step` on, as one segment.

        A segment is a group of steps that a single call of a `tf.function` can take.

        Args:
            epoch: The number of the epoch; the first one is 0.
            step: The step to begin at; not 0 if training resumes within the epoch.

        Raises:
            ValueError: If the data never ends, and `steps_per_epoch` was not given.
        """
        if self.lacks_end:
            raise ValueError(
                "`steps_per_epoch` (or `steps`) must be given: `x` is a data set that never ends."
            )
        _, start, steps = self.epoch(epoch)
        starts = self.length is not None and start == 0 and step == 0
        if self._resume_at is not None:
            self._go_on()
        is_over = (step == 0 and not self._continues) or (starts and self._stream.taken > 0)
        if self._iterator is None or is_over:
            self._begin()
        elif self._held is not None and not self._per_replica and self._stream.taken == 0:
            self._held.begin()  # hooks or the validation may have drawn since the pass was begun
        remaining = None if steps is None else steps - step
        yield Segment(self._layout, remaining, iterator=self._iterator)

    def on_epoch_end(self) -> None:
        """Drops an iterator that has come to its end, and creates a new one when Keras does.

        Deleting the old iterator later could block for seconds. When data of a known length was
        read to its end, Keras creates a new iterator, even if no epoch follows. Each new iterator
        draws the seeds of the data set's `shuffle`s. So kfit creates an iterator, too: otherwise
        the data would be read next in a different order than in Keras.
        """
        is_over = self._is_counted and self._stream.is_open and self._stream.taken == self.length
        if is_over:
            self._read_end()
            self._leave()
            self._begin()
        if not self._continues:
            self._leave()

    def close(self) -> None:
        """Drops the iterator over the data set."""
        self._iterator = None

    def restart(self) -> None:
        """Ends the pass, since the data has ended: the next epoch reads it from its start."""
        if self._prints is not None and self._stream.own is not None:
            self._ended.append(self._stream.own)
        self._leave()

    def _leave(self) -> None:
        """Drops the iterator, so that the next epoch reads the data set from its start."""
        self._iterator = None
        self._stream.end()

    def rewind(self) -> None:
        """Makes the next segment (group of steps) begin at the start of the data.

        The method is called at the beginning of `fit` and of each evaluation. If a position in the
        data was restored but is not applied yet, only its number of passes (readings of all the
        data) is kept, since it determines the seeds of the data set's `shuffle`s.
        """
        self._leave()
        if self._resume_at is not None:
            self._resume_at = self._resume_at._replace(own=None, taken=0)

    def took(self, steps: int) -> None:
        """Counts the batches that training has taken, since a snapshot needs the position."""
        self._stream.take(steps)
        if steps and self._prints is not None:
            self._prints.took(self._stream.taken)
            self._last_pass = self._stream.own

    def keep_states(self, foreign: Collection[int] = ()) -> None:
        """Begins to record the state that the pipeline keeps from one iterator to the next.

        `fit` calls this method before any data is read, if a callback may save or restore
        snapshots. A warning is given if the order of the pipeline's batches can't be reproduced.

        Args:
            foreign: Not used here; see `Batches.keep_states`.
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
        if self._counted_apart:
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
        state = self._stream.state_dict()
        if self._resume_at is not None:  # as validation data has not been read since the restart
            begun, own, taken = self._resume_at
            state = {"begun": max(begun, state["begun"]), "own": own, "taken": taken}
        if self._held is None:
            return state
        held = self._held.state_dict(self._stream.is_open and self._stream.taken > 0)
        passes = {"first": self._stream.first, "passes": self._stream.passes()}
        if self._prints is not None:
            prints = {"last": self._prints.last, "made": self._prints.made}
            ends = {"last_pass": self._last_pass, "ended_passes": list(self._ended)}
            return {**state, **passes, **held, **prints, **ends}
        return {**state, **passes, **held}

    @property
    def checks(self) -> Mapping[str, Check]:
        """A check of each value of a state that was read from a file, by its key."""
        return {"begun": count, "own": optional(count), "taken": optional(count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the position in the data that a snapshot contains, when training resumes.

        To reach the position, batches before it are read again and dropped. Usually these are only
        the earlier batches of the pass (reading of all the data) in which the snapshot was taken,
        and they are read when the next segment (group of steps) begins. But if the pipeline keeps
        state from one iterator to the next, this method reads them at once, and may also read
        batches of earlier passes again. Between two passes there is nothing to read if this state
        is in variables only. Then another pipeline over the same `shuffle` may begin the passes.

        Args:
            state: What `state_dict` returned for the snapshot.
        """
        place = _Place.of(state)
        is_between = place.own is None and self._held is not None and self._held.has_only_variables
        if self._held is not None and "passes" in state and not is_between:
            self._take_again(state, place)
            return
        self._leave()
        if self._held is not None and "passes" in state:
            self._held.begin_last(state)
        self._resume_at = place

    @contextmanager
    def kept_from(self, x: Any) -> Iterator[None]:
        """A context in which other data is read; warns if the two draw from one sequence.

        A `shuffle` draws the seed of its next order for whichever pipeline is read, and TensorFlow
        cannot take it back.
        """
        if self._pipeline is not None and isinstance(x, tf.data.Dataset):
            own, other = _sequences_of(self._pipeline), _sequences_of(x)
            if not {id(part) for part in own}.isdisjoint(id(part) for part in other):
                warn_user(
                    "Training and evaluation read one `shuffle` or one random generator of "
                    "tf.data: each evaluation draws from it, so training sees another order than "
                    "without the evaluation, and than after a restart. And where the two are "
                    "parts of one shuffled data set, by `take` and `skip`, examples of training "
                    "come into the evaluation. Give the `shuffle` "
                    "`reshuffle_each_iteration=False`, or shuffle the part for training alone."
                )
        yield

    def pass_over(self, batches: int) -> None:
        """Skips the next `batches` batches; called after `load_state_dict`.

        Used if a callback goes back to a snapshot because of bad batches, for example if the loss
        became NaN; these batches are then left out. They are skipped at once if `load_state_dict`
        has read the data again; otherwise they are skipped when the next segment (group of steps)
        begins.
        """
        if batches and self._held is not None:
            if self._resume_at is not None:
                self._go_on()
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
            self._go_on()

    def empty_segment(self) -> Segment:
        """Returns a segment (group of steps) without any batch, with which a step is traced.

        The segment reads an empty data set: a new iterator over the user's data set would draw
        seeds of the user's `shuffle`s.
        """
        spec = spec_of_replica(self._data.element_spec) if self._per_replica else self._spec
        nothing: Any = empty_pipeline(spec)
        if self._per_replica:
            empty = nothing
            nothing = self._strategy.distribute_datasets_from_function(lambda context: empty)
        return Segment(self._layout, 0, iterator=iter(nothing))

    @property
    def _layout(self) -> BatchLayout:
        return BatchLayout(
            None if self._per_replica else self.batch_size,
            per_replica=self._per_replica,
            template=self._template,
            # Replicas with batches of other sizes must exchange these in each step.
            endless=self._endless and self._has_one_size,
        )

    def _without_missing(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a data set of flat tuples, if parts of its elements are None, and notes where.

        Loops in graphs, replicas and `tf.distribute` take no None.
        """
        spec = dataset.element_spec
        if not any(map(is_missing, keras.tree.flatten(spec))):
            return dataset
        self._template = template = Template(keras.tree.map_structure(_none_if_missing, spec))

        @tf.autograph.experimental.do_not_convert
        def flatten(*parts: Any) -> tuple[Any, ...]:
            batch = parts if type(spec) is tuple else parts[0]
            return template.flatten(keras.tree.map_structure(_none_if_missing, batch))

        return dataset.map(flatten)

    def _begin(self) -> None:
        if self._held is not None:
            self._held.begin()
        if self._prints is not None:
            self._prints.begin()
        self._iterator = iter(self._data)
        self._stream.begin()

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

    def _take_again(self, state: dict[str, Any], place: _Place) -> None:
        """Restores the state that the pipeline had at the snapshot, by reading batches again.

        Used if the pipeline keeps state from one iterator to the next; otherwise `_go_on` is used.
        A pass is one reading of all the data. The pass in which the snapshot was taken is read
        again up to the snapshot's position. All earlier passes of the training are read again, too,
        if Python code may have hidden state, or if shuffles draw seeds in the midst of a pass.
        Otherwise only the first pass is read again, and only if the pipeline has a `cache`, which
        this reading fills.

        Args:
            state: What `state_dict` returned.
            place: The position in the data that `state` describes.
        """
        assert self._held is not None
        self._leave()
        first, passes = int(state["first"]), [int(taken) for taken in state["passes"]]
        while self._stream.begun < first:  # passes begun before this training
            iter(self._data)
            self._held.begin_shuffles()
            self._stream.begin_another()
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
                    if read == self.length:
                        self._read_end()
                elif taken and self._per_replica:
                    self._drop(1)
                    read = 1
                elif taken:
                    self._held.begin_shuffles()
                self._stream.take(taken - read)
            self._leave()
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
        if self._prints is None or self._stream.own is None:
            return True
        if number in state.get("ended_passes", []):
            self._ended.append(self._stream.own)
            if self._iterator.get_next_as_optional().has_value():
                return False
        if number != state.get("last_pass"):
            return True
        is_same = self._prints.last == state["last"]
        ahead = 0 if number == state["own"] else max(0, state["made"] - self._stream.taken)
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

    def _go_on(self) -> None:
        """Moves to the restored position, and draws the seeds of earlier passes over the data.

        Called when the next segment (group of steps) begins, or by `settle`. A pass is one reading
        of all the data, by one iterator. When an iterator is created, the data set's `shuffle`s
        draw the seeds of its pass. So an iterator is created for each pass that began before the
        snapshot. Later passes then get the seeds that they would have had without the restart. If
        the snapshot was taken in the midst of a pass, the batches that had been taken from this
        pass are skipped.
        """
        assert self._resume_at is not None
        place, self._resume_at = self._resume_at, None
        while self._stream.begun < (place.begun if place.own is None else place.own):
            self._begin()
        self._leave()
        if place.own is None:
            return
        if self._pipeline is not None and self._stream.begun > place.own:
            self._warn_of_another_pass()
        if isinstance(self._data, tf.data.Dataset):
            # `skip` draws no seeds, so this iterator draws the same ones as without it.
            self._iterator = iter(self._data.skip(place.taken))
            self._stream.begin()
            self._stream.take(place.taken)
        else:
            self._begin()
            if self._drop(place.taken) < place.taken:
                self._warn_of_others()
        while self._stream.begun < place.begun:  # begun by other calls during this pass
            iter(self._data)
            self._stream.begin_another()

    def _warn_of_another_pass(self) -> None:
        assert self._pipeline is not None
        if draws_anew(self._pipeline):
            warn_user(
                "`x`, a tf.data.Dataset whose `shuffle` draws another order in each pass, has been "
                "begun in this process since the snapshot was taken: the rest of the epoch comes "
                "in another order than it would have had, so that some examples are seen twice. "
                "Make the data set anew before this `fit`, or restart the program."
            )


def _sequences_of(dataset: tf.data.Dataset) -> list[Any]:
    """Returns what each reading of a pipeline moves on: its shuffles, and variables it writes."""
    return [*shuffles_of(dataset), *state_of(dataset).variables]


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
        """Creates a position from what `DatasetBatches.state_dict` returned."""
        own, taken = state["own"], state["taken"]
        return cls(int(state["begun"]), None if own is None else int(own), int(taken or 0))


def _agree_on_form(is_endless: bool, size: int | None, strategy: Strategy) -> bool:
    """Checks that the data of which each worker has a part ends on all workers, or on none.

    In each step, workers whose data may end ask the others whether they still have data. A worker
    whose data never ends asks nobody. All workers must call this function.

    Args:
        is_endless: Whether the data of this worker never ends.
        size: The number of examples in each batch of this worker; None if it is not fixed.
        strategy: kfit's wrapper of the `tf.distribute` strategy.

    Returns:
        Whether the workers' batches have the same fixed size, or none has a fixed one.

    Raises:
        ValueError: On all workers, if the data never ends on some of them only.
    """
    views, sizes = strategy.host_collectives.all_gather([is_endless, size or -1]).T
    if len(set(views)) > 1:
        endless = ", ".join(f"worker {index}" for index, view in enumerate(views) if view)
        raise ValueError(
            f"`x` makes a data set that never ends on {endless}, and one that ends on the other "
            "workers. Call `repeat()` on every worker, and give `steps_per_epoch` (or `steps`), or "
            "call it on none."
        )
    return len(set(sizes)) == 1


def _returning_a_data_set(function: Callable[[Any], Any]) -> Callable[[Any], tf.data.Dataset]:
    def checked(context: Any) -> tf.data.Dataset:
        made = function(context)
        if not isinstance(made, tf.data.Dataset):
            raise ValueError(
                "`x` is a function, which must return a tf.data.Dataset. It returned: "
                f"{made!r} (of type {type(made)})"
            )
        return made

    return checked


def _none_if_missing(part: Any) -> Any:
    return None if is_missing(part) or isinstance(part, tf.experimental.Optional) else part


def _require_all_parts(spec: Any) -> None:
    """Raises an error if a part of a distributed data set is None, which graphs cannot read."""
    if any(map(is_missing, tf.nest.flatten(spec))):
        raise ValueError(
            "`x`, a distributed data set, yields None, which a `tf.distribute` strategy cannot "
            "give to its replicas. Leave the None out before the data set is distributed, such as "
            "by `map(lambda x, y, sample_weight: (x, y))`, or pass the tf.data.Dataset itself. "
            f"Received: {spec}"
        )


def _read_in_step(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off TensorFlow's automatic `prefetch` if it could change which seeds a data set draws.

    TensorFlow appends a `prefetch`, which reads elements ahead, to a pipeline that has none. If a
    `shuffle` stands before an endless `repeat`, the `shuffle` draws a new seed for each repetition.
    Whether the `prefetch` has already begun the next repetition when training ends depends on
    timing. So the seeds in the next `fit` on the data set would depend on timing, too.

    Returns:
        The data set with this option; the given data set itself if it is finite, or draws no seeds
        after its first batch.
    """
    # A finite data set is read to its end in each pass, so the `prefetch` makes no difference.
    is_endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    if not is_endless or not LateShuffles.of(dataset).draws_within:
        return dataset
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _classes(y: tf.Tensor) -> tf.Tensor:
    """Converts targets to class indices, by which their class weights are looked up.

    Args:
        y: Class indices of shape `(n,)` or `(n, 1)`, or one-hot rows of shape `(n, classes)`. As in
            Keras, targets of unknown rank are class indices.

    Returns:
        An int64 tensor of class indices.
    """

    def numbers(labels: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.round(labels) if labels.dtype.is_floating else labels, tf.int64)

    if y.shape.rank is None or y.shape.rank < 2:
        return numbers(y)
    is_column = tf.equal(tf.shape(y)[-1], 1)
    return tf.cond(is_column, lambda: numbers(y[..., 0]), lambda: tf.argmax(y, axis=-1))


def _with_class_weight(
    dataset: tf.data.Dataset, class_weight: Mapping[int, float] | None
) -> tf.data.Dataset:
    if not class_weight:
        return dataset
    keys = tf.constant([int(label) for label in class_weight], tf.int64)
    values = tf.constant([float(w) for w in class_weight.values()], keras.config.floatx())
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 1.0)

    @tf.autograph.experimental.do_not_convert
    def weigh(*batch: Any) -> tuple[Any, Any, tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
            batch[0] if len(batch) == 1 else batch
        )
        if sample_weight is not None:
            raise ValueError("`class_weight` and sample weights yielded by `x` exclude each other.")
        if tf.nest.is_nested(y):
            raise ValueError("`class_weight` is only supported for models with a single output.")
        if y is None:
            raise ValueError("`class_weight` needs `y`, the classes, but `x` yields no targets.")
        return x, y, table.lookup(_classes(y))

    return dataset.map(weigh)
