"""Converts torch tensors in data loaders' states to arrays, and back.

kfit does not depend on torch. It imports torch only to restore such a tensor.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np


def is_torch_tensor(value: Any) -> bool:
    """Returns whether a value is a torch tensor of a dtype that NumPy has, too."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return value.dtype is not torch.bfloat16


def to_array(tensor: Any) -> np.ndarray:
    """Copies a tensor, from any device, to an array."""
    return np.array(tensor.detach().cpu().numpy())


def from_array(array: np.ndarray) -> Any:
    """Copies an array to a torch tensor on the CPU.

    Raises:
        ImportError: If torch is not installed.
    """
    return importlib.import_module("torch").from_numpy(np.array(array))
