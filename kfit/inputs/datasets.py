"""Batches of `tf.data.Dataset`s, which the user has batched to the global batch size.

kfit does not change the order of a data set. `kfit.distribute.dataset_sharding` divides the data
set among workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.dataset_sharding import share, spec_of_replica
from kfit.distribute.strategy import Strategy
from kfit.inputs.batches import (
    NO_BATCH,
    Batches,
    BatchLayout,
    Segment,
    Stream,
    as_keras_tensor,
    empty_pipeline,
    static_batch_size,
)
from kfit.inputs.late_shuffles import LateShuffles, draws_anew
from kfit.inputs.pipeline_state import HeldState, state_of
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
        self._resume_at: _Place | None = None
        self._endless = False
        self._per_replica = False
        self._pipeline: tf.data.Dataset | None = None
        self._held: HeldState | None = None
        self._strategy = strategy
        if isinstance(source, tf.data.Dataset):
            given = source
            source = self._pipeline = _read_in_step(_with_class_weight(source, class_weight))
            cardinality = int(source.cardinality())
            self._endless = cardinality == tf.data.INFINITE_CARDINALITY
            self._spec = source.element_spec
            self.batch_size = static_batch_size(self._spec)
            self._data, self._per_replica = share(source, strategy)
            if not self._per_replica:
                self._stream = Stream(given)
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
                source = strategy.distribute_datasets_from_function(_returning_a_data_set(source))
            self._data, self._per_replica = source, True
            self._spec = spec_of_replica(source.element_spec)
            cardinality = getattr(source, "cardinality", tf.data.UNKNOWN_CARDINALITY)
            self._endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.steps = steps_per_epoch or self.length
        self._is_counted = self.length is not None
        self.has_parts = self._per_replica

    @property
    def spec(self) -> Any:
        """See `Batches.spec`."""
        return tf.nest.map_structure(as_keras_tensor, self._spec)

    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """See `Batches.segments`.

        Raises:
            ValueError: If the data never ends, and the number of steps was not given.
        """
        if self.steps is None and self._endless:
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
        examples = None if self._per_replica else self.batch_size
        remaining = None if steps is None else steps - step
        layout = BatchLayout(examples, per_replica=self._per_replica, endless=self._endless)
        yield Segment(layout, remaining, iterator=self._iterator)

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
            self.restart()
            self._begin()
        if not self._continues:
            self.restart()

    def close(self) -> None:
        """Drops the iterator over the data set."""
        self._iterator = None

    def restart(self) -> None:
        """Drops the iterator, so that the next epoch reads the data set from its start."""
        self._iterator = None
        self._stream.end()

    def rewind(self) -> None:
        """See `Batches.rewind`."""
        self.restart()
        if self._resume_at is not None:
            self._resume_at = self._resume_at._replace(own=None, taken=0)

    def took(self, steps: int) -> None:
        """Counts the batches that training has taken, since a snapshot needs the position."""
        self._stream.take(steps)

    def keep_states(self, foreign: Collection[int] = ()) -> None:
        """See `Batches.keep_states`; warns if the pipeline's order can't be reproduced."""
        if self._pipeline is None:
            return
        held = state_of(self._pipeline)
        if held.unordered:
            warnings.warn(
                f"`x`, a tf.data.Dataset, has {' and '.join(held.unordered)}: it makes other "
                "batches each time it is read, so training sees others after a restart than it "
                "would have seen without. Give seeds (`keras.utils.set_random_seed`; "
                "`sample_from_datasets` draws by a `random`), leave `deterministic=False` out, and "
                "draw random numbers in a `map` without `num_parallel_calls`, or by "
                "`tf.random.stateless_uniform` and the like.",
                stacklevel=2,
            )
        if held:
            self._held = HeldState(held)

    def generators(self) -> Generators | None:
        """Returns the current states if restoring has changed the generators, otherwise None.

        To restore the state of a data set, earlier batches may be read again. If the data set's
        Python code draws random numbers for these batches, the global random generators then have
        the states with which this code must continue. A result other than None tells the caller not
        to change the generators.
        """
        return Generators.now() if self._held is not None and self._held.has_drawn else None

    def state_dict(self) -> dict[str, Any]:
        """See `Batches.state_dict`."""
        state = self._stream.state_dict()
        if self._held is None:
            return state
        held = self._held.state_dict(self._stream.is_open and self._stream.taken > 0)
        passes = {"first": self._stream.first, "passes": self._stream.passes()}
        return {**state, **passes, **held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Batches.load_state_dict`. Batches before the snapshot are read again and dropped.

        Usually these are the batches of the pass (reading of all the data) in which the snapshot
        was taken, and they are read when the next segment begins. But if the pipeline keeps state
        from one iterator to the next, they are read at once, and batches of earlier passes may be
        read again, too.
        """
        place = _Place.of(state)
        if self._held is not None and "passes" in state:
            self._take_again(state, place)
            return
        self.restart()
        self._resume_at = place

    def pass_over(self, batches: int) -> None:
        """See `Batches.pass_over`."""
        if batches and self._held is not None:
            if self._iterator is None:
                self._begin()
            self._drop(batches)
        elif batches and self._resume_at is not None:
            at = self._resume_at
            if at.own is None:  # skips batches of the next pass
                at = at._replace(own=at.begun, begun=at.begun + 1)
            self._resume_at = at._replace(taken=at.taken + batches)

    def settle(self) -> None:
        """See `Batches.settle`."""
        if self._resume_at is not None:
            self._resume_at = self._resume_at._replace(own=None)
            self._go_on()

    def empty_segment(self) -> Segment:
        """See `Batches.empty_segment`.

        The segment reads an empty data set, since a new iterator over the user's data set would
        draw the seeds of its `shuffle`s.
        """
        spec = spec_of_replica(self._data.element_spec) if self._per_replica else self._spec
        nothing: Any = empty_pipeline(spec)
        if self._per_replica:
            empty = nothing
            nothing = self._strategy.distribute_datasets_from_function(lambda context: empty)
        examples = None if self._per_replica else self.batch_size
        layout = BatchLayout(examples, per_replica=self._per_replica, endless=self._endless)
        return Segment(layout, 0, iterator=iter(nothing))

    def _begin(self) -> None:
        if self._held is not None:
            self._held.begin()
        self._iterator = iter(self._data)
        self._stream.begin()

    def _read_end(self) -> None:
        """Reads to the end of the data, after the last batch, if a `shuffle` draws a seed there.

        At its end a `repeat` begins a further pass over its input, so that a `shuffle` in this
        input draws a seed. In Keras, TensorFlow's automatic `prefetch` has come to the end before
        the data is read again. In kfit less time passes, so without this read it would depend on
        timing whether the seed is drawn.
        """
        if self._draws_within and self._iterator is not None:
            self._iterator.get_next_as_optional()

    @cached_property
    def _draws_within(self) -> bool:
        """Whether a `shuffle` of the data set draws seeds after the first batch was read.

        The value is False if each task (process) reads its own part of the data.
        """
        return not self._per_replica and LateShuffles.of(self._pipeline).draws_within

    def _take_again(self, state: dict[str, Any], place: _Place) -> None:
        """Restores the state that the pipeline had at the snapshot, by reading batches again.

        A pass is one reading of all the data. The pass in which the snapshot was taken is read
        again up to the snapshot's position. The first pass is read again if a cache keeps its
        elements. All passes are read again if Python code may have hidden state, or if shuffles
        draw seeds in the midst of a pass.

        Args:
            state: What `state_dict` returned.
            place: The position in the data that `state` describes.
        """
        assert self._held is not None
        self.restart()
        first, passes = int(state["first"]), [int(taken) for taken in state["passes"]]
        while self._stream.begun < first:  # passes begun before this training
            iter(self._data)
            self._held.begin_shuffles()
            self._stream.begin_another()
        earlier = [taken for i, taken in enumerate(passes) if first + i != place.own]
        count = sum(earlier)
        if count and self._held.is_remembered:
            warnings.warn(
                f"`x`, a tf.data.Dataset that calls Python, is read again from its start, "
                f"{count} batches of earlier passes, since its code may keep something from "
                "pass to pass. If each pass begins it anew, set the data set's option "
                "`experimental_external_state_policy` to "
                "`tf.data.experimental.ExternalStatePolicy.IGNORE`.",
                stacklevel=2,
            )
        elif count and self._held.reads_for_shuffles:
            warnings.warn(
                f"`x`, a tf.data.Dataset, is read again from its start, {count} batches of earlier "
                "passes, since its `shuffle` stands before a `repeat`, in the second part of a "
                "`concatenate`, or in a data set that a function reads: the orders that it has "
                "drawn depend on what was read. Put the `shuffle` after these to avoid this.",
                stacklevel=2,
            )
        with self._held.again(state):
            for number, taken in enumerate(earlier):
                self._begin()
                read = taken if self._held.is_read(number) else 0
                if read:
                    self._drop(read)
                    if read == self.length:
                        self._read_end()
                elif taken and self._per_replica:
                    self._drop(1)
                    read = 1
                elif taken:
                    self._held.begin_shuffles()
                self._stream.take(taken - read)
            self.restart()
            if state["held"] is not None:
                self._held.begin_last(state)
            if place.own is not None:
                self._begin()
                self._drop(place.taken)

    def _drop(self, batches: int) -> None:
        """Takes batches from the iterator without training on them, to restore a position."""
        for _ in range(batches):
            next(self._iterator)
        self._stream.take(batches)

    def _go_on(self) -> None:
        """Moves to the position of the snapshot from which training resumes.

        A pass is one reading of all the data, by one iterator. A new iterator draws the seeds of
        its pass. So as many iterators are created as there were passes before the snapshot, and
        later passes get the seeds that they would have had without the restart. If the snapshot was
        taken in the midst of a pass, the batches that had been taken from this pass are skipped.
        """
        assert self._resume_at is not None
        place, self._resume_at = self._resume_at, None
        while self._stream.begun < (place.begun if place.own is None else place.own):
            self._begin()
        self.restart()
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
            self._drop(place.taken)
        while self._stream.begun < place.begun:  # begun by other calls during this pass
            iter(self._data)
            self._stream.begin_another()

    def _warn_of_another_pass(self) -> None:
        assert self._pipeline is not None
        if draws_anew(self._pipeline):
            warnings.warn(
                "`x`, a tf.data.Dataset whose `shuffle` draws another order in each pass, has been "
                "begun in this process since the snapshot was taken: the rest of the epoch comes "
                "in another order than it would have had, so that some examples are seen twice. "
                "Make the data set anew before this `fit`, or restart the program.",
                stacklevel=2,
            )


class _Place(NamedTuple):
    """The position in a data set from which training resumes.

    A pass is one reading of all the data. It is open until it has ended.

    Attributes:
        begun: The number of passes that had begun before the snapshot.
        own: The number of passes that had begun before the pass that was open at the snapshot; None
            if no pass was open.
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


def _read_in_step(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off TensorFlow's automatic `prefetch` for an endless data set if timing would matter.

    TensorFlow appends a `prefetch`, which reads ahead, to a pipeline without one. If a `shuffle`
    stands before a `repeat`, each repetition draws a new seed. Then it would depend on timing
    whether another repetition has begun when training ends, and with it the order in the next `fit`
    on the data set.

    Returns:
        The data set with this option, or the data set itself if it ends or draws no seeds in this
        way.
    """
    # A finite data set is read to its end in each pass, so the `prefetch` makes no difference.
    is_endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    if not is_endless or not LateShuffles.of(dataset).draws_within:
        return dataset
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _classes(y: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of classes: `y` itself, its one column, or those of one-hot rows.

    As in Keras, targets of unknown rank are numbers of classes.
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
