import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kfit.heartbeat import UNHURRIED_LIMIT, VARIABLE, Heartbeat, HeartbeatReader, Pulse

SOON = 20.0


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    made = HeartbeatReader(str(tmp_path / "heartbeat"))
    yield made
    made.close()
    faulthandler.unregister(signal.SIGUSR2)


def of(reader: HeartbeatReader) -> Heartbeat:
    return Heartbeat.of_environment({VARIABLE: reader.path})


def test_nothing_was_written_yet(reader: HeartbeatReader) -> None:
    assert reader.read() == Pulse()


def test_a_beat_tells_the_step_and_the_time(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    before = time.monotonic()
    heartbeat.beat(7)
    heartbeat.beat(9)
    pulse = reader.read()
    assert before <= pulse.time <= time.monotonic()
    assert (pulse.pid, pulse.beats, pulse.step) == (os.getpid(), 2, 9)
    assert pulse.unhurried_since is None
    assert not pulse.finished


def test_a_second_heartbeat_of_the_process_goes_on(reader: HeartbeatReader) -> None:
    of(reader).beat(1)
    of(reader).beat(2)
    assert reader.read().beats == 2


def test_unhurried_takes_the_more_generous_and_starts_the_clock_anew(
    reader: HeartbeatReader,
) -> None:
    heartbeat = of(reader)
    with heartbeat.unhurried():
        since = reader.read().unhurried_since
        assert since is not None
        with heartbeat.unhurried(limit=5):
            heartbeat.beat(2)
        pulse = reader.read()
        assert (pulse.unhurried_since, pulse.unhurried_limit) == (since, UNHURRIED_LIMIT)
    pulse = reader.read()
    assert pulse.unhurried_since is None
    assert (pulse.beats, pulse.step) == (1, 2)
    with heartbeat.unhurried(limit=5):
        assert reader.read().unhurried_limit == 5
        left = time.monotonic()
    assert reader.read().time >= left


def test_a_stricter_outer_limit_starts_anew_after_the_inner_one(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with heartbeat.unhurried(limit=5):
        outer = reader.read()
        with heartbeat.unhurried():
            assert reader.read().unhurried_limit == UNHURRIED_LIMIT
            left = time.monotonic()
        pulse = reader.read()
        assert outer.unhurried_since is not None
        assert pulse.unhurried_since is not None
        assert outer.unhurried_since < left <= pulse.unhurried_since
        assert pulse.unhurried_limit == 5
    assert reader.read().unhurried_since is None


def test_unhurried_ends_with_an_error_too(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with pytest.raises(KeyError), heartbeat.unhurried():
        raise KeyError
    assert reader.read().unhurried_since is None


def test_finished_until_the_next_beat(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    heartbeat.beat(1)
    heartbeat.finish()
    assert reader.read().finished
    with heartbeat.unhurried():
        assert not reader.read().finished
    assert reader.read().finished
    heartbeat.beat(2)
    assert not reader.read().finished


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_refuses_a_limit_that_is_none(limit: float) -> None:
    with pytest.raises(ValueError, match="`limit` is"), Heartbeat().unhurried(limit):
        pass


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
def test_without_a_supervisor_all_methods_work(environ: dict[str, str]) -> None:
    heartbeat = Heartbeat.of_environment(environ)
    with heartbeat.unhurried():
        heartbeat.beat(1)
    heartbeat.finish()


def test_a_supervisor_that_has_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=f"`{VARIABLE}` is .* which is no heartbeat file"):
        heartbeat = Heartbeat.of_environment({VARIABLE: str(tmp_path / "gone")})
    heartbeat.beat(1)


def test_only_the_first_process_of_a_task_beats(reader: HeartbeatReader) -> None:
    of(reader).beat(1)
    code = "from kfit.heartbeat import Heartbeat; Heartbeat.of_environment().beat(99)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, VARIABLE: reader.path})
    assert reader.read().step == 1


def test_a_dead_task_s_last_beat_stays(reader: HeartbeatReader) -> None:
    code = """
        import os, signal
        from kfit.heartbeat import Heartbeat
        Heartbeat.of_environment().beat(5)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, env={**os.environ, VARIABLE: reader.path})
    assert reader.read().step == 5


def test_no_value_is_read_half_written(reader: HeartbeatReader) -> None:
    # All bytes differ between the two.
    steps = {0x0101010101010101, 0x7E7E7E7E7E7E7E7E}
    code = f"""
        import time
        from kfit.heartbeat import Heartbeat
        heartbeat = Heartbeat.of_environment()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            for step in {sorted(steps)}:
                heartbeat.beat(step)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, env={**os.environ, VARIABLE: reader.path}) as process:
        seen, last = set(), 0.0
        while process.poll() is None:
            pulse = reader.read()
            if pulse.beats:
                seen.add(pulse.step)
                assert pulse.time >= last
                last = pulse.time
    assert process.returncode == 0
    assert seen == steps


def test_a_beat_costs_microseconds(reader: HeartbeatReader) -> None:
    for heartbeat in (of(reader), Heartbeat()):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for step in range(1000):
                heartbeat.beat(step)
            times.append(time.perf_counter() - begin)
        # 0.4 µs a beat on an idle machine.
        assert min(times) / 1000 < 5e-6


@pytest.mark.parametrize(
    "stuck",
    ["import time; time.sleep(600)", "import ctypes; ctypes.PyDLL(None).sleep(600)"],
    ids=["sleeps", "holds the GIL"],
)
def test_stacks_are_written_on_demand(reader: HeartbeatReader, stuck: str) -> None:
    code = f"""
        from kfit.heartbeat import Heartbeat
        Heartbeat.of_environment().beat(1)
        def the_place_where_it_hangs():
            {stuck}
        the_place_where_it_hangs()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environ = {**os.environ, VARIABLE: reader.path}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        guard = threading.Timer(SOON, process.kill)
        guard.start()
        while not reader.read().beats:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR2)
        assert process.stderr is not None
        while "the_place_where_it_hangs" not in process.stderr.readline():
            assert process.poll() is None
        guard.cancel()
        process.kill()


def test_a_handler_of_the_user_s_own_stays(reader: HeartbeatReader) -> None:
    def handler(*_: Any) -> None: ...

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        of(reader)
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)
