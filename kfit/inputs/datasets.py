"""`tf.data.Dataset`s batched to the global batch size.

A data set keeps its own order; how several workers share it is said in `kfit.distribute.sharing`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.agreement import Agreement
from kfit.distribute.sharing import share, spec_of_replica
from kfit.distribute.strategy import Strategy
from kfit.inputs.batches import (
    NO_BATCH,
    Batches,
    Layout,
    Run,
    Stream,
    as_keras_tensor,
    static_batch_size,
)
from kfit.inputs.pipeline_state import PipelineState, state_of
from kfit.objects import Generators
from kfit.objects.values import from_bytes, to_bytes


class DatasetBatches(Batches):
    """Batches of a tf.data pipeline, a distributed data set, or a function that makes one.

    Args:
        source: A `tf.data.Dataset` batched to the global batch size; a distributed data set; or a
            function from an `InputContext` to a data set batched per replica.
        strategy: The adapter.
        steps_per_epoch: Steps of an epoch, or None for one pass over the data.
        class_weight: Weights of the classes, made into sample weights.
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
        self._resume_at: tuple[int, int | None] | None = None
        self._endless = False
        self._per_replica = False
        self._pipeline: tf.data.Dataset | None = None
        self._held: _Held | None = None
        if isinstance(source, tf.data.Dataset):
            source = self._pipeline = _with_class_weight(source, class_weight)
            cardinality = int(source.cardinality())
            self._endless = cardinality == tf.data.INFINITE_CARDINALITY
            self._spec = source.element_spec
            self.batch_size = static_batch_size(self._spec)
            self._data, self._per_replica = share(source, strategy)
            if strategy.num_workers > 1 and not self._per_replica:
                _Held(state_of(source)).share(Agreement(strategy))
            if cardinality == 0:
                raise ValueError(NO_BATCH)
            if cardinality > 0 and not self._per_replica:
                self.length = cardinality  # TensorFlow's own sharding may change it
        else:
            if class_weight is not None:
                raise ValueError(
                    "`class_weight` needs `x` to be arrays, a tf.data.Dataset or a PyDataset. "
                    f"Received: x={source!r}"
                )
            if steps_per_epoch is None and not strategy.synchronous:
                # Before the workers are asked to make theirs: they would still be at it when the
                # process ends, which then aborts.
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

    @property
    def spec(self) -> Any:
        """See `Batches.spec`."""
        return tf.nest.map_structure(as_keras_tensor, self._spec)

    def runs(self, epoch: int, step: int = 0) -> Iterator[Run]:
        """See `Batches.runs`."""
        if self.steps is None and self._endless:
            raise ValueError(
                "`steps_per_epoch` (or `steps`) must be given: `x` is a data set that never ends."
            )
        _, start, steps = self.epoch(epoch)
        starts = self.length is not None and start == 0 and step == 0
        if self._resume_at is not None:
            self._go_on(starts)
        elif self._iterator is None or (step == 0 and not self._continues) or starts:
            self._begin()
        examples = None if self._per_replica else self.batch_size
        remaining = None if steps is None else steps - step
        layout = Layout(examples, per_replica=self._per_replica, endless=self._endless)
        yield Run(layout, remaining, iterator=self._iterator)

    def on_epoch_end(self) -> None:
        """Drops an iterator that is used up; kept, its end could block for seconds later."""
        if not self._continues:
            self.restart()

    def close(self) -> None:
        """Drops the iterator."""
        self._iterator = None

    def restart(self) -> None:
        """Drops the iterator, so that the next epoch begins a new one."""
        self._iterator = None
        self._stream.end()

    def rewind(self) -> None:
        """See `Batches.rewind`."""
        self.restart()
        if self._resume_at is not None:
            self._resume_at = self._resume_at[0], None

    def took(self, steps: int) -> None:
        """Counts what was taken of the iterator."""
        self._stream.taken += steps

    def keep_states(self, foreign: Collection[int] = ()) -> None:
        """See `Batches.keep_states`; warns of what nobody can bring back."""
        if self._pipeline is None:
            return
        held = state_of(self._pipeline)
        if held.unordered:
            warnings.warn(
                f"`x`, a tf.data.Dataset, has {' and '.join(held.unordered)}: it makes other "
                "batches each time it is read, so training sees others after a restart than it "
                "would have seen without. Give seeds (`keras.utils.set_random_seed`), and draw "
                "random numbers in a `map` without `num_parallel_calls`, or by "
                "`tf.random.stateless_uniform` and the like.",
                stacklevel=2,
            )
        if held:
            self._held = _Held(held)

    def generators(self) -> Generators | None:
        """See `Batches.generators`; they are where Python code of the pipeline needs them."""
        return Generators.now() if self._held is not None and self._held.has_drawn else None

    def state_dict(self) -> dict[str, Any]:
        """See `Batches.state_dict`."""
        state = self._stream.state_dict()
        if self._held is None:
            return state
        return {**state, "earlier": list(self._stream.earlier), **self._held.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Batches.load_state_dict`; what was taken is taken again, and dropped.

        Where the pipeline holds a state that goes on from iterator to iterator, all that was ever
        taken is.
        """
        if self._held is not None and "earlier" in state:
            self._take_again(state)
            return
        self.restart()
        taken = state["taken"]
        self._resume_at = (int(state["begun"]), None if taken is None else int(taken))

    def pass_over(self, batches: int) -> None:
        """See `Batches.pass_over`."""
        if batches and self._held is not None:
            if self._iterator is None:
                self._begin()
            self._drop(batches)
        elif batches and self._resume_at is not None:
            begun, taken = self._resume_at
            self._resume_at = (begun + (taken is None), (taken or 0) + batches)

    def _begin(self) -> None:
        if self._held is not None:
            self._held.begin()
        self._iterator = iter(self._data)
        self._stream.begin()

    def _take_again(self, state: dict[str, Any]) -> None:
        """Reads all that was ever read, so that the pipeline holds what it held."""
        assert self._held is not None
        self.restart()
        self._stream = Stream()
        last = [] if state["taken"] is None else [int(state["taken"])]
        with self._held.again(state):
            for taken in [*map(int, state["earlier"]), *last]:
                self._begin()
                self._drop(taken)
        if not last:
            self.restart()

    def _drop(self, batches: int) -> None:
        """Takes batches that are not to be trained on."""
        for _ in range(batches):
            next(self._iterator)
        self._stream.taken += batches

    def _go_on(self, starts: bool) -> None:
        """Begins as many iterators as were begun before, and skips what was taken of the last.

        An iterator that is begun draws the seeds of its pass, as the ones before it did. Where a
        pass starts anew, the last one is done with as well.
        """
        assert self._resume_at is not None
        (begun, taken), self._resume_at = self._resume_at, None
        taken = None if starts else taken
        while self._stream.begun < (begun if taken is None else begun - 1):
            self._begin()
        if taken is None or not isinstance(self._data, tf.data.Dataset):
            self._begin()
            for _ in range(taken or 0):
                next(self._iterator)
        else:
            # Skipping keeps no seeds of its own, so this iterator draws what the plain one would.
            self._iterator = iter(self._data.skip(taken))
            self._stream.begin()
        self._stream.taken = taken or 0


class _Held:
    """What a pipeline holds, as it was when its first iterator was begun.

    Attributes:
        has_drawn: Whether reading it again has moved the global random generators.
    """

    def __init__(self, held: PipelineState) -> None:
        self._held = held
        self._first: dict[str, Any] | None = None
        self.has_drawn = False

    def begin(self) -> None:
        """An iterator is about to be begun."""
        if self._first is None:
            values = [variable.numpy() for variable in self._held.variables]
            self._first = {"variables": values, "generators": Generators.now().state_dict()}

    def state_dict(self) -> dict[str, Any]:
        """What there was at first; None before."""
        return {"held": self._first}

    def share(self, agreement: Agreement) -> None:
        """All workers begin with what the pipeline of the chief holds; all call it."""
        if self._held.calls_python:
            row = agreement.views(Generators.now().row())[0]
            Generators.of_row(row, Generators.now().torch).give()
        if self._held.variables:
            own = to_bytes([variable.numpy() for variable in self._held.variables])
            for variable, value in zip(
                self._held.variables, from_bytes(agreement.content(own)), strict=True
            ):
                variable.assign(value)

    @contextmanager
    def again(self, state: dict[str, Any]) -> Iterator[None]:
        """Within it all is read again, from what there was at first."""
        first, here = state["held"], Generators.now()
        if first is None:
            yield
            return
        self._first = first
        for variable, value in zip(self._held.variables, first["variables"], strict=True):
            variable.assign(value)
        if not self._held.calls_python:
            yield
            return
        before = Generators.of_state_dict(first["generators"])
        before.give()
        yield
        self.has_drawn = Generators.now() != before
        if not self.has_drawn:
            here.give()


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
        labels = y
        if y.shape.rank > 1:
            labels = y[..., 0] if y.shape[-1] == 1 else tf.argmax(y, axis=-1)
        if labels.dtype.is_floating:
            labels = tf.round(labels)
        return x, y, table.lookup(tf.cast(labels, tf.int64))

    return dataset.map(weigh)
