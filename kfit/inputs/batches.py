"""The base of all inputs: global batches in a reproducible order, and this task's part of them.

`Batches` is one input during one `fit`, `evaluate` or `predict`. It has the number of steps of an
epoch, and gives the loop `Segment`s: steps that one graph call can take. A segment's layout has all
that a step needs to know about its batch in advance, such as its size and its place in the global
batch. So a step of a full batch has static shapes, and tasks need not ask each other for its size.

A pass is one reading of all the data. An element is what a segment's iterator yields for one step:
this task's part of a global batch. A snapshot is the whole state of a training after one step.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from kfit.objects import Generators

NO_BATCH = "`x` yielded no batch: it must hold at least one."


@dataclass(frozen=True)
class BatchLayout:
    """A description of how to read the elements of a segment.

    It is hashable, since one graph is traced for each layout.

    Attributes:
        examples: The number of examples in each global batch, or None if it is not known.
        offset: The row of the global batch at which this task's element begins.
        per_replica: Whether elements are `tf.distribute` per-replica values already.
        template: The structure of an element, if elements are flat tuples of tensors; None if
            elements have their own structure.
        endless: Whether the stream certainly does not end within the segment.
    """

    examples: int | None = None
    offset: int = 0
    per_replica: bool = False
    template: Template | None = None
    endless: bool = True


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one epoch that one graph call can take.

    Attributes:
        layout: How to read the elements.
        steps: The number of steps; None if the segment lasts until the data ends.
        iterator: An iterator that yields one element for each step; None if there is `element`.
        element: The only element, if the segment has one step and no iterator.
    """

    layout: BatchLayout
    steps: int | None
    iterator: Any = None
    element: Any = None

    def next_element(self) -> Any:
        """Draws the next element, outside of a graph; returns None if the data has ended."""
        if self.iterator is None:
            return self.element
        if self.layout.endless:
            return self.iterator.get_next()
        element = self.iterator.get_next_as_optional()
        return element.get_value() if element.has_value() else None


class Epoch(NamedTuple):
    """The place of an epoch in the data.

    Attributes:
        pass_index: The number of the pass over the data that the epoch belongs to.
        start: The epoch's first batch in that pass.
        steps: The epoch's number of steps, or None while unknown.
    """

    pass_index: int
    start: int
    steps: int | None


