"""Values of variables are read in a form that NumPy knows, and can be given back."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.variable_values import get_values, set_values, value_here


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_values_are_arrays_and_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    strategy = kfit.distribute.OneDevice()
    variable = keras.Variable(tf.cast(tf.ones(shape), dtype), dtype=dtype, trainable=False)
    (value,) = get_values([variable], strategy)
    array = np.asarray(value)
    assert (array.shape, array.dtype) == (shape, tf.as_dtype(dtype).as_numpy_dtype)
    variable.assign(tf.cast(tf.zeros(shape), dtype))
    set_values([variable], [array], strategy)
    assert np.all(variable.numpy().astype("float32") == 1)


def test_a_value_is_read_without_a_warning_of_numpy() -> None:
    strategy = kfit.distribute.Mirrored(["CPU:0", "CPU:1"])
    with strategy.scope():
        variables = [keras.Variable(1.5), keras.Variable([1, 2], dtype="int32", trainable=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = [value_here(variable) for variable in (*variables, tf.Variable(2.5))]
    assert [value.tolist() for value in values] == [1.5, [1, 2], 2.5]
