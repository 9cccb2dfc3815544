"""Real processes, really killed: what they end with is, bit for bit, what nobody touched ends with.

The long ones are the promise in numbers: `pytest -m long tests/test_kills.py -s` prints them.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfit.supervisor.local import free_ports
from tests.runs import PROGRAM, digests, kfit_run, snapshots, start

WORKERS = {"one_device": 1, "mirrored": 1, "multi_worker": 2}
DEADLINE = 240.0


@contextlib.contextmanager
def started(strategy: str, folder: Path, *options: str, restarts: int = 0) -> Iterator[Any]:
    """`kfit run` of the program, which is ended with all it has started."""
    run = ["--workers", str(WORKERS[strategy]), "--max-restarts", str(restarts), "--grace", "30"]
    command = kfit_run(strategy, folder, *options, run=run)
    process = start(command, folder, folder / "output")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def output(folder: Path) -> str:
    return (folder / "output").read_text(errors="replace")


def code_of(process: Any, folder: Path) -> int:
    """The code that a run has ended with; where it does not end, its output tells why."""
    try:
        return int(process.wait(DEADLINE))
    except subprocess.TimeoutExpired:
        raise AssertionError(f"The run has not ended:\n{output(folder)[-20000:]}") from None


def digest(folder: Path) -> str:
    """What the last run printed, equal on all workers."""
    found = digests(output(folder))
    assert found, output(folder)[-5000:]
    return found[-1]


def untouched(strategy: str, folder: Path, *options: str) -> str:
    with started(strategy, folder, *options) as process:
        assert code_of(process, folder) == 0, output(folder)[-5000:]
    # The next run will delete what is kept for a task that may still fail.
    ended = json.loads((folder / "backup" / ".kfit-lock").read_text())["ended"]
    assert ended is not None
    return digest(folder)


def steps_taken(folder: Path) -> list[int]:
    """The steps that the chief wrote down, over all its lives."""
    path = folder / "steps"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def newest_step(folder: Path) -> int:
    return snapshots(folder)[-1].step


def tasks_of(process: Any) -> list[psutil.Process]:
    """The processes that run the program."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if str(PROGRAM) in _command_of(child)]


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def wait_for_steps(folder: Path, count: int, process: Any) -> bool:
    """Waits until `count` steps have been written down; False when the run has ended."""
    deadline = time.monotonic() + DEADLINE
    while len(steps_taken(folder)) < count:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, output(folder)[-5000:]
        time.sleep(0.02)
    return True


def kill_at_random(strategy: str, folder: Path, kills: int, seed: int, *options: str) -> int:
    """Kills a random task of a run `kills` times, each after it has got on; returns how often."""
    draw = random.Random(seed)
    done = 0
    with started(strategy, folder, *options, restarts=5) as process:
        while done < kills:
            more = draw.randint(6, 25)
            if not wait_for_steps(folder, len(steps_taken(folder)) + more, process):
                break
            time.sleep(draw.random() * 0.05)
            task = draw.choice(tasks_of(process))
            task.send_signal(signal.SIGKILL)
            done += 1
        assert code_of(process, folder) == 0, output(folder)[-5000:]
    return done


def check_kills(strategy: str, folder: Path, kills: int, *options: str) -> None:
    expected = untouched(strategy, folder / "untouched", *options)
    begun = time.monotonic()
    done = kill_at_random(strategy, folder / "killed", kills, 1, *options, "--pause", "0.02")
    assert done == kills
    assert digest(folder / "killed") == expected
    logs = [(folder / name / "log.csv").read_text() for name in ("untouched", "killed")]
    assert logs[0] == logs[1]
    repeated = len(steps_taken(folder / "killed")) - max(steps_taken(folder / "killed"))
    print(
        f"{strategy}: {kills} SIGKILLs, same bits; {repeated} steps done again, "
        f"{time.monotonic() - begun:.0f} s"
    )
    # A kill costs no more than the interval between two saves, and one that was being written.
    assert repeated <= kills * 2 * 5


@pytest.mark.long
def test_killed_workers_are_restarted_and_end_with_the_same_bits(tmp_path: Path) -> None:
    check_kills("multi_worker", tmp_path, 2, "--epochs", "7")


@pytest.mark.long
@pytest.mark.parametrize("strategy", WORKERS)
def test_twenty_kills(strategy: str, tmp_path: Path) -> None:
    check_kills(strategy, tmp_path, 20, "--epochs", "45")


