"""The checksum of arrays: the one that fingerprints, agreements and records are made of."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np


def checksum(arrays: Iterable[Any], start: int = 0) -> int:
    """The CRC-32 of what arrays hold, one after the other; of their shapes and types nothing.

    It finds what differs by mistake, at the speed of memory; it is no proof against a forger.

    Args:
        arrays: Arrays of numbers or texts, or tensors in the memory of the host.
        start: The checksum to go on from.
    """
    for each in arrays:
        array = np.ascontiguousarray(each)
        is_text = array.dtype.kind in "US"  # its elements may be of no size
        content: Any = array.tobytes() if is_text else array.reshape(-1).view("uint8")
        start = zlib.crc32(content, start)
    return start
