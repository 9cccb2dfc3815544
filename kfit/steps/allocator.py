"""Raises glibc's allocator thresholds, so that freed memory is reused for the next step's tensors.

glibc's `malloc` maps each block above a threshold from the kernel (`mmap`) and unmaps it when it is
freed, so every page of the next such block is faulted in again. Smaller blocks come from the heap,
and free memory at the end of the heap is returned to the kernel above another threshold ("trim").

By default glibc raises both thresholds to the block sizes that a program frees, the first one up to
32 MiB. TensorFlow turns this off: when its first `GeneratorDataset` runs (every data set that
`tf.distribute` distributes contains one), it sets the trim threshold and logs "Memory patch
applied". glibc never adjusts its thresholds after a program has set one of them. From then on each
tensor above 128 kB costs system calls and page faults. This module sets the mapping threshold to
the maximum that glibc allows, and the trim threshold to 512 MiB.
"""

from __future__ import annotations

import ctypes
import os

# From glibc's malloc.h. 32 MiB is the largest M_MMAP_THRESHOLD that glibc accepts.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
_TRIM_THRESHOLD = 512 << 20
_TOP_PAD = 16 << 20

_OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Environment variables by which a user sets glibc's thresholds."""


def keep_freed_memory() -> bool:
    """Makes glibc keep up to 512 MiB of freed memory, and take blocks below 32 MiB from the heap.

    Call it after the iterators of the data sets were made, because these make TensorFlow set the
    trim threshold. A call takes microseconds. It does nothing if the environment has
    KFIT_ALLOCATOR=off or one of glibc's own variables, or if the allocator is not glibc's.

    Returns:
        Whether the thresholds were set.
    """
    if os.environ.get("KFIT_ALLOCATOR") == "off" or any(name in os.environ for name in _OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(
        [
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
            mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD),
            mallopt(_M_TOP_PAD, _TOP_PAD),
        ]
    )
