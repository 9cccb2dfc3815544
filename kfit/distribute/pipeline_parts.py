"""The data sets that a tf.data pipeline is composed of."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from kfit.internals.tf_data import inputs_of


def parts_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields the data sets of a pipeline, from the last to the first.

    Each is yielded once, even if several others read from it.
    """
    stack, seen = [dataset], set()
    while stack:
        part = stack.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            stack += reversed(inputs_of(part))
