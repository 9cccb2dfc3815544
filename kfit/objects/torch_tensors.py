"""Converts torch tensors in data loaders' states to arrays, and back.

kfit does not depend on torch. It imports torch only to restore such a tensor.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

# The names of the dtypes that both torch and NumPy have. NumPy has no bfloat16 of its own.
_INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES = {"bool", *_INTEGERS, "float16", "float32", "float64", "complex64", "complex128"}


def is_torch_tensor(value: Any) -> bool:
    """Returns whether a value is a torch tensor of a dtype that NumPy has, too."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return str(value.dtype).removeprefix("torch.") in _DTYPES


def to_array(tensor: Any) -> np.ndarray:
    """Copies a tensor, from any device, to an array."""
    return np.array(tensor.detach().cpu().numpy())


def from_array(array: np.ndarray) -> Any:
    """Copies an array to a torch tensor on the CPU.

    Raises:
        ImportError: If torch is not installed.
    """
    return importlib.import_module("torch").from_numpy(np.array(array))
