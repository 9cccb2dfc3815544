"""SIGTERM is what it was, whatever is done with it within."""

import signal
import threading

from kfit.distribute.sigterm import sigterm_kept


def test_it_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_that_may_not_say_so_leaves_it() -> None:
    done = []

    def run() -> None:
        with sigterm_kept():
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]
