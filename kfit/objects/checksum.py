"""A checksum of arrays, from which fingerprints and comparisons between tasks are made."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np


def checksum(arrays: Iterable[Any], start: int = 0) -> int:
    """Returns the CRC-32 of the contents of arrays, one after the other; ignores shapes and types.

    A CRC-32 detects accidental differences, at the speed of memory, but not forgery.

    Args:
        arrays: Arrays of numbers or texts, or tensors in the memory of the host.
        start: The checksum of preceding arrays, to continue from.
    """
    for each in arrays:
        array = np.ascontiguousarray(each)
        is_text = array.dtype.kind in "US"  # its elements may be of 0 bytes
        content: Any = array.tobytes() if is_text else array.reshape(-1).view("uint8")
        start = zlib.crc32(content, start)
    return start
