"""Several strategies of TensorFlow's in one process."""

import inspect
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit


def test_strategies_do_not_meet_each_other(tiny: Any) -> None:
    """On CPUs TensorFlow's default sums with collectives, as on GPUs."""
    made = []
    for units in (4, 10, 4):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        ended = []
        for chosen in ("one_device", strategy):
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
            model.compile("sgd", "mse")
            x = np.linspace(0, 1, 60, dtype="float32").reshape(20, 3)
            y = np.ones((20, units), "float32")
            kfit.fit(model, x, y, batch_size=5, verbose=0, shuffle=False, strategy=chosen)
            ended.append(model)
        assert tiny.distance(*ended) < 1e-6
        made.append(strategy)
    kfit.fit(ended[0], x, y, verbose=0, strategy=made[0])  # the first one still works


def test_a_tensorflow_that_makes_them_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.delattr(type(strategy.extended), "_make_collective_ops_with_fallbacks")
    with pytest.raises(ImportError, match=r"no `.*_make_collective_ops_with_fallbacks`"):
        kfit.Trainer(keras.Sequential(), strategy)


class _Unequal(keras.layers.Layer):
    """Sums tensors of other shapes on each replica, where a number is negative."""

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return x
        index = context.replica_id_in_sync_group
        rows = tf.where(tf.reduce_any(x < 0), tf.cast(index, tf.int32) + 1, 1)
        return x + 0 * tf.reduce_sum(context.all_reduce("sum", tf.ones([rows])))


_FAILS = """
import sys, warnings
import numpy as np, tensorflow as tf
one = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [one] * 2)
import keras, kfit
{layer}

def made():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), _Unequal(), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model

def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def error_of(call):
    try:
        call()
    except tf.errors.OpError as error:
        return str(error)

x = np.linspace(0, 1, 60, dtype="float32").reshape(20, 3)
y = np.ones((20, 2), "float32")
bad = x.copy()
bad[12] = -1
arguments = dict(batch_size=5, verbose=0, shuffle=False)
expected, model, other = made(), made(), made()
trainer, second = kfit.Trainer(model, mirrored()), kfit.Trainer(other, mirrored())
for each in (trainer, second):
    each.fit(x, y, **arguments)
expected.fit(x, y, **arguments)
weights, slots = model.get_weights(), [np.array(v) for v in model.optimizer.variables]
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert "collective" in error_of(lambda: trainer.fit(bad, y, **arguments)).lower()
assert any("aborted by an error" in str(w.message) for w in told), told
assert not any(isinstance(v._value, tf.distribute.DistributedValues) for v in model.variables)
model.set_weights(weights)
for variable, value in zip(model.optimizer.variables, slots):
    variable.assign(value)
error_of(lambda: second.fit(x[:5], y[:5], **arguments))  # another strategy learns of it as it fails
second = kfit.Trainer(other, mirrored())
other.set_weights(weights)
for variable, value in zip(other.optimizer.variables, slots):
    variable.assign(value)
expected.fit(x, y, **arguments)
for each in (trainer, second):
    each.fit(x, y, **arguments)
    scores = expected.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(each.evaluate(x, y, verbose=0), scores, rtol=1e-5)
    for one, same in zip(each.model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(one, same, atol=1e-6)
"""


@pytest.mark.long
def test_a_collective_that_failed_leaves_the_process_usable() -> None:
    """In a process of its own: the collectives of this one are to stay."""
    program = _FAILS.format(layer=inspect.getsource(_Unequal).replace("Any", "object"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
