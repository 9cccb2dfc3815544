"""Tensors of torch in what is saved; a stand-in is torch here, which the tests do not install."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kfit.objects import values


class Tensor:
    """As much of `torch.Tensor` as is used."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.nbytes = array, str(array.dtype), array.nbytes

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        return self.array


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("torch")
    module.Tensor, module.bfloat16, module.from_numpy = Tensor, "bfloat16", Tensor
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_a_tensor_comes_back_as_a_tensor_of_its_own() -> None:
    state = {"generator": Tensor(np.arange(5, dtype="uint8")), "seed": 3}
    assert values.is_plain(state)
    assert values.is_exact(state)
    kept = values.from_bytes(values.to_bytes(values.encode(state)))
    state["generator"].array[0] = 9
    back = values.decode(kept)
    assert type(back["generator"]) is Tensor
    assert back["generator"].array.tolist() == [0, 1, 2, 3, 4]
    assert values.fingerprint(back) != values.fingerprint(state)
    assert values.size_of(back["generator"]) == 5


def test_a_type_that_numpy_lacks_is_not_plain() -> None:
    tensor = Tensor(np.zeros(2, "float32"))
    tensor.dtype = "bfloat16"
    assert not values.is_plain(tensor)
