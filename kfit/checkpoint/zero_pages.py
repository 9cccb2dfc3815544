"""Copies bytes to new memory, except for pages of zeros, so that these take no memory.

A file may have holes: it is large, but takes no space on the disk. Until it is known to be the one
that was written, reading it must not take as much memory as its size says.
"""

from __future__ import annotations

import mmap

_PAGE = mmap.PAGESIZE
_ZEROS = bytes(_PAGE)


def copy_without_zeros(source: bytes, target: mmap.mmap, start: int) -> None:
    """Copies bytes to memory that holds zeros.

    Args:
        source: The bytes.
        target: The memory.
        start: The place in the memory at which the first of the bytes belongs.
    """
    for place in range(0, len(source), _PAGE):
        page = source[place : place + _PAGE]
        if page != _ZEROS:
            target[start + place : start + place + len(page)] = page
