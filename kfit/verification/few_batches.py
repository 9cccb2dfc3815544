"""Takes a few batches out of the user's data, the last and shortest one among them."""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint.state import belongings
from kfit.exactness.rows import is_scalar
from kfit.inputs import Batches, Cursor, Segment, has_arrays
from kfit.inputs.own_state import OwnState
from kfit.objects import Generators
from kfit.verification.beginning import KerasDraws

_FEW = 64
"""So many batches of data that can only be read in order are read to find the last one."""


def few_batches(batches: Batches, steps: int) -> list[Any]:
    """Returns the first batches of an epoch, but the last one is the last batch of the epoch.

    The last batch of an epoch often has fewer examples than the others. Of data that must be read
    in order, only the first 64 batches are read: if there are more, these first batches are
    returned.

    Args:
        batches: The data, read on one device.
        steps: How many batches to return; fewer if the epoch is shorter.

    Returns:
        The batches, each in the structure in which `fit` passes it to the model's step, such as
        `(x, y)`, or a tensor.

    Raises:
        ValueError: If there is no batch.
    """
    if batches.in_memory and batches.steps is not None and batches.steps > steps:
        last = batches.steps - 1
        return [*_taken(batches, 0, steps - 1), *_taken(batches, last, 1)]
    is_long = batches.steps is not None and batches.steps > _FEW
    found: list[Any] = []
    last_one, count = None, 0
    for batch in _read(batches, 0, steps if is_long else max(steps, _FEW)):
        count += 1
        last_one = batch
        if len(found) < steps:
            found.append(batch)
    if not found:
        raise ValueError("`x` has no batch to train on.")
    ended = not is_long and count < max(steps, _FEW)
    return [*found[:-1], last_one] if ended and count > steps else found


def examples_of(batch: Any) -> int:
    """Returns the number of examples in a batch."""
    leaf = next(leaf for leaf in keras.tree.flatten(batch) if not is_scalar(leaf))
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    return int(leaf.shape[0])


def inputs_of(batch: Any) -> Any:
    """Returns the inputs of the model in a batch: its first part, or all of it.

    Args:
        batch: A batch as the model's step gets it. Only a tuple has parts, as in Keras.
    """
    return batch[0] if isinstance(batch, tuple) else batch


class Untouched:
    """The state of the user's data: a PyDataset or a loader is set back to it after reading.

    Args:
        x: The data, as `fit` takes it.
        model: The model, which is no part of the data's state.

    Raises:
        ValueError: If reading would use up the data, as it does a generator.
    """

    def __init__(self, x: Any, model: keras.Model) -> None:
        if isinstance(x, (GeneratorType, Iterator)):
            raise ValueError(
                f"`x` is a {type(x).__name__}, which can be read only once: the batches that "
                "`verify` reads would be missing in `fit`. Pass `verify` a few batches of your "
                "data as arrays, or run `kfit verify` on your script."
            )
        self._generators = Generators.now()
        self._draws = KerasDraws()
        self._own: OwnState | None = None
        if not isinstance(x, tf.data.Dataset) and not has_arrays(x) and hasattr(x, "__dict__"):
            self._own = OwnState(x, with_attributes=True)
            self._own.begin(belongings(model))
            self._state = self._own.state_dict(None)

    def give_back(self) -> None:
        """Sets the data and the global random generators back to their states."""
        if self._own is not None:
            self._own.load_state_dict(self._state)
        self._generators.give()
        self._draws.give_back()


def _taken(batches: Batches, first: int, count: int) -> list[Any]:
    return list(_read(batches, first, count))


def _read(batches: Batches, first: int, count: int) -> Iterator[Any]:
    """Yields up to `count` batches of the first epoch, beginning with the step `first`."""
    cursor = Cursor(batches, 0, first)

    def take(segment: Segment, _: int) -> tuple[int, Any]:
        element = segment.next_element()
        if element is None:
            return 0, None
        template = segment.layout.template
        return 1, element if template is None else template.pack(element)

    for _ in range(count):
        taken, read = cursor.take(take, 1) if cursor.more else (0, [])
        if not taken:
            return
        yield read[0]
