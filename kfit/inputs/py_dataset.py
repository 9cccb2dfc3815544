"""Batches of a `keras.utils.PyDataset`, which are requested by their index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.order import permute
from kfit.inputs.own_state import OwnState
from kfit.inputs.processes import Processes, in_order
from kfit.inputs.python import LOOKED_AT, PythonBatches
from kfit.inputs.sample_weights import weigh_batch
from kfit.objects import Generators


class ReadBatches(keras.utils.PyDataset):
    """Batches that were read already, each in the very structure that the model's step gets.

    Args:
        batches: The batches.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__()
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


class PyDatasetBatches(PythonBatches):
    """Batches of a `keras.utils.PyDataset`, which are requested by their index.

    With `shuffle` the order of the batches in epoch e depends only on the seed and e. The user may
    have defined `on_epoch_begin` or `on_epoch_end` of the data set, for example to reorder the
    data. Then batches that were drawn ahead are dropped before kfit calls the method, and are
    requested again.

    Args:
        dataset: The data set; `workers`, `use_multiprocessing` and `max_queue_size` apply.
        strategy: kfit's wrapper of the `tf.distribute` strategy, whose replicas share each batch.
        shuffle: Whether to shuffle the order of the batches each epoch.
        seed: The seed from which this order is computed.
        steps_per_epoch: The number of steps in an epoch, or None for the data set's length.
        class_weight: The weight of each class, as for `fit`; converted to sample weights.
    """

    _looks_apart = True

    def __init__(
        self,
        dataset: keras.utils.PyDataset,
        *,
        strategy: Strategy,
        shuffle: bool,
        seed: int,
        steps_per_epoch: int | None,
        class_weight: Mapping[int, float] | None,
    ) -> None:
        self._dataset = dataset
        self._shuffle = shuffle
        self._seed = seed
        self._has_pass = False
        self._pass_length: int | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._processes: Processes | None = None

        def prepare(batch: Any) -> Any:
            return batch if class_weight is None else weigh_batch(batch, class_weight)

        length = dataset.num_batches
        self._has_own_steps = steps_per_epoch is None
        super().__init__(
            dataset,
            strategy=strategy,
            steps=steps_per_epoch or length,
            again=True,
            prepare=prepare,
            length=length,
        )

    def prepared(self, batch: Any) -> Any:
        """Converts a batch as `PythonBatches` does, but a dict stays what the model's step gets.

        So it is in Keras. Its own step takes such a batch as `x`. Batches that were read already
        keep the structure that they have.

        Raises:
            ValueError: If the batch has more parts than Keras takes from a PyDataset.
        """
        if isinstance(self._dataset, ReadBatches):
            return self._converted(batch)
        if isinstance(batch, (tuple, list)) and len(batch) not in (1, 2, 3):
            raise ValueError(
                "`__getitem__` of a PyDataset must return (x,), (x, y) or (x, y, sample_weight). "
                f"That of {type(self._dataset).__name__} returned {len(batch)} parts."
            )
        whole = super().prepared(batch)
        return whole[0] if isinstance(batch, dict) else whole

    def rewind(self) -> None:
        """Draws the first batches if none were drawn yet, and calls the data set's `on_epoch_end`.

        The method is called at the beginning of `fit` and of each evaluation, before any hook of a
        callback. Keras calls `on_epoch_end` there, too.
        """
        super().rewind()
        if self._has_own_steps:
            self.length = self.steps = self._dataset.num_batches
        self._tell("on_epoch_end")

    def on_epoch_begin(self) -> None:
        """Calls `on_epoch_begin` of the data set."""
        self._tell("on_epoch_begin")

    def on_epoch_end(self) -> None:
        """Calls `on_epoch_end` of the data set."""
        self._tell("on_epoch_end")

    def close(self) -> None:
        """Ends the threads and processes that make batches."""
        super().close()
        self._end_threads(wait=False)
        if self._processes is not None:
            self._processes.end()
            self._processes = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the seed of the order, and the state of the user's data set, for a snapshot.

        If a pass (reading of all the data) has begun, "pass_length" is its number of batches, or
        None if it has no end. The state of the user's data set is contained only if `keep_states`
        was called.
        """
        begun = {"pass_length": self._pass_length} if self._has_pass else {}
        return {"seed": self._seed, **begun, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the seed of the order, and the state of the user's data set, from a snapshot.

        Args:
            state: What `state_dict` returned for the snapshot.
        """
        super().load_state_dict(state)
        self._seed = int(state["seed"])
        self._has_pass = "pass_length" in state
        self._pass_length = state.get("pass_length")

    def _tell(self, hook: str) -> None:
        """Calls a method of the data set, such as its `on_epoch_end`.

        If the user has defined the method, batches that were drawn ahead are dropped first, since
        the method may reorder the data.

        Args:
            hook: The name of the method.
        """
        own = getattr(self._dataset, hook)
        if getattr(own, "__func__", own) is not getattr(keras.utils.PyDataset, hook):
            self._drop()
        own()

    def _gives_back(self, own: OwnState) -> bool:
        return True  # batches are requested by index, so none of its state is a position

    def _drop(self) -> None:
        super()._drop()
        self._end_threads(wait=True)

    def _end_threads(self, wait: bool) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=True)
            self._threads = None

    def _first_batches(self) -> list[Any]:
        """Returns the first batches, from which the structure of all batches is inferred.

        They are made in this thread, as in Keras, even if the data set has `workers`.
        """
        self._share_beginning()
        before = Generators.now()
        length = self._dataset.num_batches
        count = LOOKED_AT if length is None else min(LOOKED_AT, length)
        batches = [self.prepared(self._dataset[index]) for index in range(count)]
        if self._keeps and Generators.now() != before:
            self._warn_of_order()
        return batches

    def _indices(self, pass_index: int, batch: int) -> Iterator[int]:
        """Returns the indices of the batches of a pass (one reading of all the data), in its order.

        Hooks may change the length of the data set. As in Keras, a pass has the length that the
        data set had when the pass began.

        Args:
            pass_index: The number of the pass; the first one is 0.
            batch: The number of the batch in the pass to begin at.
        """
        if batch == 0 or not self._has_pass:
            self._has_pass, self._pass_length = True, self._dataset.num_batches
        length = self._pass_length
        if length is None:
            return itertools.count(pass_index * (self.steps or 0) + batch)
        order = np.arange(length)
        if self._shuffle:
            values = (length, self._seed, self.first_pass + pass_index)
            key = [tf.constant(value, tf.int64) for value in values]
            order = permute(tf.constant(order, tf.int64), *key).numpy()
        return (int(index) for index in order[batch:])

    def _iterate(self, pass_index: int, batch: int) -> Iterator[Any]:
        indices = self._indices(pass_index, batch)
        dataset = self._dataset
        if dataset.workers < 1 or (dataset.workers == 1 and not dataset.use_multiprocessing):
            return (dataset[index] for index in indices)
        ahead = max(dataset.max_queue_size, dataset.workers)
        if not dataset.use_multiprocessing:
            self._threads = ThreadPoolExecutor(dataset.workers)
            return in_order(self._threads, dataset.__getitem__, indices, ahead)
        self._processes = self._processes or Processes(dataset.workers)
        seed = (abs(self._seed), self.first_pass + pass_index)
        return self._processes.batches(dataset, indices, ahead, seed)

    def _warn_of_order(self) -> None:
        """Warns that the batches can't be reproduced, if several threads make them.

        It is called if making a batch draws random numbers: threads would draw them in an
        unpredictable order.
        """
        if self._dataset.workers > 1 and not self._dataset.use_multiprocessing:
            warn_user(
                f"`x`, a {type(self._dataset).__name__}, draws random numbers in `__getitem__` on "
                f"{self._dataset.workers} threads, which take turns in no known order: another run "
                "draws other numbers, and so does one that goes on after a restart. Use workers=1 "
                "or use_multiprocessing=True (there each batch has a seed of its own), or draw "
                "from np.random.default_rng((seed, index))."
            )
