"""Sums in a ring of threads that stand for workers."""

import errno
import itertools
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  gives NumPy bfloat16
import numpy as np
import pytest

from kfit.distribute.ring import ExchangeError, Ring, _say_farewell
from kfit.heartbeat.errors import NOT_THE_SAME, RESTARTS
from tests.sweeps import only

DTYPES = ["float32", "float64", "bfloat16", "float16", "int32", "int64"]
SHAPES: list[list[tuple[int, ...]]] = [
    [()],
    [(3, 5), (), (7,), (0,), (2, 2, 2)],
    [(300_001,)],
    [(1,)] * 1500,  # more than one call to the system takes
]


def by_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("localhost", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        return caller, server.accept()[0]


def ring_of(
    workers: int,
    timeout: float | None = 60.0,
    link: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair,
) -> list[Ring]:
    links = [link() for _ in range(workers)]  # to each from the one before
    names = [f"worker {index}" for index in range(workers)]
    return [
        Ring(index, names, links[index][1], links[(index + 1) % workers][0], timeout)
        for index in range(workers)
    ]


def together(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each comes to, or the error it raised."""
    came_to: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        try:
            came_to[index] = works[index]()
        except ExchangeError as error:
            came_to[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return came_to


def sums_of(rings: Sequence[Ring], data: Sequence[Sequence[np.ndarray]]) -> list[Any]:
    return together([partial(ring.sum, *own) for ring, own in zip(rings, data, strict=True)])


def drawn(shapes: Sequence[tuple[int, ...]], dtype: str, seed: int) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [np.asarray(draw.integers(-9, 9, shape)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_all_get_the_rows_of_all(workers: int) -> None:
    rings = ring_of(workers)
    for sizes in ([3, 0, 5, 1], [0, 0, 0, 0], [1000, 70_000, 1, 9]):
        data = [
            [*drawn([(size, 2, 3)], "bfloat16", size), *drawn([(2 * size,)], "int64", size)]
            for size in sizes[:workers]
        ]
        works = [partial(ring.gather, *own) for ring, own in zip(rings, data, strict=True)]
        for rows, numbers in together(works):
            np.testing.assert_array_equal(rows, np.concatenate([own[0] for own in data]))
            np.testing.assert_array_equal(numbers, np.concatenate([own[1] for own in data]))
    assert isinstance(
        together([partial(ring.gather, np.zeros((1, 2 + (ring is rings[0])))) for ring in rings])[
            1
        ],
        ExchangeError,
    )


@pytest.mark.parametrize("workers", only([2, 3], [2, 3, 4, 5]))
def test_all_get_the_sum(workers: int) -> None:
    rings = ring_of(workers)
    for shapes, dtype in itertools.product(SHAPES, DTYPES):
        data = [drawn(shapes, dtype, seed) for seed in range(workers)]
        sums = sums_of(rings, data)
        for k, shape in enumerate(shapes):
            expected = sum(own[k] for own in data)
            for worker in range(workers):
                got = sums[worker][k]
                assert (got.shape, got.dtype) == (shape, dtype)
                np.testing.assert_array_equal(got, expected)


def test_all_get_the_same_bits_again_and_again() -> None:
    data = [[np.random.default_rng(i).normal(size=10_007).astype("float32")] for i in range(3)]
    bits = set()
    for _ in range(3):
        for (total,) in sums_of(ring_of(3), data):
            bits.add(total.tobytes())
    assert len(bits) == 1


def test_leaves_what_it_is_given_alone_and_its_results_too() -> None:
    rings = ring_of(2)
    own = np.arange(5, dtype="float32")
    ((first,), _) = sums_of(rings, [[own], [own]])
    sums_of(rings, [[own + 1], [own + 1]])
    np.testing.assert_array_equal(own, np.arange(5))
    np.testing.assert_array_equal(first, 2 * np.arange(5))


def test_its_results_need_no_copy_to_become_tensors() -> None:
    rings = ring_of(2)
    sums, _ = sums_of(rings, [drawn([(3,), (17,)], "float32", worker) for worker in range(2)])
    assert all(total.ctypes.data % 64 == 0 for total in sums)


def test_a_worker_that_is_gone_is_named() -> None:
    rings = ring_of(3)
    rings[1].close()
    errors = sums_of([rings[0], rings[2]], [[np.ones(9)]] * 2)
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert "worker 1" in str(errors[1])


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("is_tcp", [False, True])
def test_a_worker_whose_program_has_ended_is_told_as_such(workers: int, is_tcp: bool) -> None:
    rings = ring_of(workers, link=by_tcp if is_tcp else socket.socketpair)
    sums_of(rings, [[np.ones(9)]] * workers)
    for ring in rings[1:]:
        ring.say_farewell()
        ring.close()
        ring.say_farewell()  # does nothing
    (error,) = sums_of(rings[:1], [[np.ones(9)]])
    assert isinstance(error, ExchangeError)
    assert f"worker {workers - 1} has ended its program, while worker 0 still" in str(error)
    assert f"{NOT_THE_SAME}: these are to be called on all workers" in str(error)


def test_only_a_program_that_no_error_ends_says_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ValueError("x"), None):
        rings = ring_of(2)
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        _say_farewell(weakref.ref(rings[1]))
        rings[1].close()
        (raised,) = sums_of(rings[:1], [[np.ones(9)]])
        assert ("has ended its program" in str(raised)) == (error is None)
    _say_farewell(lambda: None)


FORKING = """
import os, signal, socket, sys, time
from kfit.distribute.ring import Ring

left, right = socket.socketpair(), socket.socketpair()
ring = Ring(0, ["worker 0", "worker 1"], left[0], right[0])
if os.fork() == 0:
    sys.exit()
os.wait()
child = os.fork()
if child == 0:
    time.sleep(600)
try:
    ring.close()
    right[1].settimeout(60)
    print(right[1].recv(1))
finally:
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.long
def test_a_forked_process_neither_says_farewell_nor_holds_the_connections() -> None:
    run = [sys.executable, "-c", FORKING]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, timeout=180, check=True)
    assert done.stdout == "b''\n"  # worker 1 has read no farewell, and then the end


def test_restarts_are_not_recommended_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for restarts in ("", "3"):
        monkeypatch.setenv(RESTARTS, restarts)
        rings = ring_of(2)
        rings[1].close()
        (error,) = sums_of(rings[:1], [[np.ones(9)]])
        assert ("--max-restarts" in str(error)) == (not restarts)


def test_advice_is_left_to_a_supervisor_of_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    of_one_host = Ring(0, ["worker 0", "worker 1"], *socket.socketpair(), 60.0)
    of_two = Ring(0, ["worker 0", "worker 1"], *by_tcp(), 60.0)
    assert "what has started it, tells why" in str(of_one_host._lost(error, 1))
    monkeypatch.setenv(RESTARTS, "0")
    told = f"worker 0 lost its connection to worker 1 ({error})"
    assert str(of_one_host._lost(error, 1)) == told
    assert str(of_two._lost(error, 1)).startswith(f"{told}. A worker that ends, fails")
    for each in (of_one_host, of_two):
        each.close()


def test_a_worker_that_goes_in_the_middle_is_noticed() -> None:
    rings = ring_of(2)
    big = np.ones(3_000_000)
    leaving = threading.Timer(0.3, rings[1].close)
    leaving.start()
    (error,) = sums_of(rings[:1], [[big]])
    assert isinstance(error, ExchangeError)
    assert "worker 1" in str(error)


def test_a_connection_that_is_lost_is_noticed_while_a_worker_waits_at_the_other_one() -> None:
    to_next, next_one = by_tcp()
    from_before, before = by_tcp()  # is silent, as where it does not arrive what this worker sends
    ring = Ring(0, ["worker 0", "worker 1", "worker 2"], from_before, to_next, 60.0)
    next_one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", True, 0))
    reset = threading.Timer(0.2, next_one.close)
    reset.start()
    begun = time.monotonic()
    (error,) = sums_of([ring], [[np.ones(9)]])
    assert isinstance(error, ExchangeError)
    assert "worker 0 lost its connection to worker 2 or worker 1 (" in str(error)
    assert time.monotonic() - begun < 30
    before.close()


def test_the_worker_that_the_network_does_not_reach_is_named() -> None:
    ring = ring_of(3)[0]
    for distance, peer in ((1, "worker 1"), (-1, "worker 2")):
        error = ring._lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"), distance)
        assert f"lost its connection to {peer} ([Errno" in str(error)
        assert f"The network, or the host of {peer}, has not answered" in str(error)


def test_a_next_worker_that_has_had_its_part_may_end_before_this_one() -> None:
    (from_before, before), (to_next, next_one) = socket.socketpair(), socket.socketpair()
    ring = Ring(0, ["worker 0", "worker 1", "worker 2"], from_before, to_next, 60.0)

    def end_and_come() -> None:
        greeting = next_one.recv(1000)
        next_one.close()
        time.sleep(0.5)
        before.sendall(greeting)

    thread = threading.Thread(target=end_and_come)
    thread.start()
    computed = time.thread_time()
    ring._greet([np.ones(9)])
    assert time.thread_time() - computed < 0.25  # it sleeps while it waits
    thread.join(10)
    before.close()


def test_workers_at_different_places_of_the_program_are_told() -> None:
    rings = ring_of(2)
    errors = sums_of(rings, [drawn([(size,)], "float32", 0) for size in (4, 5)])
    assert any("16 bytes" in str(error) and "20 bytes" in str(error) for error in errors)
    assert any("they have a different batch size, data," in str(error) for error in errors)
    assert all(isinstance(error, ExchangeError) for error in errors)


def test_a_peer_that_has_failed_is_named_where_it_sums_something_else() -> None:
    rings = ring_of(2)
    rings[1].has_failed = True
    sums_of(rings, [drawn([(4,)], "float32", 0)] * 2)  # the same: it is told otherwise
    errors = sums_of(rings, [drawn([(size,)], "float32", 0) for size in (4, 5)])
    assert str(errors[0]).startswith("worker 1 has failed, as its own output says")
    assert isinstance(errors[1], ExchangeError)
    assert [ring.failed_peer for ring in rings] == ["worker 1", ""]


def test_a_worker_ends_what_its_own_thread_waits_for() -> None:
    rings = ring_of(2)
    leaving = threading.Timer(0.3, rings[0].break_off)
    leaving.start()
    (error,) = sums_of(rings[:1], [[np.ones(3)]])
    assert isinstance(error, ExchangeError)
    errors = sums_of(rings, [[np.ones(3)]] * 2)
    assert all(isinstance(error, ExchangeError) for error in errors)
    rings[0].break_off()  # again, after it was closed


def test_a_peer_that_does_not_come_in_time_is_named() -> None:
    rings = ring_of(2, timeout=0.2)
    (error,) = sums_of(rings[:1], [[np.ones(3)]])
    assert isinstance(error, ExchangeError)
    assert "0.2 s (`timeout`)" in str(error)
    assert "worker 1" in str(error)


def test_what_has_failed_once_stays_an_error() -> None:
    rings = ring_of(2, timeout=0.2)
    sums_of(rings[:1], [[np.ones(3)]])
    for ring in rings:
        (error,) = sums_of([ring], [[np.ones(3)]])
        assert isinstance(error, ExchangeError)
