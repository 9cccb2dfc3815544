"""Events come in the order in which they happened, and nobody waits longer than asked."""

import signal
import threading
import time

from kfit.supervisor.events import Events
from kfit.supervisor.process_group import TaskExit


def test_events_come_in_their_order() -> None:
    events = Events()
    ended = TaskExit("worker 0", 1)
    events.put(ended)
    events.put(signal.SIGTERM)
    assert [events.get(0.0), events.get(0.0), events.get(0.0)] == [ended, signal.SIGTERM, None]


def test_an_event_ends_the_wait() -> None:
    events = Events()
    timer = threading.Timer(0.05, events.put, [signal.SIGINT])
    timer.start()
    assert events.get(60.0) == signal.SIGINT
    timer.join()


def test_a_wait_ends_by_the_clock_of_the_events() -> None:
    events = Events()
    began = events.now()
    assert began <= time.monotonic()
    assert events.get(0.05) is None
    assert events.now() - began >= 0.04
