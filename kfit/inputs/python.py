"""Batches that Python code makes: what PyDatasets, generators and loaders have in common.

The Python code makes whole global batches, and each replica takes its rows of a batch. Batches are
drawn ahead only within an epoch. So no batch is being drawn between two epochs, when hooks may
reorder the data. The state that a snapshot needs is recorded when a batch is drawn (`reader.py`).
All workers make the same batches, which is checked in each epoch.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint.schema import Check, is_a
from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.batch_structure import Template, as_keras_tensor
from kfit.inputs.batches import NO_BATCH, Batches, BatchLayout, Segment, empty_pipeline, own_options
from kfit.inputs.own_state import OwnState
from kfit.inputs.reader import Reader, print_of
from kfit.internals.randomness import as_in_another_thread
from kfit.objects import Generators
from kfit.objects.plain_objects import reached

_ONLY_READ = (np.ndarray, tf.Tensor, tf.data.Dataset, dict, list, tuple)
"""Data whose reading changes no Python object."""


class PythonBatches(Batches):
    """Batches that Python code makes; a subclass for each kind of data creates the iterator.

    The structure of all batches is inferred from the first batches. As in Keras, training then
    requests the first batches again, if the data can provide them again (`_looks_apart`). Otherwise
    the first batches are kept, and training begins with them.

    Args:
        source: The PyDataset, generator or loader that the user passed.
        strategy: kfit's wrapper of the `tf.distribute` strategy. All its workers make the same
            batches.
        steps: The number of steps in an epoch, or None for all batches.
        again: Whether the source can be iterated over again; a generator cannot.
        prepare: A function that is applied to each batch, such as one that adds sample weights.
        length: The number of batches in one reading of all the data; None if it is not known.

    Raises:
        ValueError: If `length` is 0.
    """

    def __init__(
        self,
        source: Any,
        *,
        strategy: Strategy,
        steps: int | None,
        again: bool,
        prepare: Callable[[Any], Any] = lambda batch: batch,
        length: int | None = None,
    ) -> None:
        if length == 0:
            raise ValueError(NO_BATCH)
        self._source = source
        self._host_collectives = strategy.host_collectives
        self._is_divided = strategy.num_replicas > 1
        self._again = again
        self._prepare = prepare
        self.length = length
        self.steps = steps
        self._own = OwnState(source, with_attributes=again)
        self._keeps = False
        self._foreign: Collection[int] = ()
        self._reader: Reader | None = None
        self._looked: list[Any] = []
        self._place: tuple[int, int] | None = None
        self._template: Template | None = None
        self._signature: Any = None
        self._has_begun = False
        self._examples_per_step: int | None = None

    @property
    def examples_per_step(self) -> int | None:
        """The size of the first batch; None before it was read."""
        return self._examples_per_step

    _looks_apart = False

    @abc.abstractmethod
    def _iterate(self, pass_index: int, batch: int) -> Iterator[Any]:
        """Creates an iterator over the batches of one pass (reading of all the data).

        Args:
            pass_index: The number of the pass; the first one is 0.
            batch: The number of the batch in the pass to begin at.
        """

    def _first_batches(self) -> list[Any]:
        """Returns the first batches, from which the structure of all batches is inferred."""
        self._open(0, 0)
        self._look(LOOKED_AT)
        return self._looked

    @property
    def spec(self) -> Any:
        """The structure of a global batch, made of `keras.KerasTensor`s of shape `(None, ...)`.

        It is inferred from the first batches, which are drawn now if they were not drawn yet.
        """
        self._look_first()
        assert self._template is not None
        return self._template.pack([as_keras_tensor(spec) for spec in self._signature])

    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """Yields the steps of an epoch, from `step` on, as one segment.

        A segment is a group of steps that a single call of a `tf.function` can take. No segment is
        yielded if the epoch has no step left, or if the data has no further batch. But if the data
        has ended before the epoch, earlier than its length says, the epoch begins at the start of
        the data.

        Args:
            epoch: The number of the epoch; the first one is 0.
            step: The step to begin at; not 0 if training resumes within the epoch.

        Raises:
            ValueError: If the next batch is not the same on all workers, or if data that has a
                length has become empty.
        """
        pass_index, start, steps = self.epoch(epoch)
        if steps is not None and step >= steps:
            return
        self._look_first()
        if self._reader is None or (self._again and self._place != (pass_index, start + step)):
            self._open(pass_index, start + step)
        # Of an epoch that has not been interrupted, only the first batch is drawn in this thread.
        with as_in_another_thread() if step else nullcontext():
            self._look(1)
        self._agree(step)
        if not self._looked:
            if step == 0 and start > 0:
                self.first_epoch = epoch
                yield from self.segments(epoch)
            elif step == 0 and self._again and self.length is not None:
                raise ValueError(NO_BATCH)
            self.has_ended = not self._again
            return
        count = None if steps is None else steps - step
        stream = tf.data.Dataset.from_generator(
            self._elements(count), output_signature=self._signature
        )
        self._place = (
            (pass_index + 1, 0) if self.length is None else (pass_index, start + (steps or 0))
        )
        iterator = iter(stream.prefetch(2).with_options(own_options()))
        yield Segment(BatchLayout(template=self._template, endless=False), count, iterator=iterator)

    def empty_segment(self) -> Segment:
        """Returns a segment (group of steps) without any batch, with which a step is traced.

        The segment takes no batch from the user's data: a batch taken from a generator here would
        be missing in the next `fit`.
        """
        self._look_first()
        layout = BatchLayout(template=self._template, endless=False)
        return Segment(layout, 0, iterator=iter(empty_pipeline(self._signature)))

    def rewind(self) -> None:
        """Draws the first batches, if not drawn yet, to infer the structure of all batches.

        The method is called at the beginning of `fit` and of each evaluation. As in Keras, the
        first batches are drawn before any hook of a callback runs.
        """
        self._look_first()

    def restart(self) -> None:
        """Drops the iterator over the data, so that the next epoch creates a new iterator."""
        self._drop()

    def took(self, steps: int) -> None:
        """Records that training has taken the next `steps` batches.

        Further batches may have been drawn ahead. A snapshot that is taken now contains the state
        that the data had after the last batch that training has taken.
        """
        if self._reader is not None:
            self._reader.took(steps)

    def close(self) -> None:
        """Stops drawing batches ahead."""
        if self._reader is not None:
            self._reader.stop(wait=False)

    def keep_states(self, foreign: Collection[int] = ()) -> None:
        """Begins to record the state of the data source after each batch, for snapshots.

        `fit` calls this method before any data is read, if a callback may save or restore
        snapshots.

        Args:
            foreign: Ids (as of `id`) of objects to which the data source may refer, but which are
                not part of its state, such as the model.
        """
        self._keeps = True
        self._foreign = foreign
        self._own.begin(foreign)

    def belongings(self) -> set[int]:
        """Returns the ids (as of `id`) of the data source and of the objects that it refers to.

        The state of these objects is saved with the data. So they are skipped when the state of the
        user's callbacks is saved.
        """
        return reached(self._source, self._foreign)

    @property
    def error(self) -> Exception | None:
        """As in the base class: what the generator, PyDataset or loader has raised."""
        return None if self._reader is None else self._reader.error

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the user's data source; {} if `keep_states` was not called."""
        reader = self._reader
        if not self._keeps:
            return {}
        looked = {"looked": self._template is not None} if self._looks_apart else {}
        if reader is None:
            return {**looked, **self._own.state_dict(None)}
        with reader.held() as mark:
            return {**looked, **self._own.state_dict(mark)}

    def held(self) -> AbstractContextManager[Any]:
        """A context in which the state of the data stays the same, while a snapshot is taken.

        Within the context, `state_dict` and `generators` return the states after the last batch
        that training has taken. If necessary, no batch is drawn ahead until the context is left.
        """
        return nullcontext() if self._reader is None else self._reader.held()

    def paused(self) -> AbstractContextManager[Any]:
        """A context in which no batch is drawn ahead; see the base class."""
        return nullcontext() if self._reader is None else self._reader.paused()

    @contextmanager
    def kept_from(self, x: Any) -> Iterator[None]:
        """A context in which other data is read; the attributes of this source are given back.

        Only if the two share an object, such as a random generator. A generator, and the position
        of a loader that says its state itself, cannot be given back: a warning says so.
        """
        is_same = x is self._source
        if not is_same and not self._shares_with(x):
            yield
            return
        own = OwnState(self._source, with_attributes=self._again)
        if not self._gives_back(own):
            if is_same:
                warn_user(
                    f"Training and evaluation read one {type(x).__name__}: what an evaluation has "
                    "taken of it, training does not get. Give the evaluation data of its own."
                )
            yield
            return
        own.begin(self._foreign)
        state = own.state_dict(None)
        yield
        own.load_state_dict(state)

    def _shares_with(self, x: Any) -> bool:
        if isinstance(x, _ONLY_READ):
            return False
        return not self.belongings().isdisjoint(reached(x, self._foreign))

    def _gives_back(self, own: OwnState) -> bool:
        """Returns whether a state of the source can be restored while it is being read."""
        return self._again and not own.is_said

    @property
    def checks(self) -> Mapping[str, Check]:
        """A check of each value of a state that was read from a file, by its key."""
        return {"own": is_a(list)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of the user's data source, when training resumes from a snapshot.

        Batches that were drawn ahead are dropped.

        Args:
            state: What `state_dict` returned for the snapshot.
        """
        if state.get("looked"):
            self._look_first()  # before the state is restored, since drawing batches changes it
        self._drop()
        self._own.load_state_dict(state)

    def generators(self) -> Generators | None:
        """Returns the global random generators' states after the last batch trained on.

        Returns:
            The states, which a snapshot saves. None if the current states are the right ones: if no
            further batch was drawn ahead, or drawing batches does not change the generators.
        """
        reader = self._reader
        if reader is None:
            return None
        with reader.held() as mark:
            return None if mark is None else reader.drawn_until(mark)

    def _open(self, pass_index: int, batch: int) -> None:
        """Begins to read the data at a certain batch, with a new reader.

        The reader draws batches ahead of training, and records the state of the data source after
        each batch.

        Args:
            pass_index: The number of the pass (reading of all the data); the first one is 0.
            batch: The number of the batch in the pass to begin at.
        """
        self._drop()
        self._share_beginning()
        batches = map(self.prepared, self._iterate(pass_index, batch))
        self._reader = Reader(batches, self._own.small if self._keeps else None, lambda: self.turn)
        self._own.settle()
        self._place = (pass_index, batch)

    def _drop(self) -> None:
        """Stops reading the data, and drops the batches that were drawn ahead."""
        if self._reader is not None:
            self._reader.stop()
        self._reader = None
        self._looked = []
        self._place = None

    def _look(self, batches: int) -> None:
        """Draws batches until `batches` of them are kept in `_looked`, or the data ends.

        There they can be inspected before training takes them.
        """
        assert self._reader is not None
        self._looked += itertools.islice(self._reader, max(0, batches - len(self._looked)))

    def _look_first(self) -> None:
        """Draws the first batches, and infers from them the structure of all batches.

        The structure includes which dimensions vary. Later calls do nothing.

        Raises:
            ValueError: If there is no batch, or the batches are not arrays of one structure.
        """
        if self._template is not None:
            return
        batches = self._first_batches()
        if not batches:
            raise ValueError(NO_BATCH)
        template = Template(batches[0])
        flat = [template.flatten(batch) for batch in batches]
        if not flat[0]:
            raise ValueError(f"`x` must yield batches of arrays. It yielded: {batches[0]!r}")
        self._examples_per_step = next((len(a) for a in flat[0] if np.ndim(a)), None)
        self._signature = tuple(_signature_of(*leaves) for leaves in zip(*flat, strict=True))
        self._template = template

    def _elements(self, count: int | None) -> Callable[[], Iterator[Any]]:
        """Returns a function that iterates over the next batches, for `tf.data` to call.

        Args:
            count: The number of batches, or None for all batches that are left.
        """
        assert self._template is not None
        assert self._reader is not None
        looked, self._looked = self._looked[:count], self._looked[count:] if count else []
        left = None if count is None else count - len(looked)
        batches = itertools.chain(looked, itertools.islice(self._reader, left))
        return lambda: map(self._template.flatten, batches)  # type: ignore[union-attr]

    def _share_beginning(self) -> None:
        """Copies the chief's random generators, and its order of the data, to all workers.

        The chief is the first worker. With the same generators and order, all workers make the same
        batches. The method is a collective: all workers must call it. Only the first call copies.
        """
        has_begun, self._has_begun = self._has_begun, True
        if has_begun or self._host_collectives.is_alone:
            return
        Generators.now().share(self._host_collectives)
        self._own.share(self._host_collectives)

    def _agree(self, step: int) -> None:
        """Checks that the next batch is the same on all workers.

        The method is a collective: all tasks must call it.

        Args:
            step: The number of the step in the epoch, for the error message.

        Raises:
            ValueError: On all workers, if their next batches differ.
        """
        if self._host_collectives.is_alone:
            return
        own = print_of(self._looked[:1])
        if len(set(self._host_collectives.all_gather([own])[:, 0])) > 1:
            raise ValueError(
                f"`x` must make the same batches on every worker: each trains on its own rows of "
                f"every batch. This {type(self._source).__name__} makes other batches on "
                f"another worker, from step {step} of the epoch on. Have it draw from NumPy's or "
                "Python's global generator, or from one with the same seed on all workers, and "
                "read the same files in the same order (sort what `os.listdir` returns)."
            )

    def prepared(self, batch: Any) -> Any:
        """Converts a batch to a tuple of tensors or arrays.

        Usually the tuple is `(x,)`, `(x, y)` or `(x, y, sample_weight)`. As in Keras, a step of the
        model's own gets the parts that were yielded, also if they are more or if some are None.
        """
        if isinstance(batch, list):
            batch = tuple(batch)
        return self._converted(batch if isinstance(batch, tuple) else (batch,))

    def _converted(self, batch: Any) -> Any:
        """Converts the leaves of a batch to tensors or arrays; it keeps its structure."""
        Heartbeat.of_environment().moved()
        batch = keras.tree.map_structure(_as_tensor_like, self._prepare(batch))
        if self._is_divided:
            _require_same_rows(batch)
        return batch


def _as_tensor_like(value: Any) -> Any:
    if value is None or isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return value
    if type(value).__module__.startswith("scipy.sparse"):
        coo = value.tocoo()
        indices = np.stack([coo.row, coo.col], 1).astype("int64")
        return tf.SparseTensor(indices, coo.data, coo.shape)
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _require_same_rows(batch: Any) -> None:
    """Raises an error if the parts of a batch, which replicas divide, differ in their rows.

    A step on one device may take them: it gets the batch as it is.
    """
    shapes = [tuple(leaf.shape) for leaf in keras.tree.flatten(batch) if leaf is not None]
    if len({shape[0] for shape in shapes if shape}) > 1:
        raise ValueError(
            "`x` must yield batches whose parts all hold the same number of examples. Received: "
            f"shapes {', '.join(map(str, shapes))}"
        )


def _signature_of(*values: Any) -> Any:
    """Returns the `tf.TypeSpec` of one tensor of a batch, from its values in the first batches.

    The shape has None for the number of examples, and for each dimension in which the values
    differ.

    Raises:
        ValueError: If a value is a scalar, or the values differ in their number of dimensions.
    """
    value = values[0]
    shapes = [tuple(value.shape) for value in values]
    if not shapes[0] or len({len(shape) for shape in shapes}) > 1:
        raise ValueError(
            "`x` must yield batches of arrays with at least one dimension, the examples, and each "
            f"batch as many dimensions as the others. Received: shapes {shapes}"
        )
    inner = [
        sizes[0] if len(set(sizes)) == 1 else None for sizes in list(zip(*shapes, strict=True))[1:]
    ]
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *inner], value.dtype)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [None, *inner], value.dtype, value.ragged_rank, value.row_splits.dtype
        )
    return tf.TensorSpec([None, *inner], tf.as_dtype(value.dtype))


LOOKED_AT = 2
"""The number of batches from which the structure is inferred; Keras uses as many."""
