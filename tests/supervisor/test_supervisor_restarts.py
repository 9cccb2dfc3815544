"""Real tasks that die, hang or are preempted, and are started again; none needs TensorFlow."""

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfit.supervisor.hang_detection import Limits
from kfit.supervisor.local import local_commands
from kfit.supervisor.supervisor import Supervisor
from tests.sweeps import only, sweep

# Many times what starting or ending a tiny process takes.
SOON = 20.0

# What the programs below have in common: `train` beats until a step.
PREAMBLE = """
import ctypes, json, os, signal, sys, time
from kfit.heartbeat import Heartbeat, Phase
generation = int(os.environ["KFIT_GENERATION"])
config = json.loads(os.environ.get("TF_CONFIG", "{}"))
index = config["task"]["index"] if config else 0
heartbeat = Heartbeat.of_environment()
fit = heartbeat.call(Phase.STEP)
fit.__enter__()
def train(first, last, pause=0.02):
    for step in range(first, last + 1):
        heartbeat.beat(step)
        time.sleep(pause)
"""


def program(path: Path, code: str) -> tuple[str, ...]:
    path.write_text(PREAMBLE + textwrap.dedent(code))
    return (sys.executable, str(path))


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., tuple[int, list[str], list[str]]]:
    """Runs a program to its end: the exit code, and the lines of stdout and stderr."""

    def run(code: str, workers: int = 2, **options: Any) -> tuple[int, list[str], list[str]]:
        argv = program(tmp_path / "train.py", code)
        stdout, stderr = io.StringIO(), options.pop("stderr", io.StringIO())
        exit_code = Supervisor(
            lambda: local_commands(argv, workers),
            stdout=stdout,
            stderr=stderr,
            **options,
        ).run()
        return exit_code, stdout.getvalue().splitlines(), stderr.getvalue().splitlines()

    return run


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `kfit run` as a process of its own."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str, *options: str) -> subprocess.Popen[str]:
        _, script = program(tmp_path / "train.py", code)
        process = subprocess.Popen(
            [sys.executable, "-m", "kfit.commands.main", "run", "--no-join", *options, script],
            env={k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    while words not in (line := process.stdout.readline()):
        assert line, f"no line with {words!r}: {lines}"
        lines.append(line.strip())
    return [*lines, line.strip()]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_killed_task_is_started_again_with_its_peers(supervise: Any) -> None:
    code, out, err = supervise(
        """
        names = ["KFIT_RUN", "KFIT_SEED", "KFIT_GENERATION", "KFIT_HEARTBEAT"]
        addresses = config["cluster"]["worker"]
        print(json.dumps([index, addresses, *(os.environ[name] for name in names)]))
        train(1, 5)
        if generation == 0:
            if index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        """,
        max_restarts=1,
    )
    assert code == 0, err
    told = [json.loads(line.partition("] ")[2]) for line in out]
    assert sorted((int(each[4]), each[0]) for each in told) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (run,), (seed,) = ({each[k] for each in told} for k in (2, 3))
    assert re.fullmatch("[0-9a-f]{32}", run)
    assert 0 <= int(seed) < 2**31
    ports = {tuple(each[1]) for each in told}
    assert len(ports) == 2
    heartbeats = {Path(each[5]) for each in told}
    assert len(heartbeats) == 4
    assert not any(heartbeat.parent.exists() for heartbeat in heartbeats)
    assert err == [
        "kfit: worker 1 was killed by SIGKILL after step 5; stopping worker 0",
        "kfit: attempt 2 starts in 0.3 s (restart 1 of at most 1 in a row)",
        "kfit: all tasks ended well in attempt 2",
    ]


def test_a_seed_that_is_set_stays(supervise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFIT_SEED", "17")
    monkeypatch.setenv("KFIT_GENERATION", "99")
    code, out, _ = supervise("print(os.environ['KFIT_SEED'], generation)", workers=1)
    assert (code, out) == (0, ["[worker 0] 17 0"])


@pytest.mark.long
def test_peers_of_a_killed_task_are_down_within_five_seconds(supervise: Any) -> None:
    _, out, err = supervise(
        """
        print(time.monotonic())
        if generation == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            train(1, 5)
            if index == 1:
                print(time.monotonic())
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        """,
        max_restarts=1,
    )
    died, *again = sorted(float(line.partition("] ")[2]) for line in out)[2:]
    # 3 s of patience, and a quarter of back-off.
    assert 3.0 < min(again) - died < 5.0 + SOON
    told = r"kfit: killed \d+\.\d s after the request to stop: worker 0"
    assert any(re.fullmatch(told, line) for line in err)


def test_a_crash_loop_ends_with_what_came_first(supervise: Any) -> None:
    code, _, err = supervise(
        """
        train(1, 3)
        if index == 1:
            sys.exit("the very reason") if generation else os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
        """,
        max_restarts=2,
    )
    assert code == 1
    begin = err.index("kfit: gave up; what ended each attempt:")
    assert err[begin + 1 :] == [
        "kfit:   attempt 1: worker 1 was killed by SIGKILL after step 3",
        "kfit:   attempt 2: worker 1 ended with exit code 1 after step 3: the very reason",
        "kfit:   attempt 3: worker 1 ended with exit code 1 after step 3: the very reason",
        "kfit: error: worker 1 ended with exit code 1 after step 3: the very reason",
    ]


def test_the_victim_of_a_killed_task_says_so_in_one_line(supervise: Any) -> None:
    code, _, err = supervise(
        """
        class ExchangeError(RuntimeError):
            pass
        def fail(*_):
            raise ExchangeError("worker 1 is gone")
        ready = os.environ["KFIT_HEARTBEAT"][:-1] + "ready"
        if index == 1:
            while not os.path.exists(ready):
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGTERM, fail)
        open(ready, "w").close()
        time.sleep(600)
        """
    )
    assert code == 137
    line = "[worker 0] kfit: this task fails because another one has: worker 1 is gone"
    assert [each for each in err if each.startswith("[worker 0]")] == [line]


@pytest.mark.parametrize("is_passed_on", [True, False])
def test_an_interrupt_that_was_passed_on_leaves_no_traceback(
    drive: Any, is_passed_on: bool
) -> None:
    process = drive(
        """
        print("ready", os.getpid() if index else "")
        time.sleep(600)
        """,
        "--workers=2",
    )
    lines = [read_until(process, "ready")[-1] for _ in range(2)]
    own = int(next(line.split()[-1] for line in lines if line.split()[-1].isdigit()))
    os.kill(process.pid if is_passed_on else own, signal.SIGINT)
    out, _ = process.communicate(timeout=SOON)
    assert out.count("Traceback") == (not is_passed_on)
    assert ("[worker 1] KeyboardInterrupt" in out) == (not is_passed_on)


@pytest.mark.long
def test_progress_refills_the_budget(supervise: Any) -> None:
    code, _, err = supervise(
        "train(generation * 5 + 1, generation * 5 + 5); sys.exit(generation < 4)", max_restarts=1
    )
    assert code == 0, err
    assert err[-1] == "kfit: all tasks ended well in attempt 5"


@pytest.mark.parametrize("way", sweep(["os.kill(os.getpid(), signal.SIGTERM)", "sys.exit(143)"]))
def test_a_preempted_task_is_started_again_at_no_cost(supervise: Any, way: str) -> None:
    code, _, err = supervise(
        f"""
        train(generation + 1, generation + 1)
        if generation < 3:
            {way} if index else time.sleep(600)
        """,
        max_restarts=1,
    )
    assert code == 0, err
    assert len([line for line in err if "which costs no restart" in line]) == 3


def test_a_preempted_task_ends_the_run_where_restarts_are_off(supervise: Any) -> None:
    code, _, err = supervise("train(1, 2); sys.exit(143)", workers=1)
    assert code == 143
    ended = "kfit: error: worker 0 ended with exit code 143, preempted after step 2; with Backup"
    assert err[-1].startswith(ended)


HANGS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "sleeping": "time.sleep(600)",
    "holding the GIL": "ctypes.PyDLL(None).sleep(600)",
}


@pytest.mark.parametrize("way", only(["sleeping"], HANGS))
def test_a_task_that_hangs_is_found_shown_and_started_again(supervise: Any, way: str) -> None:
    code, _, err = supervise(
        f"""
        def the_place_where_it_hangs():
            {HANGS[way]}
        train(1, 20)
        if generation == 0 and index == 1:
            the_place_where_it_hangs()
        train(21, 25 if generation else 300)
        """,
        max_restarts=1,
        hang_timeout=1.0,
    )
    assert code == 0, err
    stopped = way == "stopped" and sys.platform == "linux"
    (found,) = [line for line in err if " hung" in line]
    reason = "stopped by a signal" if stopped else "no progress"
    assert f"kfit: worker 1 hung: {reason}" in found
    assert "after step 20" in found
    shown = [line for line in err if "in the_place_where_it_hangs" in line]
    assert len(shown) == (way != "stopped")
    assert err[-1] == "kfit: all tasks ended well in attempt 2"


@pytest.mark.long
@pytest.mark.parametrize("way", HANGS)
def test_a_hang_is_found_within_ten_seconds(supervise: Any, way: str) -> None:
    """Where the user's own code may be at work that is said, and a minute is too long."""
    code, out, err = supervise(
        f"""
        train(1, 50)
        if generation == 0 and index == 1:
            print(time.monotonic())
            {HANGS[way]}
        if generation == 1 and index == 1:
            print(time.monotonic())
        train(51, 52) if generation else train(51, 5000)
        """,
        max_restarts=1,
    )
    assert code == 0, err
    hung, again = (float(line.partition("] ")[2]) for line in out)
    limit = 60 if way == "sleeping" else 10
    said = [line for line in err if "worker 1 has made no progress for" in line]
    assert len(said) == (way == "sleeping"), err
    # Then 1 s for the stacks, the back-off and the start; 10.9 s on an idle machine.
    assert limit - 1 < again - hung < limit + 5


def test_synchronous_tasks_that_stall_together(supervise: Any) -> None:
    # Worker 0 waits for its peer, which is behind.
    _, _, err = supervise("train(1, 5 - index); time.sleep(600)", hang_timeout=1.0, max_restarts=0)
    (found,) = [line for line in err if "the stacks of" in line]
    assert "kfit: worker 1 hung: no progress" in found
    assert found.endswith("after step 4; the stacks of worker 0, worker 1:")
    stacks = [line.partition("]")[0] for line in err if "]   File " in line]
    # The stacks of one task are printed before those of the next.
    assert [name for name, _ in itertools.groupby(stacks)] == ["[worker 0", "[worker 1"]
    assert err[-1].startswith("kfit: error: worker 1 hung")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_who_fails_for_a_stopped_peer_is_not_to_blame(supervise: Any) -> None:
    code, _, err = supervise(
        """
        train(1, 5)
        if index == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        train(6, 100)
        sys.exit("the peer does not answer")
        """
    )
    assert code == 137
    assert err[0] == "[worker 0] the peer does not answer"
    assert err[1].startswith("kfit: worker 1 hung: stopped by a signal (SIGSTOP)")
    assert err[1].endswith(" after step 5")
    assert err[-1].startswith("kfit: error: worker 1 hung")


@pytest.mark.long
def test_what_must_not_be_called_a_hang(supervise: Any) -> None:
    code, _, err = supervise(
        """
        with heartbeat.paused():
            time.sleep(1.2)
        train(1, 5)
        with heartbeat.phase(Phase.TRACING):
            time.sleep(1.2)
        for _ in range(4):
            time.sleep(0.3)
            heartbeat.moved()
        train(6, 8)
        fit.__exit__(None, None, None)
        time.sleep(1.2)
        """,
        hang_timeout=0.5,
    )
    assert (code, err) == (0, [])


@pytest.mark.long
@pytest.mark.parametrize(("hang_timeout", "code"), [("auto", 137), (None, 0)])
def test_the_rhythm_tells_unless_hangs_are_left_alone(
    supervise: Any, hang_timeout: Any, code: int
) -> None:
    limits = Limits().times(0.15)
    ended, _, err = supervise(
        "train(1, 5); time.sleep(2.5)", hang_timeout=hang_timeout, limits=limits
    )
    assert (ended, bool(err)) == (code, bool(code))


@pytest.mark.long
def test_a_suspended_host_is_no_hang(drive: Any) -> None:
    process = drive(
        """
        # Whoever wakes up takes a while to get on.
        signal.signal(signal.SIGCONT, lambda *_: time.sleep(0.8))
        train(1, 5)
        print(os.getpid())
        train(6, 60)
        """,
        "--workers=2",
        "--hang-timeout=1.5",
    )
    tasks = [int(read_until(process, "[worker")[-1].split()[-1]) for _ in range(2)]
    for pid in (process.pid, *tasks):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.6)
    for pid in (*tasks, process.pid):
        os.kill(pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=SOON)
    assert (process.returncode, out) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_output_that_nobody_takes_is_no_hang(drive: Any, workers: str) -> None:
    process = drive(
        """
        for step in range(1, 3001):
            heartbeat.beat(step)
            print("x" * 100)
        """,
        f"--workers={workers}",
        "--hang-timeout=2",
    )
    # Longer than the limit: the pipe is full, and the tasks wait in `print`.
    time.sleep(6.0)
    out, _ = process.communicate(timeout=SOON)
    assert process.returncode == 0
    assert out.count("x" * 100) == 3000 * int(workers)
    told = [line for line in out.splitlines() if line.startswith("kfit:")]
    pids = r"kfit: worker 0 is process \d+, worker 1 is process \d+"
    expected = ["kfit: starting 2 workers on this host", pids] if workers == "2" else []
    assert len(told) == len(expected)
    assert all(map(re.fullmatch, expected, told))


IN_GENERATION_1 = """
    import subprocess
    train(1, 3)
    if generation == 0:
        sys.exit(1 if index else 0)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("here", os.getpid(), child.pid, os.environ["KFIT_HEARTBEAT"])
    time.sleep(600)
"""


def test_nothing_of_the_second_generation_outlives_a_killed_supervisor(drive: Any) -> None:
    process = drive(IN_GENERATION_1, "--workers=2", "--max-restarts=1", "--hang-timeout=off")
    found = [read_until(process, "here")[-1].split()[-3:] for _ in range(2)]
    pids = [int(pid) for each in found for pid in each[:2]]
    folder = Path(found[0][2]).parent
    assert folder.exists()
    process.kill()
    try:
        wait_until(lambda: all(map(is_gone, pids)), "all processes are gone")
    finally:
        for pid in pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not folder.exists(), "the heartbeat files are gone")


