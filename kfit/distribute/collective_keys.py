"""Keys of collectives: every strategy of a process gets some of its own.

TensorFlow tells the sums of tensors apart by keys that each `MirroredStrategy` counts from the same
number. When a second strategy of a process sums another model, its sums are taken for those of
the first one, and all are aborted for good: "Shape mismatch in the collective instance".
"""

from __future__ import annotations

import itertools

import tensorflow as tf

_GROUPS = 1000
"""Keys that are set aside for a strategy; it takes one for each set of its devices."""
_strategies = itertools.count(1)


def with_keys_of_its_own(
    strategy: tf.distribute.MirroredStrategy,
) -> tf.distribute.MirroredStrategy:
    """Gives a strategy keys that no other one has, once; graphs that it has traced keep theirs.

    Private: `MirroredExtended` takes its first key from an attribute of the class, for tests.

    Raises:
        ImportError: If this TensorFlow makes its collectives in another way.
    """
    extended = strategy.extended
    try:
        if extended._collective_key_base:
            return strategy
        before, ops = extended._collective_ops, extended._cross_device_ops
        extended._collective_key_base = _GROUPS * next(_strategies)
        extended._collective_ops = extended._make_collective_ops_with_fallbacks()
    except AttributeError as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} makes the collectives of a MirroredStrategy in another "
            f"way than kfit knows ({error}). Install a TensorFlow version that kfit supports."
        ) from error
    if ops is before:
        extended._cross_device_ops = extended._collective_ops
    return strategy