@pytest.mark.long
def test_two_hosts_each_with_its_own_supervisor(tmp_path: Path) -> None:
    """A worker is killed; its peer fails, both are started again, and meet."""
    options = ("multi_worker", str(tmp_path / "run"), "--epochs", "12")
    expected = untouched("multi_worker", tmp_path / "untouched", *options[2:])
    (tmp_path / "run").mkdir()
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    command = [sys.executable, "-m", "kfit", "run", "--max-restarts", "5", str(PROGRAM)]
    with contextlib.ExitStack() as stack:
        hosts = []
        for index in range(2):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            log = stack.enter_context(open(tmp_path / "run" / f"output-{index}", "wb"))
            hosts.append(
                subprocess.Popen(
                    [*command, *options, "--pause", "0.02"],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": json.dumps(task)},
                )
            )
            stack.callback(hosts[-1].wait)
            stack.callback(hosts[-1].kill)
        for host in (1, 0):
            assert wait_for_steps(
                tmp_path / "run", len(steps_taken(tmp_path / "run")) + 25, hosts[0]
            )
            tasks_of(hosts[host])[0].send_signal(signal.SIGKILL)
        codes = [host.wait(DEADLINE) for host in hosts]
    said = [(tmp_path / "run" / f"output-{index}").read_text() for index in range(2)]
    assert codes == [0, 0], said
    assert all(f"DIGEST {expected}" in text for text in said)


def terminate(strategy: str, folder: Path, steps: int, *options: str) -> int:
    """Sends one run SIGTERM after some steps; returns how many steps were lost."""
    before = len(steps_taken(folder))
    with started(strategy, folder, *options) as process:
        if not wait_for_steps(folder, before + steps, process):
            assert process.wait() == 0, output(folder)[-5000:]
            return 0
        process.send_signal(signal.SIGTERM)
        code = code_of(process, folder)
    assert code == 143, output(folder)[-5000:]
    return steps_taken(folder)[-1] - newest_step(folder)


@pytest.mark.long
def test_fifty_preemptions_lose_no_step(tmp_path: Path) -> None:
    options = ("--epochs", "80", "--save-freq", "100000")
    expected = untouched("one_device", tmp_path / "untouched", *options)
    draw = random.Random(2)
    lost = [
        terminate("one_device", tmp_path / "run", draw.randint(1, 12), *options, "--pause", "0.005")
        for _ in range(50)
    ]
    assert lost == [0] * 50
    assert untouched("one_device", tmp_path / "run", *options) == expected
    taken = steps_taken(tmp_path / "run")
    assert taken == list(range(1, len(taken) + 1))
    print(f"50 SIGTERMs: {sum(lost)} steps lost, none taken twice")


@pytest.mark.long
def test_preempted_workers_lose_no_step(tmp_path: Path) -> None:
    options = ("--epochs", "20", "--save-freq", "100000")
    expected = untouched("multi_worker", tmp_path / "untouched", *options)
    draw = random.Random(3)
    for _ in range(8):
        steps = draw.randint(1, 12)
        assert terminate("multi_worker", tmp_path / "run", steps, *options, "--pause", "0.01") == 0
    assert untouched("multi_worker", tmp_path / "run", *options) == expected
    taken = steps_taken(tmp_path / "run")
    assert taken == list(range(1, len(taken) + 1))


