"""States with a row for each example of the batch: those of stateful RNNs.

The state of the i-th example of a batch goes on to the i-th one of the next batch, whichever
replica has it. So all replicas have all rows; each reads those of its own examples and writes them
back, and after the step all have them again (`kfit.exactness.layer_state`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.replica_context import Replica, current_replica
from kfit.exactness.rows import of_unknown_size
from kfit.internals.layers import all_layers
from kfit.internals.variables import tf_variable

Tensor = Any


def states_of_rows(model: keras.Model) -> list[keras.Variable]:
    """The states of a model's stateful RNNs, which are in no list of its variables."""
    return [
        state
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.RNN) and layer.stateful
        for state in keras.tree.flatten(layer.states)
        if isinstance(state, keras.Variable)
    ]


def of_own_examples(original: Callable[..., Any]) -> Callable[..., Any]:
    """`RNN.call`, on the rows of the states that belong to the replica's examples."""

    def call(
        self: keras.layers.RNN,
        sequences: Tensor,
        initial_state: Any = None,
        mask: Tensor = None,
        training: bool = False,
    ) -> Any:
        replica = current_replica()
        if replica is None or replica.has_all or not self.stateful:
            return original(self, sequences, initial_state, mask, training)
        states = keras.tree.flatten(self.states)
        with tf.control_dependencies(_check_batch(self, states[0], replica)):
            # Keras compares the number of rows that it knows with that of the whole state.
            sequences = of_unknown_size(tf.identity(sequences))
        replica.row_states |= {id(state) for state in states}
        if initial_state is None:
            initial_state = keras.tree.map_structure(
                lambda state: of_unknown_size(replica.rows_of_own(state)), self.states
            )
        return original(self, sequences, initial_state, mask, training)

    return call


def written_back(replica: Replica, variable: keras.Variable, rows: Tensor) -> Tensor:
    """The whole state, in which the replica's own rows are new."""
    assert replica.rows is not None
    start, stop = replica.rows.start, replica.rows.stop
    old = tf_variable(variable) + 0
    own = tf.cast(rows, old.dtype)[: stop - start]
    return tf.ensure_shape(tf.concat([old[:start], own, old[stop:]], 0), variable.shape)


def _check_batch(layer: keras.layers.RNN, state: keras.Variable, replica: Replica) -> list[Any]:
    """Makes sure that the global batch has as many examples as the state has rows.

    Raises:
        ValueError: If it is known not to.
    """
    if replica.rows is None:
        raise ValueError(
            f"The layer {layer.name!r} is stateful: each row of its state belongs to the example "
            "in that place of the global batch, and nothing says which place this replica's "
            "examples have in `x`, a data set distributed already or one of files. Pass arrays, or "
            "a tf.data.Dataset of global batches under the auto-shard policy DATA."
        )
    message = (
        f"The layer {layer.name!r} is stateful, so each global batch must have as many examples as "
        f"its state has rows, {state.shape[0]}."
    )
    if isinstance(replica.batch_size, int):
        if replica.batch_size != state.shape[0]:
            raise ValueError(f"{message} Received: `x` with a batch of {replica.batch_size}.")
        return []
    rows = tf.constant(state.shape[0], replica.batch_size.dtype)
    return [tf.debugging.assert_equal(replica.batch_size, rows, message=message)]
