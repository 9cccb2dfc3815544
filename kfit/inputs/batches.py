"""The base of all kinds of input data: global batches in a reproducible order.

`Batches` is the data of one call of `fit`, `evaluate` or `predict`. A global batch has the examples
of one step over all replicas; each task (process) takes its own part of the batch. `Batches` tells
the loop the number of steps of an epoch, and gives it `Segment`s: groups of steps that one graph
call can take. A segment's layout has all that a step needs to know about its batch in advance, such
as the number of examples, and the row at which the task's part begins. So the step of a full batch
has static shapes, and tasks need not ask each other for sizes.

A pass is one reading of all the data. An element is what a segment's iterator yields for one step:
a global batch, or only the part of it that this task needs. A snapshot is the whole state of a
training after one step, from which training can be resumed.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from kfit.checkpoint.schema import Check
from kfit.inputs.batch_structure import Template
from kfit.objects import Generators

NO_BATCH = "`x` yielded no batch: it must hold at least one."


@dataclass(frozen=True)
class BatchLayout:
    """A description of the batches in a segment (a group of steps that one graph call can take).

    Each step reads one element: a global batch, or only the part of it that this task needs.
    Layouts are hashable, since one graph is traced for each different layout.

    Attributes:
        examples: The number of examples in each global batch, or None if it is not known.
        offset: The row of the global batch with which each element begins; 0 if elements are whole
            batches.
        per_replica: Whether elements are `tf.distribute` per-replica values already.
        template: The structure of a batch, if elements are flat tuples of tensors; None if elements
            have the structure of a batch themselves.
        endless: Whether it is certain that the data does not end within the segment.
    """

    examples: int | None = None
    offset: int = 0
    per_replica: bool = False
    template: Template | None = None
    endless: bool = True


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one epoch that one graph call can take.

    Each step reads one element: a global batch, or only the part of it that this task needs.

    Attributes:
        layout: A description of the batches, such as the number of examples in each batch.
        steps: The number of steps; None if the segment lasts until the data ends.
        iterator: An iterator that yields one element for each step; None if `element` is used.
        element: The only element, if the segment has one step and no iterator.
    """

    layout: BatchLayout
    steps: int | None
    iterator: Any = None
    element: Any = None

    def next_element(self) -> Any:
        """Returns the element of the next step, or None if the data has ended.

        An element is a global batch, or only the part of it that this task needs. Loops in Python
        call this method; a loop within a graph reads `iterator` itself.
        """
        if self.iterator is None:
            return self.element
        if self.layout.endless:
            return self.iterator.get_next()
        element = self.iterator.get_next_as_optional()
        return element.get_value() if element.has_value() else None


class Epoch(NamedTuple):
    """The position of an epoch in the data.

    Attributes:
        pass_index: The number of the pass (one reading of all the data) to which the epoch belongs;
            the first pass of this call is 0.
        start: The number of the epoch's first batch in that pass.
        steps: The epoch's number of steps, or None while unknown.
    """

    pass_index: int
    start: int
    steps: int | None


