"""Signals are events for the time of a run, and what they were before and after it."""

import os
import signal
import threading

from kfit.supervisor.signals import signals_to


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
