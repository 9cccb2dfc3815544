"""The thresholds of glibc's allocator, which decide whether tensors are mapped anew at each step.

glibc keeps freed memory for the next tensor, but maps and unmaps each block above a threshold, so
that every page of it is faulted in again. By itself it raises that threshold to the sizes that a
program frees, but not above 32 MiB, and gives back what is free at the end of its heap. TensorFlow
turns this off: when its first `GeneratorDataset` runs, which a data set distributed by
`tf.distribute` has, it sets the threshold of trimming (and logs "Memory patch applied"), and glibc
then leaves all of them as they are. From then on each tensor above 128 kB costs system calls and
page faults. Here they are set to the most that glibc would come to, and beyond for trimming.
"""

from __future__ import annotations

import ctypes
import os

# From glibc's malloc.h; the largest M_MMAP_THRESHOLD that it takes.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
_TRIM_THRESHOLD = 512 << 20
_TOP_PAD = 16 << 20

_OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Variables by which a user has chosen thresholds."""


def keep_freed_memory() -> bool:
    """Has glibc keep up to 512 MiB of freed memory, and map no block below 32 MiB.

    It takes microseconds; to be called when the iterators of data sets have been made. It does
    nothing where KFIT_ALLOCATOR=off is in the environment or the user has set glibc's own
    variables, and where the allocator is another one than glibc's.

    Returns:
        Whether the thresholds were set.
    """
    if os.environ.get("KFIT_ALLOCATOR") == "off" or any(name in os.environ for name in _OWN):
        return False
    return _set(_LARGEST_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD)


def give_back_freed_memory() -> bool:
    """Undoes it: glibc's first thresholds again, and what is free goes back to the system."""
    done = _set(128 << 10, 128 << 10, 0)
    if done:
        ctypes.CDLL(None).malloc_trim(0)
    return done


def _set(mmap_threshold: int, trim_threshold: int, top_pad: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(
        [
            mallopt(_M_MMAP_THRESHOLD, mmap_threshold),
            mallopt(_M_TRIM_THRESHOLD, trim_threshold),
            mallopt(_M_TOP_PAD, top_pad),
        ]
    )
