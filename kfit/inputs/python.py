"""Batches made by Python: generators, `keras.utils.PyDataset`s, torch and grain loaders.

Every element is a whole global batch; each replica takes its rows of it. A batch that was asked
for is trained on: nothing is drawn ahead and thrown away, and the batches of a PyDataset keep
their order whatever the number of its workers is.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.inputs.arrays import class_weights_of
from kfit.inputs.batches import (
    NO_BATCH,
    Batches,
    Layout,
    Run,
    Template,
    as_keras_tensor,
    own_options,
)
from kfit.inputs.order import permute


class PythonBatches(Batches):
    """Batches from something that Python iterates over.

    Args:
        start: Called with the index of a pass over the data and of a batch in it, for an iterator
            over the batches from there on. Where a pass has no known length, passes are epochs.
        steps: Steps of an epoch, or None for as many as there are.
        again: Whether `start` can be called again, at any place; a generator is read once.
        prepare: Applied to each batch, `(x, y, sample_weight)` or parts of it.
        length: Batches in one pass over the data, where that is known.
    """

    def __init__(
        self,
        start: Callable[[int, int], Iterator[Any]],
        *,
        steps: int | None,
        again: bool,
        prepare: Callable[[Any], Any] = lambda batch: batch,
        length: int | None = None,
    ) -> None:
        if length == 0:
            raise ValueError(NO_BATCH)
        self._start = start
        self._again = again
        self._prepare = prepare
        self.length = length
        self.steps = steps
        self._rest: Iterator[Any] | None = None
        self._stream: Any = None
        self._at: tuple[int, int] | None = None
        self._template: Template | None = None
        self._signature: Any = None
        self._taken = 0

    @property
    def spec(self) -> Any:
        """See `Batches.spec`; looks at the first batches, which are trained on later."""
        if self._template is None:
            self._open(0, 0)
        assert self._template is not None
        return self._template.pack([as_keras_tensor(spec) for spec in self._signature])

    def runs(self, epoch: int, step: int = 0) -> Iterator[Run]:
        """See `Batches.runs`."""
        lap, start, steps = self.epoch(epoch)
        if self._stream is None or (self._again and self._at != (lap, start + step)):
            self._open(lap, start + step)
        if self._stream is not None:
            self._at = None if steps is None else self._after(lap, start + steps)
            layout = Layout(template=self._template, endless=False)
            yield Run(layout, None if steps is None else steps - step, iterator=self._stream)

    def restart(self) -> None:
        """Drops the iterator, so that the next epoch begins a new one."""
        self._stream = None

    def took(self, steps: int) -> None:
        """Counts the batches that were trained on."""
        self._taken += steps

    def state_dict(self) -> dict[str, Any]:
        """See `Batches.state_dict`; what can be begun anywhere needs no more than the step."""
        return {} if self._again else {"taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Batches.load_state_dict`; a generator is read on to the batch it had come to."""
        self._stream = None
        if "taken" in state:
            if state["taken"] < self._taken:
                raise ValueError(
                    "`x` is a generator, which cannot go back to an earlier batch. Pass a "
                    "keras.utils.PyDataset, a tf.data.Dataset or arrays."
                )
            self.pass_over(int(state["taken"]) - self._taken)

    def pass_over(self, batches: int) -> None:
        """See `Batches.pass_over`."""
        if not self._again:
            rest = self._start(0, 0) if self._rest is None else self._rest
            rest = itertools.islice(rest, batches, None)
            self._start = lambda lap, batch: rest
            self._rest = None
            self._taken += batches

    def _after(self, lap: int, batch: int) -> tuple[int, int]:
        """The place that a stream stands at after `batch` batches of a pass."""
        return (lap + 1, 0) if self.length is None else (lap, batch)

    def _open(self, lap: int, batch: int) -> None:
        """Starts an iterator; its first batches tell the structure and are kept."""
        batches = map(self._prepared, self._start(lap, batch))
        first = list(itertools.islice(batches, _LOOKED_AT if self._template is None else 1))
        if not first:
            if self._template is None:
                raise ValueError(NO_BATCH)
            return
        if self._template is None:
            self._template = Template(first[0])
            flat = [self._template.flatten(batch) for batch in first]
            if not flat[0]:
                raise ValueError(f"`x` must yield batches of arrays. It yielded: {first[0]!r}")
            self._signature = tuple(_signature_of(*leaves) for leaves in zip(*flat, strict=True))
        self._rest = itertools.chain(first, batches)
        dataset = tf.data.Dataset.from_generator(
            self._flat_batches, output_signature=self._signature
        )
        self._stream = iter(dataset.prefetch(2).with_options(own_options()))
        self._at = (lap, batch)

    def _flat_batches(self) -> Iterator[tuple[Any, ...]]:
        assert self._template is not None
        assert self._rest is not None
        for batch in self._rest:
            yield self._template.flatten(batch)

    def _prepared(self, batch: Any) -> Any:
        if isinstance(batch, list):
            batch = tuple(batch)
        if not isinstance(batch, tuple):
            batch = (batch,)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(self._prepare(batch))
        kept = (x, y, sample_weight)[
            : 3 if sample_weight is not None else 2 if y is not None else 1
        ]
        return keras.tree.map_structure(_as_tensor_like, kept)


