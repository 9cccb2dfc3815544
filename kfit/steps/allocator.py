"""Makes glibc keep freed memory, so that the tensors of the next step can reuse the memory.

glibc's `malloc` asks the kernel for each large block of memory (`mmap`), and gives the block back
when it is freed. So the next step pays for system calls and page faults again. Blocks below a limit
(the mmap threshold) come from the heap instead. Free memory at the end of the heap is given back as
well, if there is more than another limit (the trim threshold).

By default glibc raises both limits to the sizes of the blocks that a program frees. TensorFlow
stops this: when its first `GeneratorDataset` runs (every data set that `tf.distribute` distributes
contains one), TensorFlow sets the trim threshold and logs "Memory patch applied". After a program
has set one limit, glibc no longer raises any of them, so that every tensor above 128 kB is slow to
allocate. This module therefore sets the mmap threshold to glibc's maximum of 32 MiB, and the trim
threshold to 512 MiB.
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
"""Environment variables by which a user sets glibc's limits."""


def keep_freed_memory() -> bool:
    """Makes glibc keep up to 512 MiB of freed memory, so that later tensors are allocated faster.

    Blocks below 32 MiB then come from the heap. Called after the first run of each graph, since
    TensorFlow sets the trim threshold itself when it first reads a data set. A call takes
    microseconds. Nothing is changed if the environment has KFIT_ALLOCATOR=off or a variable that
    sets glibc's limits, or if the allocator is not glibc's.

    Returns:
        Whether the limits were set.
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
