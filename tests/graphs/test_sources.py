"""A tensor is followed back to the examples, or to their number."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.origins import Origins
from kfit.graphs.sources import made_from, used_by
from tests.exactness.cases.traced import asked_in_step

USED: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "values": (lambda x: tf.tanh(x) * 2.0, {"rows"}),
    "mean": (tf.reduce_mean, {"rows"}),
    "number": (lambda x: tf.cast(tf.shape(x)[0], "float32") + 1.0, {"count"}),
    "size_of_time": (lambda x: tf.shape(x)[1] + 1, set()),
    "constant": (lambda x: tf.constant(3.0), set()),
}


@pytest.mark.parametrize("name", USED)
def test_what_a_tensor_is_computed_from(name: str) -> None:
    make, expected = USED[name]
    assert asked_in_step(lambda x, origins: used_by(make(x), origins), None, 5) == expected


def test_tensors_are_followed_back_to_products_and_examples() -> None:
    def types(x: Any, origins: Origins) -> list[str]:
        value = tf.exp(tf.matmul(tf.abs(x), tf.ones((5, 5))))
        return [each.op.type for each in made_from(value, origins, stop={"BatchMatMulV2"})]

    assert asked_in_step(types, None, 5) == ["Exp", "BatchMatMulV2"]
