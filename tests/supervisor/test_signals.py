"""Signals are events for the time of a run, and what they were before and after it."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from kfit.supervisor.signals import exit_codes_kept, signals_to


def test_they_are_events_within_and_what_they_were_after() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    got: list[int] = []
    with signals_to(got.append):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)
        assert got == [signal.SIGUSR1, signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before


def test_what_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` has it
    try:
        got: list[int] = []
        with signals_to(got.append):
            os.kill(os.getpid(), signal.SIGHUP)
        assert got == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_exit_codes_are_kept_where_the_parent_has_ignored_the_ends_of_children() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with exit_codes_kept():
            command = [sys.executable, "-S", "-c", "import sys; sys.exit(3)"]
            assert subprocess.run(command).returncode == 3
            with exit_codes_kept():
                pass
            assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN

        def run() -> None:
            with pytest.raises(RuntimeError, match="ignores SIGCHLD"), exit_codes_kept():
                pass
            ended.append(True)

        ended: list[bool] = []
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert ended
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_in_another_thread_nothing_is_handled() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def run() -> None:
        with signals_to(lambda number: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
