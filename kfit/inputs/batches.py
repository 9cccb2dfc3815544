"""What every kind of input becomes: global batches in a known order, and this task's part of them.

`Batches` is one input over one `fit`, `evaluate` or `predict`. It knows how many steps an epoch has
and hands the loop `Segment`s: steps that one graph call can take. What a step needs to know of its
batch beforehand (its size, its place in the global batch) is said by the segment, so that a step of
a full batch has static shapes and asks nobody.
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
    """How the elements of a segment are to be read. Hashable: one graph is traced per layout.

    Attributes:
        examples: Examples in each global batch, when that is known beforehand.
        offset: Row of the global batch at which this task's element begins.
        per_replica: Whether elements are per-replica values already.
        template: The structure of an element; leaves are indices into its flat tensors, or None.
            None when elements have their own structure.
        endless: Whether the stream is known not to end within the segment.
    """

    examples: int | None = None
    offset: int = 0
    per_replica: bool = False
    template: Template | None = None
    endless: bool = True


@dataclass(frozen=True)
class Segment:
    """A stretch of consecutive steps of one epoch.

    Attributes:
        layout: How elements are to be read.
        steps: Number of steps, or None for "until the data ends".
        iterator: A stream of elements, one a step; or
        element: the one element of a segment of one step.
    """

    layout: BatchLayout
    steps: int | None
    iterator: Any = None
    element: Any = None

    def next_element(self) -> Any:
        """Draws the next element, outside of a graph; None where the data has ended."""
        if self.iterator is None:
            return self.element
        if self.layout.endless:
            return self.iterator.get_next()
        element = self.iterator.get_next_as_optional()
        return element.get_value() if element.has_value() else None


class Epoch(NamedTuple):
    """Where an epoch lies in the data.

    Attributes:
        pass_index: Which pass over the data it belongs to.
        start: Its first batch in that pass.
        steps: Its number of steps, or None while unknown.
    """

    pass_index: int
    start: int
    steps: int | None


class Batches(abc.ABC):
    """Global batches of one input.

    Attributes:
        steps: Steps of an epoch, as asked for or as the data has; None while unknown.
        length: Batches in one pass over the data; None while unknown, or without end.
        batch_size: The global batch size, or None while unknown.
        turn: Odd while training takes batches, even while hooks run; another number each time.
        has_parts: Whether each task reads a part of its own, and not rows of the same batches.
        in_memory: Whether nothing outside of kfit can delay a batch: no file, no code of others.
    """

    has_parts = False
    in_memory = False
    steps: int | None = None
    length: int | None = None
    batch_size: int | None = None
    turn: int = 0

    def epoch(self, epoch: int) -> Epoch:
        """Where `epoch` lies in the data.

        As in Keras an epoch of fewer steps than a pass goes on where the last one ended, and one
        ends early where the pass does.
        """
        if self.steps is None or self.length is None:
            return Epoch(epoch, 0, self.steps)
        pass_index, part = divmod(epoch, math.ceil(self.length / self.steps))
        start = part * self.steps
        return Epoch(pass_index, start, min(self.steps, self.length - start))

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """Structure of a global batch: `keras.KerasTensor`s of shape `(None, ...)`."""

    @abc.abstractmethod
    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """The runs of `epoch` from step `step` on."""

    def on_epoch_begin(self) -> None:  # noqa: B027  most have nothing to do
        """Called before the first step of an epoch."""

    def on_epoch_end(self) -> None:  # noqa: B027  most have nothing to do
        """Called after the last step of an epoch."""

    def restart(self) -> None:  # noqa: B027  most have nothing to do
        """The data ended: the next epoch begins it anew."""

    def rewind(self) -> None:  # noqa: B027  most begin where the epoch says
        """Before training, and before each evaluation: no hook of a callback was called yet.

        The next segment is of the beginning of the data, where that can be read again.
        """

    def learned_steps(self, steps: int) -> None:
        """An epoch of unknown length turned out to have `steps` steps.

        Raises:
            ValueError: If it has none.
        """
        if not steps:
            raise ValueError(NO_BATCH)
        self.steps = self.length = steps

    def took(self, steps: int) -> None:  # noqa: B027  index arithmetic needs no counting
        """Called when `steps` more batches of the last segment were taken."""

    def keep_states(  # noqa: B027  index arithmetic has none
        self, foreign: Collection[int] = ()
    ) -> None:
        """Called before anything is read, where somebody may ask for `state_dict`.

        Args:
            foreign: Identities of objects that are no state of the data, such as the model.
        """

    def belongings(self) -> set[int]:
        """Identities of the objects whose state is that of the data, and nobody else's."""
        return set()

    def generators(self) -> Generators | None:
        """The global random generators after the last batch that was trained on.

        Only of data that draw from them, and have drawn batches ahead; else they are what they are.
        """
        return None

    def held(self) -> AbstractContextManager[Any]:
        """Within it `state_dict` and `generators` are of one moment: nothing is drawn."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """What must be the same for the batches to be the same, as far as it is known."""
        return {"global batch size": self.batch_size, "steps an epoch": self.steps}

    def state_dict(self) -> dict[str, Any]:
        """Where the data stands, and the seed of its order, as JSON's values and arrays."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  see `state_dict`
        """Goes to where the data stood; called before the first segment, or between two."""

    def pass_over(self, batches: int) -> None:  # noqa: B027  the step says it to most
        """After `load_state_dict`: the next `batches` batches are not to be trained on."""

    def settle(self) -> None:  # noqa: B027  most have nothing to do
        """After `load_state_dict`, where no segment follows: the next one finds the data there."""

    def empty_segment(self) -> Segment:
        """A segment like those of an epoch, of which no batch is taken."""
        return next(self.segments(0))

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Ends whatever works in the background."""


_passes: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
"""Batches taken in each pass over a source that this process has begun, in order."""


class Stream:
    """Counts what was taken from an input that can only be read in order.

    A source may be read by several calls of `fit` and `evaluate`, one after the other or in turns;
    each pass over it draws what the next one of them finds.

    Args:
        source: What is read, or None for what nobody else reads.

    Attributes:
        first: Passes that had been begun before.
    """

    def __init__(self, source: Any = None) -> None:
        self._passes = [] if source is None else _passes.setdefault(source, [])
        self._own: int | None = None
        self.first = len(self._passes)

    @property
    def begun(self) -> int:
        """Passes that were begun, whoever did it."""
        return len(self._passes)

    @property
    def is_open(self) -> bool:
        """Whether there is a pass of its own that is under way."""
        return self._own is not None

    @property
    def taken(self) -> int:
        """Batches taken of its own pass."""
        return 0 if self._own is None else self._passes[self._own]

    def begin(self) -> None:
        """A new pass was begun."""
        self._own = len(self._passes)
        self._passes.append(0)

    def begin_another(self) -> None:
        """A pass was begun that is not its own."""
        self._passes.append(0)

    def take(self, batches: int) -> None:
        """Batches were taken of its own pass, if that is under way."""
        if self._own is not None:
            self._passes[self._own] += batches

    def end(self) -> None:
        """Its pass is done with; the next segment begins a new one."""
        self._own = None

    def state_dict(self) -> dict[str, Any]:
        """The counts as plain numbers, `own` being the number of passes before its own."""
        taken = self.taken if self.is_open else None
        return {"begun": self.begun, "own": self._own, "taken": taken}

    def passes(self) -> list[int]:
        """Batches taken of each pass since the first."""
        return self._passes[self.first :]


class Template:
    """A structure whose leaves are the positions of its tensors in a flat tuple.

    tf.data has no element for None, and turns lists into tensors; models take both.
    """

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self._leaves = keras.tree.flatten(structure)
        self._present = tuple(leaf is not None for leaf in self._leaves)
        self._key = (repr(keras.tree.map_structure(lambda leaf: leaf is not None, structure)),)

    def flatten(self, structure: Any) -> tuple[Any, ...]:
        """The tensors of `structure`, without its Nones.

        Raises:
            ValueError: If the structure is not the template's.
        """
        try:
            keras.tree.assert_same_structure(self._structure, structure)
        except ValueError as error:
            raise ValueError(
                f"All batches must have the structure of the first one. Received another: {error}"
            ) from error
        return tuple(leaf for leaf in keras.tree.flatten(structure) if leaf is not None)

    def pack(self, flat: Any) -> Any:
        """The structure that holds `flat`."""
        rest = iter(flat)
        leaves = [next(rest) if present else None for present in self._present]
        return keras.tree.pack_sequence_as(self._structure, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def as_keras_tensor(spec: Any) -> Any:
    """A `keras.KerasTensor` like a `tf.TypeSpec`, with an open batch dimension."""
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
    """Options of a pipeline that is short and kfit's own, where TensorFlow has nothing to tune.

    Without tuning, the end of an iterator does not wait for TensorFlow's tuning thread either,
    which sleeps for up to a minute before it hears of it.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def static_batch_size(spec: Any) -> int | None:
    """The batch size that an element spec promises, or None."""
    sizes = {
        leaf.shape[0] if leaf.shape.rank else None
        for leaf in tf.nest.flatten(spec)
        if isinstance(leaf, (tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec))
    }
    return sizes.pop() if len(sizes) == 1 else None