@pytest.mark.long
def test_the_grace_period_holds_in_the_second_generation(drive: Any) -> None:
    process = drive(
        """
        if generation == 0:
            sys.exit(1)
        def save(*_):
            time.sleep(3.3)
            print("saved")
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        print("ready")
        while True:
            time.sleep(0.02)
        """,
        "--max-restarts=1",
    )
    read_until(process, "ready")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=SOON)
    assert "saved" in out
    assert process.returncode == 143
    assert out.splitlines()[-1] == "kfit: stopped by SIGTERM"


@pytest.mark.long
def test_a_signal_before_the_next_start_ends_the_run(drive: Any) -> None:
    process = drive("sys.exit(4)", "--max-restarts=9")
    # The fourth back-off is one of two seconds.
    read_until(process, "restart 4 of at most 9")
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=SOON)
    assert time.monotonic() - begin < 1.5
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; before the next start; train.py ended with exit code 4" in out


def test_sigusr1_is_passed_on_and_never_restarts(drive: Any) -> None:
    process = drive(
        """
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(128 + signal.SIGUSR1))
        train(1, 3)
        print("ready")
        while True:
            time.sleep(0.02)
        """,
        "--workers=2",
        "--max-restarts=3",
        "--hang-timeout=off",
    )
    for _ in range(2):
        read_until(process, "ready")
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=SOON)
    assert process.returncode == 128 + signal.SIGUSR1
    assert "kfit: stopped by SIGUSR1" in out
    assert "attempt 2" not in out


@pytest.mark.long
def test_nothing_grows_over_a_hundred_restarts(supervise: Any) -> None:
    """Threads, files and processes of the supervisor, which lives as long as the run."""
    me, counts = psutil.Process(), []

    class Counts(io.StringIO):
        def write(self, text: str) -> int:
            if "starts" in text:
                counts.append((me.num_threads(), me.num_fds(), len(me.children())))
            return super().write(text)

    code, _, _ = supervise(
        """
        train(generation, generation + 1)
        sys.exit(0 if generation == 100 else 3)
        """,
        workers=1,
        max_restarts=1,
        stderr=Counts(),
    )
    assert code == 0
    assert len(counts) >= 100
    for early, late in zip(counts[9], counts[-1], strict=True):
        # The libraries of this process may start a thread of their own; a leak is one a restart.
        assert late <= early + 5, counts
