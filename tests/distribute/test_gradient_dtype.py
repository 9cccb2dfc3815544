"""`gradient_dtype`: what is sent is half as large, and nothing else is rounded."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only

DTYPES = ["float16", "bfloat16"]


class Seen(tf.distribute.ReductionToOneDevice):
    """Notes the types of what is reduced over the replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[str] = []

    def reduce_implementation(
        self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        self.dtypes.append(per_replica_value.values[0].dtype.name)
        return super().reduce_implementation(reduce_op, per_replica_value, destinations, options)


def mirrored(**options: Any) -> kfit.distribute.Mirrored:
    return kfit.distribute.Mirrored(["CPU:0", "CPU:1"], **options)


@pytest.mark.parametrize("dtype", only(["bfloat16"], DTYPES))
def test_gradients_are_sent_as_it_and_are_float32_again(tiny: Any, dtype: str) -> None:
    seen, models = Seen(), [tiny.model() for _ in range(2)]
    options: list[dict[str, Any]] = [{}, {"gradient_dtype": dtype, "cross_device_ops": seen}]
    for model, option in zip(models, options, strict=True):
        kfit.Trainer(model, mirrored(**option)).fit(
            *tiny.data(), batch_size=20, shuffle=False, verbose=0
        )
    assert seen.dtypes.count(dtype) >= len(models[1].trainable_variables)
    assert {v.dtype for v in models[1].variables} == {"float32"}
    distance = tiny.distance(*models)
    assert 0 < distance < 0.05


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_gradients_stay_sparse(dtype: str) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(50, 3)])
    sparse: list[bool] = []

    class SGD(keras.optimizers.SGD):
        def update_step(self, gradient: Any, *args: Any) -> None:
            sparse.append(isinstance(gradient, tf.IndexedSlices))
            super().update_step(gradient, *args)

    model.compile(SGD(0.5), "mse")
    before = model.get_weights()[0]
    x = np.array([[1, 2], [3, 4], [1, 4], [2, 2]])
    kfit.Trainer(model, mirrored(gradient_dtype=dtype)).fit(
        x, np.zeros((4, 2, 3)), batch_size=4, verbose=0
    )
    changed = np.any(model.get_weights()[0] != before, axis=1)
    assert list(np.flatnonzero(changed)) == [1, 2, 3, 4]
    assert sparse
    assert all(sparse)


@pytest.mark.parametrize("adapter", [kfit.distribute.Mirrored, kfit.distribute.MultiWorker])
def test_another_type_is_refused(adapter: Any) -> None:
    with pytest.raises(ValueError, match=r"`gradient_dtype` must be .* Received: 'int8'"):
        adapter(gradient_dtype="int8")
