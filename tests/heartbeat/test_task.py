import dataclasses
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

from kfit.heartbeat import (
    VARIABLE,
    Heartbeat,
    HeartbeatReader,
    Phase,
    Pulse,
    Reached,
    read_error,
)
from kfit.heartbeat.clock import clock_of_thread
from kfit.heartbeat.errors import error_path

SOON = 20.0


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
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
    begin = time.monotonic()
    heartbeat.beat(7)
    heartbeat.beat(9)
    pulse = reader.read()
    assert (pulse.pid, pulse.beats, pulse.step) == (os.getpid(), 2, 9)
    assert begin <= pulse.time <= time.monotonic()
    assert of(reader) is heartbeat


def test_a_place_is_a_fit_and_a_step_of_it(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with heartbeat.call(), heartbeat.fit():
        heartbeat.beat(7)
        assert heartbeat.reached(7) == Reached(0, 7)
    assert reader.read().reached == Reached(0, 7)
    with heartbeat.call(), heartbeat.fit():
        assert reader.read().reached == Reached(1, 0)
        heartbeat.beat(2)
        assert heartbeat.reached(2) == Reached(1, 2)
    assert reader.read().reached == Reached(1, 2)


def test_what_a_hook_of_fit_calls_does_not_change_the_place(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with heartbeat.call(), heartbeat.fit():
        heartbeat.beat(7)
        with heartbeat.call():
            heartbeat.beat(0, trains=False)
            heartbeat.beat(90, trains=False)  # of a snapshot
        with heartbeat.call(), heartbeat.fit():
            heartbeat.beat(50)
            heartbeat.set_fit_number(4)
            assert heartbeat.reached(50) == Reached(0, 50)  # it has no name
        pulse = reader.read()
        assert (pulse.reached, pulse.beats) == (Reached(0, 7), 4)


def test_an_evaluation_outside_of_fit_tells_the_step_of_its_snapshot(
    reader: HeartbeatReader,
) -> None:
    heartbeat = of(reader)
    with heartbeat.call(), heartbeat.fit():
        heartbeat.beat(7)
    with heartbeat.call():
        heartbeat.beat(0, trains=False)
        assert reader.read().reached == Reached(0, 7)
        heartbeat.beat(90, trains=False)
    assert reader.read().reached == Reached(0, 90)


def test_the_number_of_a_fit_can_be_set_when_it_is_known(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with heartbeat.call(), heartbeat.fit():
        heartbeat.set_fit_number(3)
        assert reader.read().reached == Reached(3, 0)
        heartbeat.beat(2)
        assert (heartbeat.fit_number, reader.read().reached) == (3, Reached(3, 2))
    heartbeat.set_fit_number(9)  # outside
    with heartbeat.call(), heartbeat.fit():
        assert reader.read().reached == Reached(4, 0)


def test_the_place_is_that_of_the_thread_that_is_reported(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)

    def train_beside() -> None:
        with heartbeat.call(), heartbeat.fit():
            heartbeat.beat(9)
            heartbeat.set_fit_number(5)

    with heartbeat.call(), heartbeat.fit():
        heartbeat.beat(3)
        thread = threading.Thread(target=train_beside)
        thread.start()
        thread.join()
        assert reader.read().reached == Reached(0, 3)
    with heartbeat.call(), heartbeat.fit():
        assert reader.read().reached == Reached(6, 0)


def test_without_a_supervisor_no_fit_is_named() -> None:
    heartbeat = Heartbeat()
    for step in (3, 4):
        with heartbeat.call(), heartbeat.fit():
            assert heartbeat.reached(step) == Reached(0, step)


def test_only_a_call_is_judged_and_calls_are_counted(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    assert not reader.read().in_call
    with heartbeat.call():
        with heartbeat.hook("on_epoch_end"), heartbeat.call(Phase.STEP):
            assert (reader.read().in_call, reader.read().phase) == (True, Phase.STEP)
        assert (reader.read().in_call, reader.read().phase) == (True, Phase.WORK)
    assert (reader.read().in_call, reader.read().phase) == (False, Phase.OUTSIDE)
    heartbeat.beat(3)
    assert not reader.read().in_call


def test_who_has_a_generator_is_not_judged_until_it_goes_on(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)

    def predictions() -> Any:
        with heartbeat.call(), heartbeat.phase(Phase.STEP, 7.0):
            for _ in range(3):
                assert reader.read().phase == Phase.STEP
                assert reader.read().limit == 7.0
                with heartbeat.paused():
                    yield reader.read().in_call

    taken = predictions()
    assert [next(taken), next(taken)] == [False, False]
    with heartbeat.call(Phase.WORK):
        with heartbeat.hook("on_epoch_end"):
            taken.close()  # abandoned, in the midst of something else
            pulse = reader.read()
            assert pulse.doing == "in on_epoch_end"
            assert pulse.in_call
        assert reader.read().phase == Phase.WORK
    assert not reader.read().in_call
    assert reader.read().limit is None


def test_threads_in_calls_at_once_do_not_disturb_each_other(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    turn = threading.Barrier(2, timeout=SOON)
    failed: list[BaseException] = []

    def other() -> None:
        try:
            with heartbeat.call():
                turn.wait()  # 1: in a call
                turn.wait()  # 2: the first thread has gone deeper
                with heartbeat.phase(Phase.SAVING, 7.0):
                    heartbeat.beat(9)
                    turn.wait()  # 3: in a phase
                    turn.wait()  # 4: the first thread has left its calls
                assert reader.read().phase == Phase.WORK
        except BaseException as error:
            failed.append(error)
            turn.abort()

    with heartbeat.call():
        thread = threading.Thread(target=other)
        thread.start()
        turn.wait()  # 1
        with heartbeat.hook("on_epoch_end"), heartbeat.call(Phase.STEP):
            heartbeat.beat(3)
            turn.wait()  # 2
            turn.wait()  # 3
            pulse = reader.read()
            assert (pulse.phase, pulse.step, pulse.beats) == (Phase.STEP, 3, 1)
            assert heartbeat.thread == threading.get_ident()
        assert reader.read().phase == Phase.WORK
    pulse = reader.read()
    assert (pulse.in_call, pulse.phase, pulse.limit) == (True, Phase.SAVING, 7.0)
    assert heartbeat.thread == thread.ident
    turn.wait()  # 4
    thread.join()
    assert not failed
    pulse = reader.read()
    assert (pulse.in_call, pulse.phase, pulse.limit) == (False, Phase.OUTSIDE, None)


def test_a_generator_may_be_resumed_by_another_thread(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)

    def predictions() -> Any:
        with heartbeat.call(), heartbeat.phase(Phase.STEP), heartbeat.paused():
            yield 1

    taken = predictions()
    with heartbeat.call(), heartbeat.hook("on_epoch_end"):
        next(taken)
        thread = threading.Thread(target=lambda: [*taken])
        thread.start()
        thread.join()
        assert clock_of_thread().in_hook
        assert reader.read().doing == "in on_epoch_end"
    assert (reader.read().in_call, reader.read().phase) == (False, Phase.OUTSIDE)


@pytest.mark.parametrize("way", ["phase", "hook", "moved", "met"])
def test_progress_of_any_kind_counts(reader: HeartbeatReader, way: str) -> None:
    heartbeat = of(reader)
    before = reader.read().time
    if way == "phase":
        with heartbeat.phase(Phase.SAVING):
            assert reader.read().time > before
            before = reader.read().time
    elif way == "hook":
        with heartbeat.hook("on_test_batch_begin"):
            assert reader.read().doing == "in on_test_batch_begin"
    elif way == "moved":
        heartbeat.moved()
    else:
        heartbeat.meet()
        assert reader.read().meeting_since is not None
        assert reader.read().doing == "waiting for its peers"
        heartbeat.met()
        assert reader.read().meeting_since is None
    assert reader.read().time > before


def test_what_was_found_in_one_stall_is_not_told_of_the_next(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with heartbeat.phase(Phase.READING_STEP):
        _, _, began = heartbeat.stall()
        heartbeat.note_place(began, "train.py:3", True, 0.5)
        pulse = reader.read()
        assert pulse.doing == "reading data (train.py:3)"
        assert (pulse.in_user_code, pulse.busy) == (True, 0.5)
    heartbeat.moved()
    pulse = reader.read()
    assert (pulse.place, pulse.in_user_code, pulse.busy) == ("", False, 0.0)


def test_a_place_need_not_be_utf_8(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with heartbeat.phase(Phase.READING_STEP):
        _, _, began = heartbeat.stall()
        heartbeat.note_place(began, os.fsdecode(b"caf\xe9/train.py:3"), True, 0.5)
        assert reader.read().place == "caf?/train.py:3"


def test_a_phase_ends_with_an_error_too(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    with pytest.raises(KeyError), heartbeat.call(), heartbeat.phase(Phase.STEP, 3.0):
        raise KeyError
    assert (reader.read().phase, reader.read().limit) == (Phase.OUTSIDE, None)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_limit_must_be_a_number_of_seconds(limit: float) -> None:
    with pytest.raises(ValueError, match="`limit` is"):
        Heartbeat().phase(Phase.JOINING, limit)


def test_the_error_that_leaves_a_call_is_noted_once(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    assert read_error(reader.path) is None

    def fails() -> None:
        try:
            with heartbeat.call():
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("could not save") from error

    with pytest.raises(RuntimeError), heartbeat.call():
        fails()
    noted = read_error(reader.path)
    assert noted is not None
    assert noted.summary == "OSError: [Errno 28] No space left on device"
    assert not noted.is_consequence
    with pytest.raises(SystemExit), heartbeat.call():
        raise SystemExit(143)
    assert read_error(reader.path) == noted


def test_the_record_has_what_is_added_to_the_message_later(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)

    def misspelled(cause: Exception | None = None) -> Exception:
        with pytest.raises(TypeError) as raised, heartbeat.call():
            raise TypeError("got 'epoch'") from cause
        return raised.value

    error = misspelled()
    first = read_error(reader.path)
    error.args = ("got 'epoch'. Did you mean 'epochs'?",)
    around = RuntimeError("in the script")
    around.__cause__ = error
    heartbeat.note_error(around)
    assert first is not None
    told = dataclasses.replace(first, summary="TypeError: got 'epoch'. Did you mean 'epochs'?")
    assert read_error(reader.path) == told
    misspelled()
    latest = read_error(reader.path)
    error.args = ("something else",)
    heartbeat.note_error(error)
    assert read_error(reader.path) == latest


class OwnError(Exception):
    def __str__(self) -> str:
        return f"at {self.missing}"  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("read-only")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no ==")

    __hash__ = None  # type: ignore[assignment]


def test_an_error_whose_own_methods_fail_is_noted_as_itself(reader: HeartbeatReader) -> None:
    heartbeat = of(reader)
    error = OwnError()
    try:
        heartbeat.note_error(OwnError())
        raise error from OwnError()
    except OwnError as raised:
        heartbeat.note_error(raised)
    noted = read_error(reader.path)
    assert noted is not None
    assert noted.summary == "OwnError: <exception str() failed>"
    os.remove(error_path(reader.path))
    heartbeat.note_error(error)
    assert read_error(reader.path) is None


def test_what_ends_the_process_is_noted(reader: HeartbeatReader) -> None:
    code = """
        from kfit.heartbeat import Heartbeat
        class ExchangeError(Exception): ...
        Heartbeat.of_environment()
        raise ExchangeError("worker 0 has closed its connection\\nsee what it printed")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environ = {**os.environ, VARIABLE: reader.path}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert ended.stderr.startswith(
        "kfit: this task fails because another one has: worker 0 has closed"
    )
    assert "Traceback" not in ended.stderr
    noted = read_error(reader.path)
    assert noted is not None
    assert noted.summary == "ExchangeError: worker 0 has closed its connection"
    assert noted.is_consequence


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
def test_without_a_supervisor_all_methods_work(environ: dict[str, str]) -> None:
    heartbeat = Heartbeat.of_environment(environ)
    with heartbeat.call(), heartbeat.phase(Phase.STEP), heartbeat.paused():
        heartbeat.beat(1)
    with pytest.raises(ValueError, match="x"), heartbeat.call():
        raise ValueError("x")


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


def test_what_a_step_tells_costs_a_microsecond_or_two(reader: HeartbeatReader) -> None:
    for heartbeat in (of(reader), Heartbeat()):
        times = []
        for _ in range(5):
            begin = time.thread_time()
            for step in range(1000):
                with heartbeat.phase(Phase.STEP):
                    heartbeat.beat(step)
            times.append(time.thread_time() - begin)
        # 1.5 µs an execution on an idle machine, of as many steps as fit into a fifth of a second.
        # Of the processor's time, since other programs may use it meanwhile.
        assert min(times) / 1000 < 15e-6


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


def test_a_faulthandler_of_the_user_s_own_stays(reader: HeartbeatReader, tmp_path: Path) -> None:
    with open(tmp_path / "stacks", "w") as file:
        faulthandler.register(signal.SIGUSR2, file=file, chain=False)
        of(reader)
        signal.raise_signal(signal.SIGUSR2)
        faulthandler.unregister(signal.SIGUSR2)
    assert "test_a_faulthandler_of_the_user_s_own_stays" in (tmp_path / "stacks").read_text()