class Batches(abc.ABC):
    """The data of one `fit`, `evaluate` or `predict`, as a sequence of global batches.

    A global batch has the examples of one step over all replicas. Each kind of data has a subclass.

    Attributes:
        steps: The number of steps in an epoch: `steps_per_epoch` or, if it was not given, the
            number of batches in the data. None while unknown.
        length: The number of batches in one reading of all the data; None while unknown, or if the
            data never ends.
        batch_size: The global batch size, or None while unknown.
        learned: The value of `steps`, if it became known only when an epoch had ended; otherwise
            None. A resumed training gets the number from the snapshot.
        first_epoch: The epoch from which passes over the data are counted: `initial_epoch`, or a
            later one before which the data has ended earlier than `length` says.
        turn: A counter that increases by 1 before the loop takes batches, and by 1 afterwards. So
            the counter is even while hooks of callbacks run. A thread that draws batches reads the
            counter to tell whether a hook may have run at the same time.
        has_parts: Whether each task (process) reads its own part of the data. Otherwise all tasks
            read the same batches, and each task takes its own rows of every batch.
        has_ended: Whether all batches were read, and none of them can be read again.
        in_memory: Whether reading a batch never waits for files or for code outside of kfit.
        lacks_end: Whether the data is known never to end, and the number of steps was not given.
        counted_by: The data set or `shuffle` by which the passes over the data are counted; None if
            they are not counted, or not over several calls. Passes that were begun before a
            snapshot are begun again when training resumes.
    """

    has_parts = False
    in_memory = False
    lacks_end = False
    has_ended = False
    steps: int | None = None
    length: int | None = None
    batch_size: int | None = None
    learned: int | None = None
    counted_by: Any = None
    first_epoch: int = 0
    turn: int = 0

    @property
    def error(self) -> Exception | None:
        """The error that the user's Python code has raised when it made a batch; None if none."""
        return None

    @property
    def examples_per_step(self) -> int | None:
        """The usual number of examples in a global batch, to show the speed; None if unknown."""
        return self.batch_size

    @property
    def examples_per_epoch(self) -> int | None:
        """The number of examples in each epoch, if all have equally many; None if unknown."""
        return None

    def epoch(self, epoch: int) -> Epoch:
        """Returns the position of an epoch in the data.

        As in Keras, `first_epoch` begins at the start of the data. If an epoch does not read all
        the data, the next epoch continues where the previous epoch has ended. An epoch ends early
        if the data ends. Epochs before `first_epoch` are over, so they have no steps.

        Args:
            epoch: The number of the epoch; the first one is 0.
        """
        number = epoch - self.first_epoch
        if number < 0:
            return Epoch(0, 0, 0)
        if self.steps is None or self.length is None:
            return Epoch(number, 0, self.steps)
        pass_index, part = divmod(number, self._epochs_per_pass)
        start = part * self.steps
        return Epoch(pass_index, start, min(self.steps, self.length - start))

    @property
    def first_pass(self) -> int:
        """The number of passes that trainings of `first_epoch` epochs have begun.

        A pass is one reading of all the data. Data that is shuffled by a seed adds this number to
        the index of a pass, so that a `fit` with `initial_epoch` does not repeat the orders of the
        epochs before.
        """
        return math.ceil(self.first_epoch / self._epochs_per_pass)

    @property
    def _epochs_per_pass(self) -> int:
        if self.steps is None or self.length is None:
            return 1
        return math.ceil(self.length / self.steps)

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The structure of a global batch, made of `keras.KerasTensor`s of shape `(None, ...)`."""

    @abc.abstractmethod
    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """Yields the steps of an epoch in segments: groups of steps that one graph call can take.

        Args:
            epoch: The number of the epoch; the first one is 0.
            step: The step to begin at; not 0 if training resumes within the epoch.
        """

    def on_epoch_begin(self) -> None:  # noqa: B027  most have nothing to do
        """Tells the data that an epoch begins; called before the first step of the epoch."""

    def on_epoch_end(self) -> None:  # noqa: B027  most have nothing to do
        """Tells the data that an epoch has ended, so that the data may be reordered.

        As in Keras, the method is not called if a callback has requested to stop.
        """

    def restart(self) -> None:  # noqa: B027  most have nothing to do
        """Makes the next epoch read the data from its start; called when the data has ended."""

    def rewind(self) -> None:  # noqa: B027  most begin where the epoch says
        """Moves to the start of the data, if the data can be read more than once.

        The method is called at the beginning of `fit` and of each evaluation, before any hook of a
        callback.
        """

    def learned_steps(self, steps: int) -> None:
        """Records the number of steps in an epoch, once an epoch of unknown length has ended.

        The method is also called when training resumes from a snapshot that contains the number.

        Args:
            steps: The number of steps that the epoch had.

        Raises:
            ValueError: If the epoch had no steps, since the data is empty.
        """
        if not steps:
            raise ValueError(NO_BATCH)
        self.steps = self.length = self.learned = steps

    def take_whole_executions(self, steps_per_execution: int) -> None:
        """Rounds `steps` up to a multiple of `steps_per_execution`, as Keras does in `fit`.

        As in Keras, the steps beyond the given number are taken only if the data has batches for
        them, so that an epoch which reads all the data ends with it.

        Args:
            steps_per_execution: The number of steps that `compile` was given.
        """
        if self.steps is not None:
            whole = math.ceil(self.steps / steps_per_execution) * steps_per_execution
            self.steps = whole if self.length is None else min(whole, max(self.steps, self.length))

    def took(self, steps: int) -> None:  # noqa: B027  index arithmetic needs no counting
        """Records that training has taken the next `steps` batches.

        A snapshot needs the position in the data, and batches may be read long before training
        takes them. So data that can only be read in order counts the batches that were taken.
        """

    def keep_states(  # noqa: B027  index arithmetic has none
        self, foreign: Collection[int] = ()
    ) -> None:
        """Begins to record the states of the data that a snapshot needs.

        A snapshot is the saved state of a training. `fit` calls this method before any data is
        read, if a callback may save or restore snapshots. Without this call `state_dict` may lack
        states.

        Args:
            foreign: Ids (as of `id`) of objects to which the data may refer, but which are not part
                of its state, such as the model.
        """

    def belongings(self) -> set[int]:
        """Returns the ids (as of `id`) of the objects whose state is saved with the data.

        When the state of the user's callbacks is saved, these objects are skipped.
        """
        return set()

    def generators(self) -> Generators | None:
        """Returns the states that the global random generators had after the last batch trained on.

        These are the generators of Python, NumPy and torch. A snapshot saves their states. The
        states differ from the current ones if code that makes batches draws random numbers, and
        batches are made ahead of training.

        Returns:
            The states, or None if the current states are the right ones. After `load_state_dict`, a
            result other than None tells the caller not to restore the generators, since the data
            has already done so.
        """
        return None

    def held(self) -> AbstractContextManager[Any]:
        """A context in which the state of the data stays the same, while a snapshot is taken.

        Within the context, `state_dict` and `generators` return the states after the same batch. If
        necessary, no batch is drawn ahead until the context is left.
        """
        return nullcontext()

    def paused(self) -> AbstractContextManager[Any]:
        """A context in which no batch is drawn ahead, while the program does something else.

        Unlike in `held`, none is drawn even if others were drawn ahead already.
        """
        return nullcontext()

    def kept_from(self, x: Any) -> AbstractContextManager[Any]:
        """A context in which other data is read, which may share objects with this data.

        The state of the shared objects that this data needs is given back at the end. If that is
        not possible, a warning says what follows. It is used within `paused`.

        Args:
            x: The other data, as the user gave it.
        """
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Returns the settings that the batches depend on, such as the global batch size.

        Training resumes from a snapshot only if these settings are the same in the snapshot. A
        setting that is still unknown is None, and is not compared.
        """
        return {"global batch size": self.batch_size, "steps an epoch": self.steps}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the data for a snapshot, such as the position in the data.

        The state is made of JSON values and arrays.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  see `state_dict`
        """Restores a state that `state_dict` has returned, when training resumes from a snapshot.

        The method is called before the first segment (a group of steps) or between two segments.
        The state may take effect only when the next segment begins (see `settle`).
        """

    @property
    def checks(self) -> Mapping[str, Check]:
        """A check of each value of a state that was read from a file, by its key.

        Values of other keys are not checked here.
        """
        return {}

    def pass_over(self, batches: int) -> None:  # noqa: B027  the step says it to most
        """Skips the next `batches` batches; called after `load_state_dict`.

        Used if training returns to a snapshot because of bad batches, which are then left out.
        Training goes on at a later step of the epoch. So the method does nothing for data such as
        arrays, whose batches are found by the number of the step.
        """

    def settle(self) -> None:  # noqa: B027  most have nothing to do
        """Moves the data to its restored position at once, if this `fit` takes no more steps.

        Usually the next segment (group of steps) moves the data to the position that
        `load_state_dict` has restored. But if the snapshot was taken after the last step of this
        `fit`, no segment follows. A later `fit` on the same data must still begin where it would
        without the restart.
        """

    def empty_segment(self) -> Segment:
        """Returns a segment (a group of steps) from which no batch may be taken.

        It serves to trace a step without reading data, since some variables are created only when a
        step is traced. The loop does so if training resumes from a snapshot that was taken after
        the last step, so that no step follows. The layout is that of the segments of an epoch.
        """
        return next(self.segments(self.first_epoch))

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Ends threads and processes that draw batches in the background."""


def own_options() -> tf.data.Options:
    """Returns `tf.data.Options` for kfit's own short pipelines, without TensorFlow's autotuning.

    With autotuning, deleting an iterator would wait for TensorFlow's tuning thread, which may sleep
    for up to a minute before it ends.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def empty_pipeline(spec: Any) -> tf.data.Dataset:
    """Creates a `tf.data.Dataset` that has the given element spec, but no element.

    A step can be traced with such a data set without reading the user's data.
    """
    nothing = tf.data.Dataset.from_generator(tuple, output_signature=spec)
    return nothing.with_options(own_options())
