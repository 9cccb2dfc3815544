"""Three values are added in the order of their replicas."""

import tensorflow as tf

from kfit.distribute.additions import added_in_order


def test_three_replicas_add_in_their_order() -> None:
    values = [tf.constant([each], tf.float64) for each in (0.1, 0.2, 0.3)]
    graph = tf.function(lambda *parts: added_in_order(parts), autograph=False)
    assert {float(graph(*values)[0]) for _ in range(20)} == {float(added_in_order(values)[0])}
