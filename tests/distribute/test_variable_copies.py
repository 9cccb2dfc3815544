"""Values of variables are copied between devices, at first without a graph and then in one."""

from typing import Any

import numpy as np
import tensorflow as tf

from kfit.distribute.variable_copies import VariableCopies


def test_every_copy_takes_the_values_of_its_time(tiny: Any) -> None:
    strategy = tiny.strategy(2).tf_strategy
    plain = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    with strategy.scope():
        placed = [tf.Variable([0.0, 0.0]), tf.Variable(0)]
        summed = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    to_devices, back = VariableCopies(), VariableCopies()
    total = tf.Variable(0.0)
    for turn in range(1, 4):
        plain[0].assign([turn, turn + 1.0])
        plain[1].assign(turn)
        with strategy.scope():
            to_devices.run(plain, placed)
        for copy in strategy.experimental_local_results(placed[0]):
            np.testing.assert_array_equal(copy, [turn, turn + 1])
        strategy.run(lambda turn=turn: summed.assign_add(turn))
        with strategy.scope():
            back.run([summed, placed[1]], [total, plain[1]])
        assert total.numpy() == sum(range(1, turn + 1)) * 2
        assert plain[1].numpy() == turn


def test_other_variables_are_not_taken_for_the_known_ones() -> None:
    copies = VariableCopies()
    sources = [tf.Variable(float(i)) for i in range(4)]
    target = tf.Variable(-1.0)
    for source in [sources[0], sources[0], sources[1], sources[1], sources[1], sources[2]]:
        copies.run([source], [target])
        assert target.numpy() == source.numpy()