class Batches(abc.ABC):
    """Global batches of one input.

    Attributes:
        steps: The number of steps in an epoch, from `steps_per_epoch` or the data; None while
            unknown.
        length: The number of batches in one pass over the data; None while unknown, or if infinite.
        batch_size: The global batch size, or None while unknown.
        learned: The value of `steps`, if it became known only when an epoch had ended; otherwise
            None.
        turn: A counter that increases by 1 when the loop begins to take batches, and again when it
            has taken them. So it is odd meanwhile, and even while hooks run.
        has_parts: Whether each task reads its own part of the data. Otherwise all tasks read the
            same batches, and each takes its rows.
        has_ended: Whether all batches were read, and none of them can be read again.
        in_memory: Whether a batch never waits for files or for code outside of kfit.
    """

    has_parts = False
    in_memory = False
    has_ended = False
    steps: int | None = None
    length: int | None = None
    batch_size: int | None = None
    learned: int | None = None
    turn: int = 0

    def epoch(self, epoch: int) -> Epoch:
        """Returns the place of epoch number `epoch` in the data.

        As in Keras, an epoch with fewer steps than a pass continues where the previous one ended,
        and an epoch ends early if the pass ends.
        """
        if self.steps is None or self.length is None:
            return Epoch(epoch, 0, self.steps)
        pass_index, part = divmod(epoch, math.ceil(self.length / self.steps))
        start = part * self.steps
        return Epoch(pass_index, start, min(self.steps, self.length - start))

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """The structure of a global batch, made of `keras.KerasTensor`s of shape `(None, ...)`."""

    @abc.abstractmethod
    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """Yields the segments of `epoch`, beginning at step `step`."""

    def on_epoch_begin(self) -> None:  # noqa: B027  most have nothing to do
        """Called before the first step of an epoch."""

    def on_epoch_end(self) -> None:  # noqa: B027  most have nothing to do
        """Called after the last step of an epoch."""

    def restart(self) -> None:  # noqa: B027  most have nothing to do
        """Makes the next epoch begin a new pass; called when the data has ended."""

    def rewind(self) -> None:  # noqa: B027  most begin where the epoch says
        """Makes the next segment begin at the start of the data, if the data can be read again.

        It is called before training, and before each evaluation, before any hook of a callback.
        """

    def learned_steps(self, steps: int) -> None:
        """Sets the number of steps in an epoch, when an epoch of unknown length has ended.

        It is also called when training resumes from a snapshot that has this number.

        Args:
            steps: The number of steps that the epoch had.

        Raises:
            ValueError: If the epoch had no steps.
        """
        if not steps:
            raise ValueError(NO_BATCH)
        self.steps = self.length = self.learned = steps

    def took(self, steps: int) -> None:  # noqa: B027  index arithmetic needs no counting
        """Records that `steps` more batches of the last segment were taken."""

    def keep_states(  # noqa: B027  index arithmetic has none
        self, foreign: Collection[int] = ()
    ) -> None:
        """Begins to keep the states that a snapshot needs.

        It is called before any data is read, if snapshots may be saved or restored. Without this
        call `state_dict` may lack states.

        Args:
            foreign: Ids (as of `id`) of objects that are not state of the data, such as the model.
        """

    def belongings(self) -> set[int]:
        """Returns the ids (as of `id`) of the objects whose state the data saves.

        These objects are skipped when the state of the user's callbacks is saved.
        """
        return set()

    def generators(self) -> Generators | None:
        """Returns the global random generators' states after the last batch that was trained on.

        These differ from the current states if batches are drawn ahead, and drawing them changes
        the generators.

        Returns:
            The states, or None if the current states are the right ones. After `load_state_dict`, a
            result other than None also means that the data has restored the generators itself.
        """
        return None

    def held(self) -> AbstractContextManager[Any]:
        """A context within which `state_dict` and `generators` return states after the same batch.

        If necessary, drawing batches ahead pauses meanwhile.
        """
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Returns the settings that the batches depend on, to compare with those of a snapshot.

        A value is None while it is unknown.
        """
        return {"global batch size": self.batch_size, "steps an epoch": self.steps}

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the data and the seed of its order, as JSON values and arrays."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  see `state_dict`
        """Restores what `state_dict` returned; called before the first segment, or between two.

        It may take effect only when the next segment begins (see `settle`).
        """

    def pass_over(self, batches: int) -> None:  # noqa: B027  the step says it to most
        """Skips the next `batches` batches; called after `load_state_dict`.

        It does nothing if the position follows from the step that `segments` is called with.
        """

    def settle(self) -> None:  # noqa: B027  most have nothing to do
        """Moves the data to where the next `fit` begins; called if this one takes no more steps.

        Otherwise the next segment applies the position that `load_state_dict` has restored.
        """

    def empty_segment(self) -> Segment:
        """Returns a segment like those of an epoch, to trace a step with.

        No batch may be taken from it.
        """
        return next(self.segments(0))

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Ends threads and processes that draw batches in the background."""


_passes: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
"""For each source, the numbers of batches taken in the passes that this process has begun."""


