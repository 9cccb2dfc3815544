"""Signals are noted; what follows is documented."""

import os
import signal
import threading
from typing import Any

import pytest

from kfit.training.stop_signals import Preempted, StopSignals, stop


def test_the_first_signal_is_noted(capfd: Any) -> None:
    with StopSignals() as signals:
        assert signals.received == 0
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1
    assert capfd.readouterr().err.count("kfit: SIGUSR1: stopping after this step") == 1


def test_a_second_ctrl_c_stops_at_once() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.received == 0
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_hear_nothing() -> None:
    heard = []

    def work() -> None:
        with StopSignals() as signals:
            heard.append(signals.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [0]


def test_the_exit_codes() -> None:
    for signum, code in ((signal.SIGTERM, 143), (signal.SIGUSR1, 138)):
        with pytest.raises(Preempted) as raised:
            stop(signum)
        assert raised.value.code == code
        assert raised.value.signum == signum
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT)
