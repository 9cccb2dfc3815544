"""Tensors of torch in the state of data loaders; kfit imports torch only where a program has."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np


def is_torch_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch that NumPy has a type for."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return False
    return value.dtype is not torch.bfloat16


def to_array(tensor: Any) -> np.ndarray:
    """The values of a tensor, wherever it is, as an array of their own."""
    return np.array(tensor.detach().cpu().numpy())


def from_array(array: np.ndarray) -> Any:
    """The tensor with these values, in the memory of the host.

    Raises:
        ImportError: If torch is not installed any more.
    """
    return importlib.import_module("torch").from_numpy(np.array(array))
