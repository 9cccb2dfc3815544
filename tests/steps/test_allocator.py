"""Blocks of the size of a batch are taken from what was freed, and not from the system."""

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

from kfit.steps import allocator
from tests.sweeps import only

BLOCK, TIMES = 4 << 20, 100
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
PROGRAM = f"""
import ctypes, resource, sys
from kfit.steps import allocator
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({TIMES}):
        block = libc.malloc({BLOCK})
        libc.memset(block, 1, {BLOCK})
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
libc.mallopt({M_MMAP_THRESHOLD}, {128 << 10})
libc.mallopt({M_TRIM_THRESHOLD}, {128 << 10})
mapped = faults()
kept = allocator.keep_freed_memory()
print(mapped, int(kept), faults())
"""
PAGES = TIMES * BLOCK // resource.getpagesize()

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the thresholds are those of glibc"
)


def told(**environ: str) -> list[int]:
    """Page faults with glibc's first thresholds; whether kfit set its own; page faults then."""
    own = {name: value for name, value in os.environ.items() if name not in allocator._OWN}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**own, **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [int(number) for number in done.stdout.split()]


def test_freed_memory_is_kept() -> None:
    mapped, kept, within = told()
    assert kept
    assert mapped > PAGES / 2
    assert within < PAGES / 20


@pytest.mark.parametrize(
    "environ",
    only(
        [{"KFIT_ALLOCATOR": "off"}],
        [{"KFIT_ALLOCATOR": "off"}, {"MALLOC_TOP_PAD_": "65536"}, {"GLIBC_TUNABLES": ""}],
    ),
)
def test_what_a_user_has_chosen_stays(environ: dict[str, str]) -> None:
    _, kept, within = told(**environ)
    assert not kept
    assert within > PAGES / 2


def test_another_allocator_is_left_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
