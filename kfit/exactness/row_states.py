"""Variables with a row for each example of the batch: the states of stateful RNNs.

The i-th row of a state is carried from the i-th example of a batch to the i-th example of the next
batch, which may be on another replica. So each replica holds all rows, but it reads and writes only
the rows of its own examples. After the step the new rows of all replicas are put together
(`kfit.exactness.layer_state`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.replica_context import Replica, current_replica
from kfit.exactness.rows import of_unknown_size
from kfit.internals.graph_checks import check_in_graph
from kfit.internals.layers import all_layers
from kfit.internals.variables import tf_variable

Tensor = Any


def states_of_rows(model: keras.Model) -> list[keras.Variable]:
    """Returns the states of a model's stateful RNNs, which have a row for each example of a batch.

    The states are not among the model's variables.
    """
    return [
        state
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.RNN) and layer.stateful
        for state in keras.tree.flatten(layer.states)
        if isinstance(state, keras.Variable)
    ]


def of_own_examples(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `RNN.call`, for steps on several replicas.

    The state of a stateful RNN has a row for each example of the global batch. The replacement lets
    the RNN read and assign only the rows of the replica's own examples. A global batch whose number
    of examples is not the number of rows of the state is an error. An RNN that is not stateful is
    called unchanged.
    """

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
            # Keras would compare a static number of rows with that of the whole state.
            sequences = of_unknown_size(tf.identity(sequences))
        replica.row_states |= {id(state) for state in states}
        if initial_state is None:
            initial_state = keras.tree.map_structure(
                lambda state: of_unknown_size(replica.rows_of_own(state)), self.states
            )
        return original(self, sequences, initial_state, mask, training)

    return call


def written_back(replica: Replica, variable: keras.Variable, rows: Tensor) -> Tensor:
    """Returns the whole state of a stateful RNN, with new rows for the replica's examples.

    Args:
        replica: The replica that is being traced.
        variable: The state, with a row for each example of the global batch.
        rows: The new rows, which the RNN assigns.
    """
    assert replica.rows is not None
    start, stop = replica.rows.start, replica.rows.stop
    old = tf_variable(variable) + 0
    own = tf.cast(rows, old.dtype)[: stop - start]
    return tf.ensure_shape(tf.concat([old[:start], own, old[stop:]], 0), variable.shape)


def _check_batch(layer: keras.layers.RNN, state: keras.Variable, replica: Replica) -> list[Any]:
    """Checks that the global batch has as many examples as a stateful RNN's state has rows.

    Args:
        layer: The RNN.
        state: One of its states.
        replica: The replica that is being traced.

    Returns:
        Assertions to run in the graph, if the size of the batch is not known while tracing.

    Raises:
        ValueError: If the number of examples is known to differ, or if the replica's rows of the
            batch are unknown.
    """
    if replica.rows is None:
        raise ValueError(
            f"The layer {layer.name!r} is stateful: each row of its state belongs to the example "
            "in that place of the global batch. The places of this replica's examples are unknown "
            "if `x` is a data set that is distributed already, or sharded by files. Pass arrays, "
            "or a tf.data.Dataset of global batches under the auto-shard policy DATA."
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
    is_equal = tf.equal(replica.batch_size, rows)
    return [check_in_graph(is_equal, message, [replica.batch_size])]