@pytest.mark.long
def test_every_kind_of_state_survives_a_kill(tmp_path: Path) -> None:
    """Of data, layers, callbacks and validation; killed by SIGKILL, and started again."""
    program = Path(__file__).parent / "programs" / "with_state.py"

    def run(folder: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(program), str(folder)],
            env={**os.environ, "KILL_AT": str(kill_at), "TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    expected = run(tmp_path / "untouched", 0).stdout
    assert "DIGEST" in expected
    for step in random.Random(3).sample(range(1, 31), 5):
        folder = tmp_path / str(step)
        assert run(folder, step).returncode == -signal.SIGKILL
        again = run(folder, 0)
        assert expected in again.stdout, (step, again.stderr[-3000:])


RESUMES = Path(__file__).parent / "programs" / "resumes.py"


def resume(folder: Path, *options: str) -> str:
    """Runs the training in `folder`; what it printed. With options it must have killed itself."""
    ended = subprocess.run(
        [sys.executable, str(RESUMES), str(folder), *options],
        env={k: v for k, v in os.environ.items() if not k.startswith("KFIT_")},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == (-signal.SIGKILL if options else 0), ended.stderr[-3000:]
    return ended.stdout


def snapshots_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The content of each file of the snapshots, and when it was changed."""
    paths = sorted(folder.glob("g*-step-*/*"))
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


@pytest.mark.long
@pytest.mark.parametrize(
    "places",
    [
        pytest.param([0.7, 0.3], id="two"),
        pytest.param([i / 16 for i in range(1, 16)], id="many"),
    ],
)
def test_a_kill_while_training_resumes_and_another_in_the_next_start(
    tmp_path: Path, places: list[float]
) -> None:
    """Whatever was read, decided or set by then: the snapshots stay as they are."""
    folder = tmp_path / "backup"
    untouched = re.findall(r"UNTOUCHED (\w+)", resume(folder, "--step", "8"))
    before = snapshots_in(folder)
    assert sorted(before) == sorted(
        f"g0001-0000000{number}-step-{3 * number}/{file}"
        for number in (1, 2)
        for file in ("arrays.h5", "manifest.json", "state.json")
    )
    (calls,) = re.findall(r"CALLS (\d+)", resume(folder, "--calls", str(10**9)))
    assert snapshots_in(folder) == before
    for place in places:
        said = resume(folder, "--calls", str(int(place * int(calls))))
        assert "CALLS" not in said
        assert snapshots_in(folder) == before, f"killed at {place} of {calls} calls"
    said = resume(folder)
    assert f"going on from {folder}, step 6" in said
    assert re.findall(r"DIGEST (\w+)", said) == untouched
    assert not folder.exists(), "something was left over"


README = Path(__file__).parents[1] / "README.md"
TEN_LINES = Path(__file__).parent / "programs" / "ten_lines.py"
INTERVAL = 24
"""Steps of an epoch of the README's program."""


def ten_lines(folder: Path, save_freq: str, killed_after: float | None = None) -> float:
    """Runs the README's program, and kills it after some seconds; returns how long it ran."""
    folder.mkdir(exist_ok=True)
    begun = time.monotonic()
    with open(folder / "output", "ab") as out:
        process = subprocess.Popen(
            [sys.executable, str(TEN_LINES), str(README), str(folder), save_freq],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if not k.startswith("KFIT_")},
        )
        try:
            code = process.wait(DEADLINE if killed_after is None else killed_after)
            assert code == 0, output(folder)[-5000:]
        except subprocess.TimeoutExpired:
            assert killed_after is not None, output(folder)[-5000:]
        finally:
            process.kill()
            process.wait()
    return time.monotonic() - begun


def steps_in_all(folder: Path) -> int:
    """Steps taken over all lives; an execution that was killed has not written its own down."""
    path = folder / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(after) - int(before) for before, after in map(str.split, lines))


@pytest.mark.long
@pytest.mark.parametrize("save_freq", ["auto", "epoch"])
def test_the_ten_lines_of_the_readme_killed_at_any_moment(save_freq: str, tmp_path: Path) -> None:
    """They save by "auto", so every few seconds; after each epoch, few steps are done again."""
    seconds = ten_lines(tmp_path / "untouched", save_freq)
    expected = digest_of_ten_lines(tmp_path / "untouched")
    steps = steps_in_all(tmp_path / "untouched")
    assert not (tmp_path / "untouched" / "backup").exists()
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    again = []
    for number in range(10):
        folder = tmp_path / str(number)
        ten_lines(folder, save_freq, draw.uniform(0, seconds))
        if "DIGEST" in output(folder) and not (folder / "backup").exists():
            again.append(0)  # its process had come to its end
            continue
        ten_lines(folder, save_freq)
        assert digest_of_ten_lines(folder) == expected, f"seed {seed}, kill {number}"
        again.append(max(0, steps_in_all(folder) - steps))
        assert not (folder / "backup").exists()
    print(f"{len(again)} SIGKILLs within {seconds:.0f} s (seed {seed}): steps done again: {again}")
    if save_freq == "epoch":
        # Those of one interval, and those that were taken while the last snapshot was written.
        assert max(again) <= 2 * INTERVAL


def digest_of_ten_lines(folder: Path) -> str:
    return re.findall(r"DIGEST (\w+)", output(folder))[-1]
