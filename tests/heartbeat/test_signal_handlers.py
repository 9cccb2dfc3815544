"""Handlers are in force for a while, in one process; what was there before comes back."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfit.heartbeat.signal_handlers import Disposition, TemporaryHandlers, postponed

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    before = Disposition.of(signal.SIGUSR1)
    yield
    before.restore(signal.SIGUSR1)


FORKS = """
import os, signal, sys, threading, time
from kfit.heartbeat.signal_handlers import TemporaryHandlers

got, ready = [], os.pipe()

def fork():
    global child
    child = os.fork()
    if not child:
        os.write(ready[1], b"1")
        time.sleep(600)

signum = int(sys.argv[1])
signal.signal(signal.SIGINT, signal.SIG_DFL)
with TemporaryHandlers(lambda number, frame: got.append("outer")) as outer:
    outer.take(signum)
    with TemporaryHandlers(lambda number, frame: got.append("inner")) as inner:
        inner.take(signum)
        if sys.argv[2] == "thread":
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        else:
            fork()
        os.read(ready[0], 1)
        os.kill(child, signum)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]))
        os.kill(os.getpid(), signum)
    os.kill(os.getpid(), signum)
print(*got)
"""


@pytest.mark.parametrize(
    ("signum", "forked_by"), [(signal.SIGTERM, "main"), (signal.SIGINT, "thread")]
)
def test_a_forked_process_can_be_ended(signum: int, forked_by: str) -> None:
    command = [sys.executable, "-c", FORKS, str(int(signum)), forked_by]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert output.split() == [str(int(signum)), "inner", "outer"]


def test_a_handler_that_was_installed_meanwhile_stays() -> None:
    def other(number: int, frame: object) -> None:
        got.append("other")

    got: list[str] = []
    with TemporaryHandlers(lambda number, frame: got.append("own")) as handlers:
        handlers.take(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, other)
    assert signal.getsignal(signal.SIGUSR1) is other


def test_one_that_calls_the_former_one_reaches_that_of_the_program() -> None:
    got: list[str] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append("program"))
    with TemporaryHandlers(lambda number, frame: got.append("own")) as handlers:
        handlers.take(signal.SIGUSR1)
        former = signal.getsignal(signal.SIGUSR1)
        assert callable(former)
        signal.signal(signal.SIGUSR1, lambda number, frame: former(number, frame))
        os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert got == ["own", "program"]


def test_whose_a_handler_is() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert not Disposition.of(signal.SIGUSR1).is_of_program
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    assert Disposition.of(signal.SIGUSR1).is_of_program
    with TemporaryHandlers(lambda number, frame: None) as handlers:
        handlers.take(signal.SIGUSR1)
        found = Disposition.of(signal.SIGUSR1)
        assert found.is_of_kfit
        assert not found.is_of_program


@pytest.mark.parametrize("fails", [False, True])
def test_a_postponed_signal_is_handled_at_the_end(fails: bool) -> None:
    got: list[int] = []
    signal.signal(signal.SIGUSR1, lambda signum, frame: got.append(signum))
    with contextlib.suppress(ValueError), postponed(signal.SIGUSR1):
        signal.raise_signal(signal.SIGUSR1)
        assert got == []
        if fails:
            raise ValueError
    assert got == [signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)
    assert len(got) == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_a_second_signal_is_not_postponed(depth: int) -> None:
    def stop(signum: int, frame: Any) -> None:
        raise TimeoutError

    def waits() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
            done.append(True)

    signal.signal(signal.SIGUSR1, stop)
    done: list[bool] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(TimeoutError))
        for _ in range(depth):
            stack.enter_context(postponed(signal.SIGUSR1))
        waits()
    assert done == [True]


def test_a_signal_without_a_handler_in_python_is_not_postponed() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with postponed(signal.SIGUSR1):
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
