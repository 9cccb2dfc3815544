"""Batches of arrays, whose examples are computed from the number of the step.

A pass is one reading of all the data, usually an epoch. Step k of a pass has the examples at
positions k * B to (k + 1) * B - 1 of the pass's order (`order.permute`), where B is the global
batch size. So the examples depend neither on the number of workers nor on restarts.

Each worker gathers only its own rows of a batch. A worker without rows gathers one row of another
worker, since a model may fail on an empty batch. Full batches come from one endless stream with
static shapes. The last, partial batch of a pass is gathered separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.inputs.bad_columns import bad_columns, is_frame
from kfit.inputs.batch_structure import Template
from kfit.inputs.batches import Batches, BatchLayout, Segment, own_options
from kfit.inputs.feeder import LARGEST, MOST, Feeder, lent, take_back
from kfit.inputs.order import Rows, permute, rows_fed
from kfit.inputs.read_by_rows import is_column, of_polars
from kfit.inputs.stored import StoredColumn, is_stored, reads_in_place

Shuffle = bool | Literal["batch"]

_PREFETCH = 8
"""The number of batches that are gathered ahead of the present step."""

_CHUNK = 8192
"""The number of positions permuted in one call, which may serve many small batches."""


class ArrayBatches(Batches):
    """Batches of arrays, tensors, data frames, ragged or sparse tensors, in any structure.

    Args:
        data: `(x, y, sample_weight)`; structures of arrays of equal length, or None.
        batch_size: The global batch size. If None, the size is 32 or, if `steps_per_epoch` is
            given, such that an epoch reads all the data once.
        strategy: kfit's wrapper of the `tf.distribute` strategy. It decides which rows of a batch
            this task (process) gathers.
        shuffle: Whether to shuffle each epoch; "batch" shuffles within batches only.
        seed: The seed from which the shuffled order is computed.
        steps_per_epoch: The number of steps in an epoch, or None for one reading of all the data.
        keeps_floats: Whether floats keep their dtype; otherwise they get Keras' `floatx`.

    Raises:
        ValueError: If the arrays differ in length, hold no example or cannot be made into tensors.
    """

    def __init__(
        self,
        data: tuple[Any, Any, Any],
        *,
        batch_size: int | None,
        strategy: Strategy,
        shuffle: Shuffle = False,
        seed: int = 0,
        steps_per_epoch: int | None = None,
        keeps_floats: bool = False,
    ) -> None:
        self._examples = common_length(*data)
        in_place = strategy.reads_on_this_host
        floats = None if keeps_floats else tf.as_dtype(keras.config.floatx())
        parts = zip(ARGUMENTS, data, strict=True)
        structure = pack(*(_columns(*part, in_place, floats) for part in parts))
        self._given = Template(structure)
        # As in Keras, a model gets tuples where `fit` got lists. A step on one batch gets lists.
        self._template = Template(keras.tree.lists_to_tuples(structure))
        self.in_memory = not any(
            is_stored(leaf) or isinstance(leaf, np.memmap) for leaf in keras.tree.flatten(data)
        )
        self._columns = self._given.flatten(structure)
        self._strategy = strategy
        self._shuffle = shuffle
        self._seed = seed
        if batch_size is None:
            batch_size = math.ceil(self._examples / steps_per_epoch) if steps_per_epoch else 32
        self.batch_size = self._size = batch_size
        self._full = self._examples // batch_size
        self.length = self._pass = math.ceil(self._examples / batch_size)
        self.steps = steps_per_epoch or self._pass
        self._rows = self._rows_of_task(batch_size)
        self._stream: Any = None
        self._position = -1
        self._reads_stream = False
        self._feeder: Feeder | None = None
        self._fed = 0

    @property
    def spec(self) -> Any:
        """The structure of a global batch, made of `keras.KerasTensor`s (see `Batches.spec`)."""
        return self._template.pack([column.spec for column in self._columns])

    def segments(self, epoch: int, step: int = 0) -> Iterator[Segment]:
        """Yields the steps of an epoch, in groups for one graph call (see `Batches.segments`).

        To begin at a later step takes no longer than to begin at the first step.
        """
        pass_index, start, steps = self.epoch(epoch)
        assert steps is not None
        pass_index += self.first_pass
        first, stop = start + step, start + steps
        full = min(stop, self._full)
        if first < full:
            yield self._stretch(pass_index * self._full + first, full - first)
        if first < stop and stop > self._full:
            yield self._last(pass_index)

    def whole(self, *, trains: bool) -> Segment:
        """Returns a segment (a group of steps) of one step, whose batch has all examples in order.

        `train_on_batch` and similar methods run this segment. The batch needs no tf.data pipeline.
        As in Keras it is `(x, y, sample_weight)`, with None for what is missing, or `(x,)` for
        `predict_on_batch`.

        Args:
            trains: True for `train_on_batch` and `test_on_batch`, False for `predict_on_batch`.
        """
        structure = self._given.pack(self._columns)
        parts = structure if isinstance(structure, tuple) else (structure,)
        missing = (None,) * (len(ARGUMENTS) - len(parts)) if trains else ()
        element = tuple(column.all_rows() for column in self._columns)
        return Segment(BatchLayout(template=Template((*parts, *missing))), 1, element=element)

    def first(self, size: int) -> Segment:
        """Returns a segment of one step, whose batch has the first examples of the arrays.

        The batch has the structure that `fit` gives to `train_step`. The segments of this object
        can still be read afterwards as if this had not been called.

        Args:
            size: The number of examples; if the arrays have fewer, the batch has all of them.
        """
        rows = tf.range(min(size, self._examples), dtype=tf.int64)
        element = tuple(column.gather(column.tensors, rows, len(rows)) for column in self._columns)
        return Segment(BatchLayout(len(rows), template=self._template), 1, element=element)

    @property
    def examples_per_epoch(self) -> int | None:
        """The number of examples in each epoch, if each epoch reads all of the arrays."""
        return self._examples if self.steps == self.length else None

    def describe(self) -> dict[str, Any]:
        """Returns the settings that the batches depend on, for a snapshot (see `Batches.describe`).

        Arrays add the number of examples and `shuffle` to the settings of all kinds of data.
        """
        return {
            "examples": self._examples,
            **super().describe(),
            "shuffle": self._shuffle,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the data for a snapshot: only the seed (see `Batches.state_dict`).

        The position in the data is not saved, since it follows from the number of the step.
        """
        return {"seed": self._seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the seed of the order from a snapshot (see `Batches.load_state_dict`)."""
        self._seed = int(state["seed"])
        self._stream = None

    def took(self, steps: int) -> None:
        """Counts the batches that were taken from the stream, of which a segment may leave some."""
        if self._reads_stream:
            self._position += steps

    def close(self) -> None:
        """Releases the arrays and the iterator, since callbacks may still refer to this object."""
        self._stream = None
        self._columns = ()
        if self._feeder is not None:
            take_back(self._feeder)
            self._feeder = None

    def _stretch(self, position: int, steps: int) -> Segment:
        """Returns a segment (a group of steps) on full batches.

        Creating an iterator takes long. So the first few batches of this object are put into the
        queue of an iterator that an earlier call of `fit` has left, if possible (`_fed_with`).
        Later batches come from an endless stream. If the stream is at a different position, a new
        stream is created.

        Args:
            position: The number of the segment's first batch, counted over the full batches of all
                passes (readings of the data).
            steps: The number of steps, each with one batch.
        """
        layout = BatchLayout(
            self._size,
            offset=self._rows.start,
            per_replica=self._fetches_ahead,
            template=self._template,
        )
        self._fed += steps
        self._reads_stream = False
        if self._fed <= MOST and self._can_feed and steps * self._bytes <= LARGEST:
            return Segment(layout, steps, iterator=self._fed_with(position, steps))
        # Without shuffling all passes are equal, so the stream can go on although the pass differs.
        pass_index = self._full if not self._shuffle else np.iinfo(np.int64).max
        if self._stream is None or position % pass_index != self._position % pass_index:
            self._stream = iter(self._data_from(position))
        self._position, self._reads_stream = position, True
        return Segment(layout, steps, iterator=self._stream)

    @cached_property
    def _can_feed(self) -> bool:
        """Whether the first batches may come from an iterator that an earlier `fit` has left.

        Such an iterator reads its batches from a queue, so it can be used again (`feeder.py`). This
        requires dense arrays, and batches that are not copied to the devices in advance.
        """
        return not self._fetches_ahead and all(isinstance(c, _Dense) for c in self._columns)

    @cached_property
    def _bytes(self) -> int:
        """The number of bytes in this task's rows of a full batch; all arrays must be dense."""
        row = sum(math.prod(c.tensors.shape[1:]) * c.tensors.dtype.size for c in self._columns)
        return row * (self._rows.stop - self._rows.start)

    def _fed_with(self, position: int, steps: int) -> Any:
        """Gathers the next full batches at once, and returns an iterator that yields them.

        The iterator is one that an earlier call of `fit` has left, if there is one: creating an
        iterator would take as long as hundreds of small steps (`feeder.py`).

        Args:
            position: The number of the first batch, counted over the full batches of all passes
                (readings of the data).
            steps: The number of batches, at most `feeder.MOST`.
        """
        count = self._rows.stop - self._rows.start
        if self._feeder is None:
            self._feeder = lent([c.batch_spec(count) for c in self._columns])
        batch = position + tf.range(steps, dtype=tf.int64)
        start = (batch % self._full) * self._size + self._rows.start
        chosen = self._order(
            start[:, None] + tf.range(count, dtype=tf.int64), (batch // self._full)[:, None]
        )
        self._feeder.feed([tf.gather(column.tensors, chosen) for column in self._columns])
        return self._feeder.iterator

    def _last(self, pass_index: int) -> Segment:
        """Returns a segment of one step, on the partial batch at the end of the data.

        Args:
            pass_index: The number of times that all the data was read before; the shuffled order
                depends on it.
        """
        examples = self._examples - self._full * self._size
        rows = self._rows_of_task(examples)
        positions = self._full * self._size + tf.range(rows.start, rows.stop, dtype=tf.int64)
        chosen = self._order(positions, tf.constant(pass_index, tf.int64))
        element = tuple(
            column.gather(column.tensors, chosen, rows.stop - rows.start)
            for column in self._columns
        )
        layout = BatchLayout(examples, offset=rows.start, template=self._template)
        self._reads_stream = False
        return Segment(layout, 1, element=element)

    def _data_from(self, position: int) -> Any:
        """Returns an iterable over full batches without an end, beginning with number `position`.

        If `_fetches_ahead` is True, the batches are copied to the devices in advance.
        """
        if not self._fetches_ahead:
            return self._dataset(position, self._rows)
        size = self._size // self._strategy.num_replicas

        def of_host(first: int, replicas: int) -> tf.data.Dataset:
            rows = Rows(first * size, (first + replicas) * size)
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            return self._dataset(position, rows, replicas).apply(endless)

        return self._strategy.fetch_ahead(of_host)

    @cached_property
    def _fetches_ahead(self) -> bool:
        """Whether batches are copied to the devices before the steps that need them.

        Copying ahead requires a strategy that can do it, dense arrays without strings, and equally
        many rows of each batch for all replicas.
        """
        return (
            self._strategy.fetches_ahead
            and self._size % self._strategy.num_replicas == 0
            and all(isinstance(c, _Dense) and c.tensors.dtype != tf.string for c in self._columns)
        )

    def _dataset(self, position: int, rows: Any, parts: int = 1) -> tf.data.Dataset:
        """Returns an endless pipeline that reads the same rows of each full batch.

        Args:
            position: The number of the full batch to begin at.
            rows: The rows of each batch, such as those of this task.
            parts: The number of equal parts into which the rows of a batch are split, such as one
                for each replica. The pipeline yields one part after the other.
        """
        full = self._full
        count = (rows.stop - rows.start) // parts
        chunk = max(1, min(_CHUNK // max(count * parts, 1), full))

        # AutoGraph is not needed (no `if` or `for` of tensors), and takes most of a second.
        @tf.autograph.experimental.do_not_convert
        def positions(first: tf.Tensor) -> tf.data.Dataset:
            batch = first + tf.range(chunk, dtype=tf.int64)
            pass_index = batch // full
            start = (batch % full) * self._size + rows.start
            wanted = start[:, None] + tf.range(count * parts, dtype=tf.int64)
            chosen = self._order(wanted, pass_index[:, None])
            return tf.data.Dataset.from_tensor_slices(tf.reshape(chosen, [chunk * parts, count]))

        @tf.autograph.experimental.do_not_convert
        def gather(chosen: tf.Tensor, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                column.gather(tensor, chosen, count)
                for column, tensor in zip(self._columns, tensors, strict=True)
            )

        dataset = tf.data.Dataset.range(position, np.iinfo(np.int64).max - chunk, chunk)
        # As elements of a data set, since a function that captured the tensors would hold them
        # until Python's garbage collector finds its graph.
        tensors = tf.data.Dataset.from_tensors(tuple(column.tensors for column in self._columns))
        dataset = tf.data.Dataset.zip(dataset.flat_map(positions), tensors.repeat())
        dataset = dataset.map(gather, num_parallel_calls=2)
        return dataset.prefetch(_PREFETCH * parts).with_options(own_options())

    def _order(self, positions: tf.Tensor, pass_index: tf.Tensor) -> tf.Tensor:
        """Returns which examples are at certain positions of the order, which may be shuffled.

        Args:
            positions: Positions from 0 on, counted within one reading of all the data.
            pass_index: How many times all the data was read before. Each time has a different
                shuffled order. The shape broadcasts to that of `positions`.

        Returns:
            The indices of the examples in the user's arrays, with the shape of `positions`.
        """
        if not self._shuffle:
            return positions
        seed = tf.constant(self._seed, tf.int64)
        if self._shuffle != "batch":
            examples = permute(positions, tf.constant(self._examples, tf.int64), seed, pass_index)
            return tf.ensure_shape(examples, positions.shape)
        size = tf.constant(self._size, tf.int64)
        batch = positions // size
        length = tf.minimum(size, self._examples - batch * size)
        within = permute(positions % size, length, seed, pass_index * self._pass + batch)
        return tf.ensure_shape(batch * size + within, positions.shape)

    def _rows_of_task(self, examples: int) -> Any:
        first = self._strategy.first_local_replica
        last = first + self._strategy.num_local_replicas - 1
        replicas = self._strategy.num_replicas
        start = rows_fed(examples, first, replicas).start
        return rows_fed(examples, last, replicas)._replace(start=start)


def pack(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Returns what Keras gives to `train_step`: `(x, y, sample_weight)` without trailing Nones.

    If only `x` is given, the result is `x` itself, or `(x,)` if `x` is a list or tuple of inputs.
    """
    if y is None and sample_weight is None:
        return (x,) if isinstance(x, (list, tuple)) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


ARGUMENTS = ("x", "y", "sample_weight")
"""The names of the arguments by which the user passes arrays."""


class _Dense:
    """One array of the user's data, as a dense tensor from which batches are gathered."""

    def __init__(self, tensors: tf.Tensor) -> None:
        self.tensors = tensors
        self.length = int(tensors.shape[0])
        self.spec = keras.KerasTensor(
            (None, *tensors.shape[1:]), keras.backend.standardize_dtype(tensors.dtype)
        )

    def batch_spec(self, count: int) -> tf.TensorSpec:
        return tf.TensorSpec([count, *self.tensors.shape[1:]], self.tensors.dtype)

    def all_rows(self) -> tf.Tensor:
        return self.tensors

    def gather(self, tensor: tf.Tensor, rows: tf.Tensor, count: int) -> tf.Tensor:
        return tf.ensure_shape(tf.gather(tensor, rows), [count, *self.tensors.shape[1:]])


class _Ragged:
    """One array of the user's data, as a ragged tensor from which batches are gathered."""

    def __init__(self, tensors: tf.RaggedTensor) -> None:
        self.tensors = tensors
        self.length = int(tensors.nrows())
        self.spec = keras.KerasTensor(
            (None, *tensors.shape[1:]),
            keras.backend.standardize_dtype(tensors.dtype),
            ragged=True,
            ragged_rank=tensors.ragged_rank,
            row_splits_dtype=tensors.row_splits.dtype,
        )

    def all_rows(self) -> tf.RaggedTensor:
        return self.tensors

    def gather(self, tensor: tf.RaggedTensor, rows: tf.Tensor, count: int) -> tf.RaggedTensor:
        return tf.gather(tensor, rows)


class _Sparse:
    """One sparse array of the user's data, in a form from which batches can be gathered.

    TensorFlow cannot gather rows of a `tf.SparseTensor`. So its indices and its values are stored
    as two ragged tensors with a row for each example.
    """

    def __init__(self, sparse: tf.SparseTensor) -> None:
        sparse = tf.sparse.reorder(sparse)
        self._shape = [int(size) for size in sparse.dense_shape]
        self.length = self._shape[0]

        def by_row(values: tf.Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_value_rowids(values, sparse.indices[:, 0], self.length)

        self.tensors = (by_row(sparse.indices[:, 1:]), by_row(sparse.values))
        self.spec = keras.KerasTensor(
            (None, *self._shape[1:]), keras.backend.standardize_dtype(sparse.dtype), sparse=True
        )

    def all_rows(self) -> tf.SparseTensor:
        return self.gather(self.tensors, tf.range(self.length, dtype=tf.int64), self.length)

    def gather(
        self, tensor: tuple[tf.RaggedTensor, tf.RaggedTensor], rows: tf.Tensor, count: int
    ) -> tf.SparseTensor:
        indices, values = (tf.gather(part, rows) for part in tensor)
        first = tf.cast(values.value_rowids(), tf.int64)[:, None]
        return tf.SparseTensor(
            tf.concat([first, indices.values], 1),
            values.values,
            tf.constant([count, *self._shape[1:]], tf.int64),
        )


def is_array(value: Any) -> bool:
    """Returns whether a value is None, or an array of a kind that `fit` accepts."""
    if value is None or isinstance(
        value, (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    ):
        return True
    has_shape = hasattr(value, "__array__") and hasattr(value, "shape")
    return has_shape or _is_scipy_sparse(value) or is_column(value)


def _is_scipy_sparse(value: Any) -> bool:
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocoo")


def _columns(argument: str, part: Any, in_place: bool, floats: tf.DType | None) -> Any:
    """Converts the arrays of one argument of `fit` to objects from which batches are gathered.

    Args:
        argument: The name of the argument, for error messages.
        part: Arrays in any structure.
        in_place: Whether large arrays may be read in place, so that they need not be copied.
        floats: The dtype that floats are converted to; None if they keep their own.

    Returns:
        The same structure, with a `_Dense`, `_Ragged`, `_Sparse` or `StoredColumn` object for each
        array.

    Raises:
        ValueError: If an array cannot be made into a tensor.
    """

    def column(value: Any) -> Any:
        try:
            return _column(value, in_place, floats)
        except (TypeError, ValueError) as error:
            if is_frame(value):
                received = bad_columns(value, lambda one: _column(one, False, floats).tensors.dtype)
                raise ValueError(
                    f"`{argument}` cannot be made into a tensor: {error} {received}"
                ) from error
            dtype = getattr(value, "dtype", type(value).__name__)
            mend = "; give it a dtype: `.astype('float32')`" if str(dtype) == "object" else ""
            raise ValueError(
                f"`{argument}` cannot be made into a tensor: {error} Received: an array of dtype "
                f"{dtype}{mend}"
            ) from error

    return keras.tree.map_structure(column, part)


def _column(value: Any, in_place: bool, floats: tf.DType | None) -> Any:
    """Converts one array to an object from which batches are gathered; None stays None.

    Args:
        value: The array.
        in_place: Whether a large array is not copied: its rows are read when a batch needs them.
        floats: As for `_columns`. Keras' own `fit` converts floats to `floatx`.
    """
    if value is None:
        return None
    if in_place and type(value).__module__.split(".")[0] == "polars":
        by_rows = of_polars(value)
        value = by_rows if reads_in_place(by_rows) else value
    if in_place and is_stored(value) and reads_in_place(value):
        return StoredColumn(value, floats)
    if _is_scipy_sparse(value):
        coo = value.tocoo()
        value = tf.SparseTensor(
            np.stack([coo.row, coo.col], 1).astype("int64"), coo.data, coo.shape
        )
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        if value.dtype.is_floating and floats is not None:
            value = tf.cast(value, floats)
        return _Ragged(value) if isinstance(value, tf.RaggedTensor) else _Sparse(value)
    if not isinstance(value, tf.Tensor):
        if type(value).__module__.split(".")[0] == "pandas":
            value = _of_pandas(value)
        value = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if in_place and reads_in_place(value):
            return StoredColumn(value, floats)
    dtype = tf.as_dtype(value.dtype)
    if dtype.is_floating and floats is not None:
        dtype = floats
    with tf.device("CPU:0"):
        return _Dense(tf.cast(tf.convert_to_tensor(value), dtype))


def _of_pandas(frame: Any) -> np.ndarray:
    """Converts a data frame, or a series (to one column), to a two-dimensional array.

    Columns with a dtype of pandas' own or of pyarrow, such as `Int64`, get the NumPy dtype with the
    same values, since `np.asarray` would make Python objects of them. But if a column has no such
    NumPy dtype, `np.asarray` converts the whole frame.

    Raises:
        ValueError: If a value is missing, but the NumPy dtype has no NaN.
    """
    frame = frame.to_frame() if frame.ndim == 1 else frame
    types = {getattr(dtype, "numpy_dtype", dtype) for dtype in frame.dtypes}
    if not all(isinstance(dtype, np.dtype) for dtype in types):
        return np.asarray(frame)
    dtype = np.result_type(*types)
    missing = {"na_value": np.nan} if dtype.kind == "f" else {}
    return frame.to_numpy(dtype=dtype, **missing)


def common_length(x: Any, y: Any = None, sample_weight: Any = None) -> int:
    """Returns the number of examples in arrays of equal length.

    Raises:
        ValueError: If the lengths differ or are 0, if an array is a scalar, or if there is no
            array.
    """
    parts = dict(zip(ARGUMENTS, (x, y, sample_weight), strict=True))
    for name, part in parts.items():
        for leaf in keras.tree.flatten(part):
            if leaf is not None and not len(leaf.shape):
                is_list = isinstance(part, (list, tuple))
                mend = f" in a list; make an array of it: `np.array({name})`" if is_list else ""
                raise ValueError(
                    f"`{name}` must be arrays of at least one dimension, the examples. "
                    f"Received: {leaf!r}{mend}"
                )
    sizes = {
        name: keras.tree.map_structure(lambda a: None if a is None else len_of(a), part)
        for name, part in parts.items()
        if part is not None
    }
    lengths = {size for size in keras.tree.flatten(sizes) if size is not None}
    if len(lengths) == 1 and lengths != {0}:
        return int(lengths.pop())
    if not lengths:
        raise ValueError(f"`x` must hold at least one array. Received: {x!r}")
    if lengths == {0}:
        raise ValueError(f"`x` must hold at least one example. Received sizes: {sizes}")
    raise ValueError(
        "Data cardinality is ambiguous: all arrays must hold the same number of examples. "
        f"Received sizes: {sizes}"
    )


def len_of(value: Any) -> int:
    """Returns the number of examples in one array."""
    return int(value.shape[0])
