"""The data sets that a tf.data pipeline is composed of."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from kfit.internals.tf_data import inputs_of


def parts_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a data set and all data sets that it is made from, the last one of the pipeline first.

    For `a.map(f).batch(8)` these are the results of `batch`, of `map`, and `a`. A data set that
    several others read from is yielded once.
    """
    stack, seen = [dataset], set()
    while stack:
        part = stack.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            stack += reversed(inputs_of(part))
