"""Batches of `tf.data.Dataset`s, which the user has batched to the global batch size.

kfit does not change the order of a data set. `kfit.distribute.dataset_sharding` divides the data
set among workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint.schema import Check, count, optional
from kfit.distribute.dataset_sharding import share, spec_of_replica
from kfit.distribute.pipeline_parts import parts_of
from kfit.distribute.strategy import Strategy
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.batch_structure import Template, as_keras_tensor, is_missing, static_batch_size
from kfit.inputs.batches import NO_BATCH, Batches, BatchLayout, Segment, empty_pipeline
from kfit.inputs.dataset_reading import DatasetReading
from kfit.inputs.late_shuffles import LateShuffles, shuffles_of, source_of_orders
from kfit.inputs.passes import PassCounter, are_counted_apart
from kfit.inputs.pipeline_state import HeldState, state_of
from kfit.inputs.sample_weights import weigh_pipeline
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
        self._endless = False
        self._per_replica = False
        self._has_one_size = True
        self._pipeline: tf.data.Dataset | None = None
        self._template: Template | None = None
        self._strategy = strategy
        counter, is_counted_apart = PassCounter(), False
        if isinstance(source, tf.data.Dataset):
            given = source
            weighed = weigh_pipeline(source, class_weight) if class_weight else source
            source = self._pipeline = _read_in_step(self._without_missing(weighed))
            cardinality = int(source.cardinality())
            self._endless = cardinality == tf.data.INFINITE_CARDINALITY
            self._spec = source.element_spec
            self.batch_size = static_batch_size(self._spec)
            self._data, self._per_replica = share(source, strategy)
            if not self._per_replica:
                self.counted_by = source_of_orders(given)
                counter = PassCounter(self.counted_by)
                is_counted_apart = are_counted_apart(shuffles_of(given), self.counted_by)
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
        self._reading = DatasetReading(
            self._data,
            self._pipeline,
            per_replica=self._per_replica,
            counter=counter,
            is_counted_apart=is_counted_apart,
        )

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
        self._reading.go_on()
        is_over = (step == 0 and not self._continues) or (starts and self._reading.taken > 0)
        iterator = self._reading.iterator(anew=is_over)
        yield Segment(self._layout, None if steps is None else steps - step, iterator=iterator)

    def on_epoch_end(self) -> None:
        """Drops an iterator that has come to its end, and creates a new one when Keras does.

        Deleting the old iterator later could block for seconds. When data of a known length was
        read to its end, Keras creates a new iterator, even if no epoch follows. Each new iterator
        draws the seeds of the data set's `shuffle`s. So kfit creates an iterator, too: otherwise
        the data would be read next in a different order than in Keras.
        """
        is_over = self._reading.is_open and self._reading.taken == self.length
        if self._is_counted and is_over:
            self._reading.begin_next()
        if not self._continues:
            self._reading.leave()

    def restart(self) -> None:
        """Ends the pass, since the data has ended: the next epoch reads it from its start."""
        self._reading.note_end()

    def close(self) -> None:
        """Drops the iterator over the data set."""
        self._reading.close()

    def rewind(self) -> None:
        """Makes the next segment (group of steps) begin at the start of the data."""
        self._reading.rewind()

    def took(self, steps: int) -> None:
        """Counts the batches that training has taken, since a snapshot needs the position."""
        self._reading.took(steps)

    def keep_states(self, foreign: Collection[int] = ()) -> None:
        """Begins to record the state of the pipeline; warns if its order can't be reproduced."""
        self._reading.keep_states()

    def belongings(self) -> set[int]:
        """Returns the ids (as of `id`) of the variables that the pipeline writes to."""
        return self._reading.belongings()

    def generators(self) -> Generators | None:
        """Returns the global random generators' states if reading data again has changed them."""
        return self._reading.generators()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data, and the state of the pipeline, for a snapshot."""
        return self._reading.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the position in the data that a snapshot contains, when training resumes."""
        self._reading.load_state_dict(state, self.length)

    def pass_over(self, batches: int) -> None:
        """Skips the next `batches` batches; called after `load_state_dict`."""
        self._reading.pass_over(batches)

    def settle(self) -> None:
        """Creates the iterators of the passes before a snapshot, if no segment follows."""
        self._reading.settle()

    @property
    def checks(self) -> Mapping[str, Check]:
        """A check of each value of a state that was read from a file, by its key."""
        return {"begun": count, "own": optional(count), "taken": optional(count)}

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


def _sequences_of(dataset: tf.data.Dataset) -> list[Any]:
    """Returns what each reading of a pipeline moves on: its shuffles, and variables it writes."""
    return [*shuffles_of(dataset), *state_of(dataset).variables]


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