def generator_batches(generator: Iterator[Any], steps: int | None) -> PythonBatches:
    """Batches of a generator, which is read once and runs on over the epochs."""
    return PythonBatches(lambda lap, batch: generator, steps=steps, again=False)


def iterable_batches(iterable: Iterable[Any], steps: int | None) -> PythonBatches:
    """Batches of a loader that can be iterated over again for each epoch."""
    length = _length_of(iterable)

    def start(lap: int, batch: int) -> Iterator[Any]:
        return itertools.islice(iter(iterable), batch, None)

    return PythonBatches(start, steps=steps or length, again=True, length=length)


def _length_of(iterable: Iterable[Any]) -> int | None:
    """Its length, if it has one: torch's loaders have the method also where their data has none."""
    try:
        return len(iterable) if isinstance(iterable, Sized) else None
    except TypeError:
        return None


class PyDatasetBatches(PythonBatches):
    """Batches of a `keras.utils.PyDataset`, by index.

    With `shuffle` the order of the batches in epoch e is a function of (seed, e) alone.

    Args:
        dataset: The data set; its `workers`, `use_multiprocessing`, `max_queue_size` are kept to.
        shuffle: Whether to shuffle the order of the batches each epoch.
        seed: Seed of that order.
        steps_per_epoch: Steps of an epoch, or None for the data set's length.
        class_weight: Weights of the classes, made into sample weights.
    """

    def __init__(
        self,
        dataset: keras.utils.PyDataset,
        *,
        shuffle: bool,
        seed: int,
        steps_per_epoch: int | None,
        class_weight: Mapping[int, float] | None,
    ) -> None:
        self._dataset = dataset
        self._shuffle = shuffle
        self._seed = seed
        self._executor: Executor | None = None

        def prepare(batch: Any) -> Any:
            if class_weight is None:
                return batch
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            if sample_weight is not None:
                raise ValueError(
                    "`class_weight` and sample weights yielded by `x` exclude each other."
                )
            return x, y, class_weights_of(y, class_weight)

        length = dataset.num_batches
        super().__init__(
            self._begin,
            steps=steps_per_epoch or length,
            again=True,
            prepare=prepare,
            length=length,
        )

    def on_epoch_begin(self) -> None:
        """Tells the data set."""
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the data set."""
        self._dataset.on_epoch_end()

    def close(self) -> None:
        """Ends the workers."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _indices(self, lap: int, batch: int) -> Iterator[int]:
        if self.length is None:
            return itertools.count(lap * (self.steps or 0) + batch)
        order = np.arange(self.length)
        if self._shuffle:
            key = [tf.constant(value, tf.int64) for value in (self.length, self._seed, lap)]
            order = permute(tf.constant(order, tf.int64), *key).numpy()
        return (int(index) for index in order[batch:])

    def _begin(self, lap: int, batch: int) -> Iterator[Any]:
        indices = self._indices(lap, batch)
        workers = self._dataset.workers
        if workers <= 1 and not self._dataset.use_multiprocessing:
            return (self._dataset[index] for index in indices)
        self.close()
        if self._dataset.use_multiprocessing:
            # Spawned, not forked: a forked child inherits TensorFlow's locked threads.
            self._executor = ProcessPoolExecutor(
                workers, mp_context=multiprocessing.get_context("spawn")
            )
        else:
            self._executor = ThreadPoolExecutor(workers)
        ahead = max(self._dataset.max_queue_size, workers)
        return _in_order(self._executor, self._dataset.__getitem__, indices, ahead)


def _in_order(
    executor: Executor, get: Callable[[int], Any], indices: Iterator[int], ahead: int
) -> Iterator[Any]:
    """Results of `get` in the order of `indices`, up to `ahead` of them under way."""
    pending: deque[Future[Any]] = deque(
        executor.submit(get, index) for index in itertools.islice(indices, ahead)
    )
    while pending:
        result = pending.popleft().result()
        for index in itertools.islice(indices, 1):
            pending.append(executor.submit(get, index))
        yield result


def _as_tensor_like(value: Any) -> Any:
    if value is None or isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return value
    if type(value).__module__.startswith("scipy.sparse"):
        coo = value.tocoo()
        indices = np.stack([coo.row, coo.col], 1).astype("int64")
        return tf.SparseTensor(indices, coo.data, coo.shape)
    value = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    return value.astype(keras.config.floatx()) if value.dtype.kind == "f" else value


def _signature_of(*values: Any) -> Any:
    """A spec of batches like `values`: open where they differ, and in the number of examples."""
    value = values[0]
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [None] * value.shape.rank, value.dtype, value.ragged_rank, value.row_splits.dtype
        )
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
    return tf.TensorSpec([None, *inner], tf.as_dtype(value.dtype))


_LOOKED_AT = 2
"""Batches that tell which dimensions are open, as many as Keras looks at."""