class Stream:
    """A counter of passes over an input that can only be read in order, and of batches taken.

    A source may be read by several calls of `fit` and `evaluate`, one after the other or
    alternately. All its passes share one count, since each pass draws new seeds from the source.

    Args:
        source: The input, or None if no other `Stream` counts its passes.

    Attributes:
        first: The number of passes that had been begun before this object was created.
    """

    def __init__(self, source: Any = None) -> None:
        self._passes = [] if source is None else _passes.setdefault(source, [])
        self._own: int | None = None
        self.first = len(self._passes)

    @property
    def begun(self) -> int:
        """The number of passes over the source that were begun, by any `Stream`."""
        return len(self._passes)

    @property
    def is_open(self) -> bool:
        """Whether this stream has a pass that has not ended."""
        return self._own is not None

    @property
    def taken(self) -> int:
        """The number of batches taken from this stream's open pass; 0 if it has none."""
        return 0 if self._own is None else self._passes[self._own]

    def begin(self) -> None:
        """Records that this stream has begun a new pass."""
        self._own = len(self._passes)
        self._passes.append(0)

    def begin_another(self) -> None:
        """Records that a pass over the source was begun which is not this stream's."""
        self._passes.append(0)

    def take(self, batches: int) -> None:
        """Records that batches were taken from this stream's pass, if one is open."""
        if self._own is not None:
            self._passes[self._own] += batches

    def end(self) -> None:
        """Records that this stream's pass has ended, so that no pass of it is open."""
        self._own = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts as plain numbers.

        Returns:
            "begun", the number of passes that were begun; "own", the number of passes before this
            stream's open one; and "taken", the number of batches taken from the open one. The last
            two are None if no pass is open.
        """
        taken = self.taken if self.is_open else None
        return {"begun": self.begun, "own": self._own, "taken": taken}

    def passes(self) -> list[int]:
        """Returns the number of batches taken from each pass begun since this object exists."""
        return self._passes[self.first :]


class Template:
    """The structure of batches, by which they are converted to flat tuples of tensors and back.

    Models accept None and lists in a batch. tf.data does not accept None, and converts lists to
    tensors.
    """

    def __init__(self, structure: Any) -> None:
        # It must not hold the data: a template is part of the key of a traced graph, and stays.
        self._structure = keras.tree.map_structure(
            lambda leaf: None if leaf is None else True, structure
        )
        self._present = tuple(leaf is not None for leaf in keras.tree.flatten(structure))
        self._key = (repr(self._structure),)

    def flatten(self, structure: Any) -> tuple[Any, ...]:
        """Returns the tensors in `structure` in order, without its Nones.

        Raises:
            ValueError: If the structure differs from the template's.
        """
        try:
            keras.tree.assert_same_structure(self._structure, structure)
        except ValueError as error:
            raise ValueError(
                f"All batches must have the structure of the first one. Received another: {error}"
            ) from error
        return tuple(leaf for leaf in keras.tree.flatten(structure) if leaf is not None)

    def pack(self, flat: Any) -> Any:
        """Returns the structure with the tensors of `flat`, and with its Nones again."""
        rest = iter(flat)
        leaves = [next(rest) if present else None for present in self._present]
        return keras.tree.pack_sequence_as(self._structure, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def as_keras_tensor(spec: Any) -> Any:
    """Converts a `tf.TypeSpec` to a `keras.KerasTensor` whose batch dimension is None.

    For None and for the spec of a `tf.experimental.Optional` it returns None.
    """
    if spec is None or isinstance(spec, tf.OptionalSpec):
        return None
    shape = (None, *spec.shape[1:])
    dtype = keras.backend.standardize_dtype(spec.dtype)
    return keras.KerasTensor(
        shape,
        dtype,
        sparse=isinstance(spec, tf.SparseTensorSpec),
        **(
            {"ragged": True, "ragged_rank": spec.ragged_rank, "row_splits_dtype": "int64"}
            if isinstance(spec, tf.RaggedTensorSpec)
            else {}
        ),
    )


def own_options() -> tf.data.Options:
    """Returns options for kfit's own short pipelines, which need no tuning by TensorFlow.

    With tuning, deleting an iterator would wait for TensorFlow's tuning thread, which may sleep for
    up to a minute before it ends.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def empty_pipeline(spec: Any) -> tf.data.Dataset:
    """Returns a pipeline without an element, whose elements would have this spec."""
    nothing = tf.data.Dataset.from_generator(tuple, output_signature=spec)
    return nothing.with_options(own_options())


def static_batch_size(spec: Any) -> int | None:
    """Returns the static batch size of an element spec, or None if it is not known."""
    sizes = {
        leaf.shape[0] if leaf.shape.rank else None
        for leaf in tf.nest.flatten(spec)
        if isinstance(leaf, (tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec))
    }
    return sizes.pop() if len(sizes) == 1 else None
