import threading
import time

from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.clock import VALIDATION, Clock, clock_of_thread
from kfit.heartbeat.phases import hook

NAP = 0.02


def test_the_innermost_phase_counts_and_all_phases_add_up() -> None:
    clock, heartbeat = clock_of_thread(), Heartbeat()
    began = time.monotonic_ns()
    with clock.ledger() as ledger:
        with heartbeat.phase(Phase.STEP):
            time.sleep(NAP)
            with heartbeat.hook("on_epoch_end"):
                time.sleep(2 * NAP)
        live = clock.times(ledger)
    lasted = time.monotonic_ns() - began
    assert NAP * 1e9 <= ledger[Phase.STEP] < live[hook("on_epoch_end")]
    assert sum(live) <= sum(ledger) <= lasted < sum(ledger) + 1e7


def test_a_call_in_a_hook_is_time_of_the_hook_and_a_validation_is_one_place() -> None:
    clock, heartbeat = clock_of_thread(), Heartbeat()
    with clock.ledger() as ledger:
        # Another heartbeat, as that of another trainer: the clock is that of the thread.
        with heartbeat.hook("on_epoch_end"), Heartbeat().call(), heartbeat.phase(Phase.STEP):
            time.sleep(NAP)
        with clock.ledger(VALIDATION), heartbeat.phase(Phase.INPUT):
            time.sleep(NAP)
            assert clock.times(ledger)[VALIDATION] >= NAP * 1e9
    assert ledger[hook("on_epoch_end")] >= NAP * 1e9
    assert ledger[VALIDATION] >= NAP * 1e9
    assert ledger[Phase.STEP] == ledger[Phase.INPUT] == 0


def test_time_can_be_moved_to_another_phase() -> None:
    clock = Clock()
    ledger = clock.open()
    clock.change(Phase.STEP)
    time.sleep(NAP)
    clock.move(NAP / 2, Phase.INPUT)
    clock.move(NAP / 4, Phase.SAVING, Phase.INPUT)
    clock.close()
    assert ledger[Phase.INPUT] == ledger[Phase.SAVING] == int(NAP / 4 * 1e9)
    assert ledger[Phase.STEP] >= NAP / 2 * 1e9


def test_each_thread_has_a_clock() -> None:
    found: list[Clock] = []
    thread = threading.Thread(target=lambda: found.append(clock_of_thread()))
    thread.start()
    thread.join()
    assert found[0] is not clock_of_thread()
    assert clock_of_thread() is clock_of_thread()
