import gc
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfit.supervisor import output as output_module
from kfit.supervisor import process_group as generation_module
from kfit.supervisor.policy import SupervisorPolicy
from kfit.supervisor.process_group import TaskCommand, TaskExit
from kfit.supervisor.reaper import Reaper, watch
from kfit.supervisor.supervisor import Supervisor
from tests.sweeps import only

# Many times what starting or ending a tiny process takes.
SOON = 20.0


def task(name: str, code: str, *args: object) -> TaskCommand:
    argv = (sys.executable, "-S", "-c", textwrap.dedent(code), *map(str, args))
    return TaskCommand(name, argv, {**os.environ, "PYTHONUNBUFFERED": "1"})


def supervise(*tasks: TaskCommand, grace: float = SOON) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = Supervisor(lambda: tasks, grace=grace, stdout=stdout, stderr=stderr).run()
    return code, stdout.getvalue(), stderr.getvalue()


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


FINE = "print('fine')"
FAILS = "import sys; sys.exit(3)"
SLEEPS = "import time; time.sleep(600)"
STUBBORN = """
    import signal, time
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    print("ready")
    time.sleep(600)
"""


def test_all_succeed() -> None:
    code, out, err = supervise(task("worker 0", FINE), task("worker 1", FINE))
    assert code == 0
    assert sorted(out.splitlines()) == ["[worker 0] fine", "[worker 1] fine"]
    assert err == ""


@pytest.mark.parametrize("module", ["io", "ipykernel.iostream"])
def test_where_there_is_no_terminal_a_long_start_is_told(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    for name in ("_QUIET", "_QUIET_FILE"):
        monkeypatch.setattr(output_module, name, 0.2)
    streams = type("Stream", (io.StringIO,), {"__module__": module})
    stdout, stderr = streams(), streams()
    sleeper = task("worker 0", "import time; time.sleep(3)")
    assert Supervisor(lambda: [sleeper], stdout=stdout, stderr=stderr).run() == 0
    told, other = (stderr, stdout) if module == "io" else (stdout, stderr)
    assert re.fullmatch(r"kfit: worker 0 is starting \([12] s\)\n", told.getvalue())
    assert other.getvalue() == ""


def test_start_up_messages_of_tensorflow_are_left_out_unless_all_are_wanted() -> None:
    code = """
        import sys
        print("E0000 00:00:1.2 3 cuda_platform.cc:52] failed call to cuInit: X", file=sys.stderr)
        print("mine", file=sys.stderr)
    """
    quiet = task("worker 0", code)
    loud = replace(quiet, env={**quiet.env, "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert supervise(quiet)[2].splitlines() == ["[worker 0] mine"]
    assert len(supervise(loud)[2].splitlines()) == 2


def test_one_fails_and_all_end() -> None:
    begin = time.monotonic()
    code, _, err = supervise(task("worker 0", SLEEPS), task("worker 1", FAILS))
    assert code == 3
    assert err.splitlines() == [
        "kfit: worker 1 ended with exit code 3; stopping worker 0",
        "kfit: error: worker 1 ended with exit code 3",
    ]
    assert time.monotonic() - begin < SOON


def test_the_report_names_the_first_cause_and_its_last_words() -> None:
    code, _, err = supervise(
        task("worker 0", "import time; time.sleep(600)"),
        task("worker 1", "print('before'); raise ValueError('no such thing')"),
    )
    assert code == 1
    report = err.splitlines()
    assert report.count("[worker 1] Traceback (most recent call last):") == 1
    assert sum("Traceback" in line for line in report) == 1
    assert report[-1] == "kfit: error: worker 1 ended with exit code 1: ValueError: no such thing"


def test_killed_by_a_signal() -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    code, _, err = supervise(task("worker 0", suicide), task("worker 1", SLEEPS))
    assert code == 128 + signal.SIGKILL
    assert "kfit: error: worker 0 was killed by SIGKILL" in err.splitlines()[-1]


def test_the_exit_code_is_that_of_the_first_failure(tmp_path: Path) -> None:
    follows = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        open(sys.argv[1], "w").close()
        time.sleep(600)
    """
    waits = """
        import os, sys, time
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        sys.exit(4)
    """
    flag = tmp_path / "up"
    code, _, err = supervise(task("worker 0", follows, flag), task("worker 1", waits, flag))
    assert code == 4
    assert err.splitlines()[-1] == "kfit: error: worker 1 ended with exit code 4"


def test_a_task_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    stubborn = STUBBORN.replace('print("ready")', 'open(__import__("sys").argv[1], "w").close()')
    waits = """
        import os, sys, time
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        sys.exit(4)
    """
    flag = tmp_path / "up"
    begin = time.monotonic()
    code, _, err = supervise(
        task("worker 0", stubborn, flag), task("worker 1", waits, flag), grace=0.5
    )
    assert 0.5 <= time.monotonic() - begin < SOON
    assert code == 4
    assert re.search(r"kfit: killed \d+\.\d s after the request to stop: worker 0", err)


def test_output_is_whole_lines_with_the_task_before_each() -> None:
    chatter = """
        import sys
        for i in range(2000):
            print(sys.argv[1] * 100, file=(sys.stdout, sys.stderr)[i % 2])
        print("no end", end="")
    """
    code, out, err = supervise(
        task("worker 0", chatter, "a"), task("worker 1", chatter, "b"), task("ps 0", chatter, "c")
    )
    assert code == 0
    wanted = {f"[{n}] {c * 100}" for n, c in [("worker 0", "a"), ("worker 1", "b"), ("ps 0", "c")]}
    assert set(err.splitlines()) == wanted
    rest = [line for line in out.splitlines() if line not in wanted]
    assert sorted(rest) == ["[ps 0] no end", "[worker 0] no end", "[worker 1] no end"]
    assert len(out.splitlines()) == 3003


def test_a_program_that_cannot_be_started() -> None:
    missing = TaskCommand("worker 1", ("/no/such/program",), dict(os.environ))
    begin = time.monotonic()
    code, _, err = supervise(task("worker 0", SLEEPS), missing)
    assert time.monotonic() - begin < SOON
    assert code == 127
    assert err.splitlines()[-1].startswith(
        "kfit: error: worker 1 could not be started: /no/such/program: No such file"
    )


@pytest.mark.parametrize("left", only([0, 5], range(6)))
def test_tasks_that_cannot_be_watched_are_killed(
    monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """The system has threads for what prints, but not for all that watch the two tasks."""
    pids, start, spawn = [], threading.Thread.start, generation_module.Generation._spawn

    def spawned(tasks: Any, command: TaskCommand) -> Any:
        process = spawn(tasks, command)
        pids.append(process.pid)
        return process

    def start_some(thread: threading.Thread) -> None:
        if len(pids) == 2:
            if len(started) == left:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    started: list[threading.Thread] = []
    before = set(os.listdir("/proc/self/fd")) if Path("/proc").exists() else set()
    monkeypatch.setattr(generation_module.Generation, "_spawn", spawned)
    monkeypatch.setattr(threading.Thread, "start", start_some)
    code, _, err = supervise(task("worker 0", SLEEPS), task("worker 1", SLEEPS))
    assert code == 127
    name = "worker 0" if left < 3 else "worker 1"
    assert err.endswith(f"kfit: error: {name} could not be watched: can't start new thread\n")
    assert len(pids) == 2
    assert all(map(is_gone, pids))
    for thread in started:
        thread.join(SOON)
    assert not before or set(os.listdir("/proc/self/fd")) == before


def test_what_a_task_leaves_behind_ends_with_it() -> None:
    leaves = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        print(child.pid)
    """
    begin = time.monotonic()
    code, out, _ = supervise(task("worker 0", leaves))
    assert code == 0
    assert time.monotonic() - begin < SOON
    left = int(out.split()[-1])
    wait_until(lambda: is_gone(left), "the left process is gone")


def test_the_group_of_a_task_is_killed_before_its_number_can_be_another_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as the task is a zombie, the system gives its number to nobody."""
    seen: list[tuple[str, str]] = []
    killpg, remove = os.killpg, Reaper.remove

    def look(what: str, group: int) -> None:
        try:
            seen.append((what, psutil.Process(group).status()))
        except psutil.NoSuchProcess:
            seen.append((what, "reaped"))

    def kills(group: int, signum: int) -> None:
        look("killed", group)
        killpg(group, signum)

    def removes(reaper: Reaper, group: int) -> None:
        look("removed", group)
        remove(reaper, group)

    monkeypatch.setattr(os, "killpg", kills)
    monkeypatch.setattr(Reaper, "remove", removes)
    assert supervise(task("worker 0", FINE), task("worker 1", FINE))[0] == 0
    zombie = psutil.STATUS_ZOMBIE
    assert sorted(seen) == [("killed", zombie)] * 2 + [("removed", zombie)] * 2


def test_the_reaper_ends_at_the_farewell_though_another_process_holds_its_pipe() -> None:
    reading, writing = os.pipe()
    with open(reading) as lines, open(writing, "w") as others:
        others.write("+1\n-1\nthe supervisor lives\n")
        others.flush()
        reaper = threading.Thread(target=watch, args=(lines, ()), daemon=True)
        reaper.start()
        reaper.join(60)
        has_ended = not reaper.is_alive()
        others.close()  # which ends the thread otherwise
        reaper.join(60)
    assert has_ended


def test_the_reaper_notices_a_kill_of_the_supervisor_that_a_forked_process_outlives(
    tmp_path: Path,
) -> None:
    program = """
        import os, signal, sys, time
        from kfit.supervisor.reaper import Reaper
        reaper = Reaper(sys.argv[1])
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    folder = tmp_path / "folder"
    folder.mkdir()
    run = [sys.executable, "-c", textwrap.dedent(program), str(folder)]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        try:
            deadline = time.monotonic() + 60
            while folder.exists():
                assert time.monotonic() < deadline, "the reaper waits for the forked process"
                time.sleep(0.02)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.long
def test_the_end_of_a_task_is_found_within_half_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the last thing that a task does until the supervisor decides what follows."""
    # All tasks wait until all of them have started, however long it takes on a busy host. From then
    # on one ends every 20 ms.
    ends = """
        import os, sys, time
        ready, file, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
        with open(f"{ready}/.{index}", "w") as started:
            started.write(repr(time.monotonic()))
        os.rename(f"{ready}/.{index}", f"{ready}/{index}")
        while len(started := [n for n in os.listdir(ready) if n[0] != "."]) < 50:
            time.sleep(0.1)
        begin = max(float(open(f"{ready}/{name}").read()) for name in started) + 2.0
        time.sleep(max(0, begin + 0.02 * index - time.monotonic()))
        with open(file, "w") as file:
            file.write(repr(time.monotonic()))
        os._exit(0)
    """
    found, handle = {}, SupervisorPolicy.handle

    def handles(policy: Any, event: Any) -> None:
        if isinstance(event, TaskExit):
            found[event.name] = time.monotonic()
        handle(policy, event)

    monkeypatch.setattr(SupervisorPolicy, "handle", handles)
    (ready := tmp_path / "ready").mkdir()
    names = [f"worker {index}" for index in range(50)]
    tasks = [task(n, ends, ready, tmp_path / n, i) for i, n in enumerate(names)]
    assert supervise(*tasks) == (0, "", "")
    seconds = sorted(found[name] - float((tmp_path / name).read_text()) for name in names)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"the end of a task is found after {1000 * seconds[25]:.1f} ms (median),", end=" ")
    print(f"{1000 * seconds[-1]:.1f} ms (the slowest of 50); load {load:.1f} a core")
    assert seconds[0] >= 0.0
    # The slowest may have waited for other programs that use the cores.
    assert seconds[25] < 0.5
    assert seconds[-1] < 60.0


def test_leaves_no_thread_no_file_and_no_handler_behind() -> None:
    supervise(task("worker 0", FINE))
    handler = signal.getsignal(signal.SIGTERM)
    me = psutil.Process()
    gc.collect()  # what other tests have left may go at any time
    threads, files = threading.active_count(), me.num_fds()
    for _ in range(3):
        supervise(task("worker 0", FINE), task("worker 1", FAILS))
    assert signal.getsignal(signal.SIGTERM) is handler
    assert threading.active_count() <= threads
    assert me.num_fds() <= files
    assert [child for child in me.children() if not is_gone(child.pid)] == []


@pytest.mark.long
def test_runs_in_another_thread_too() -> None:
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(supervise(task("worker 0", SLEEPS), task("w", FAILS))[0])
    )
    thread.start()
    thread.join(SOON)
    assert codes == [3]


# From here on the supervisor is a process of its own, which gets the signals.

DRIVER = """
    import json, os, sys
    from kfit.supervisor.process_group import TaskCommand
    from kfit.supervisor.supervisor import Supervisor
    grace, codes = json.loads(sys.argv[1])
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    tasks = [
        TaskCommand(f"worker {i}", (sys.executable, "-S", "-c", code), env)
        for i, code in enumerate(codes)
    ]
    raise SystemExit(Supervisor(lambda: tasks, grace=grace).run())
"""


class Driver:
    """A supervisor in a process of its own, and the lines its tasks have written."""

    def __init__(self, *codes: str, grace: float = SOON, prepare: str = "") -> None:
        argument = json.dumps([grace, [textwrap.dedent(code) for code in codes]])
        self.process = subprocess.Popen(
            [sys.executable, "-c", prepare + textwrap.dedent(DRIVER), argument],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Whoever runs the tests may have them ignore signals; then the tasks would as well.
            preexec_fn=lambda: (
                [signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGINT, signal.SIGHUP)]
                and None
            ),
        )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout

    def read(self, count: int) -> list[str]:
        return [self.stdout.readline().strip() for _ in range(count)]

    def end(self) -> tuple[int, list[str], str]:
        out, err = self.process.communicate(timeout=SOON)
        return self.process.returncode, out.splitlines(), err


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    with ExitStack() as ended:

        def start(*codes: str, **options: Any) -> Driver:
            driver = Driver(*codes, **options)
            ended.callback(driver.stdout.close)
            ended.callback(driver.process.wait)
            ended.callback(driver.process.kill)
            return driver

        yield start


REPORTS_SIGNALS = """
    import signal, sys, time
    def handle(signum, frame):
        print("got", signal.Signals(signum).name)
        sys.exit(CODE)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, handle)
    print("ready")
    # A signal just before a long sleep would be handled after it.
    while True:
        time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("task_code", "signum"),
    only(
        [(0, signal.SIGINT), (75, signal.SIGTERM)],
        itertools.product([0, 75], [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]),
    ),
)
def test_signals_are_passed_on(drive: Any, signum: signal.Signals, task_code: int) -> None:
    driver = drive(*[REPORTS_SIGNALS.replace("CODE", str(task_code))] * 2)
    assert sorted(driver.read(2)) == ["[worker 0] ready", "[worker 1] ready"]
    driver.process.send_signal(signum)
    code, out, err = driver.end()
    assert sorted(out) == [f"[worker 0] got {signum.name}", f"[worker 1] got {signum.name}"]
    # A run that was stopped is no success, even if its tasks say so.
    assert code == (task_code or 128 + signum)
    assert f"kfit: {signum.name}: stopping the tasks" in err
    assert err.splitlines()[-1].startswith(f"kfit: stopped by {signum.name}")


def test_a_signal_that_the_tasks_do_not_handle(drive: Any) -> None:
    driver = drive("print('ready'); import time; time.sleep(600)")
    driver.read(1)
    driver.process.send_signal(signal.SIGTERM)
    code, _, err = driver.end()
    assert code == 128 + signal.SIGTERM
    assert err.splitlines()[-1] == "kfit: stopped by SIGTERM"


def test_a_second_ctrl_c_kills(drive: Any) -> None:
    driver = drive(STUBBORN, STUBBORN, grace=600.0)
    driver.read(2)
    driver.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        driver.process.wait(0.5)
    driver.process.send_signal(signal.SIGINT)
    code, _, err = driver.end()
    assert code == 128 + signal.SIGKILL
    assert "after the request to stop: worker 0, worker 1" in err
    assert "kfit: stopped by SIGINT" in err.splitlines()[-1]


@pytest.mark.long
def test_a_second_sigterm_is_harmless(drive: Any) -> None:
    saves = """
        import signal, sys, time
        def save(signum, frame):
            print("saving")
            deadline = time.monotonic() + 0.5
            while time.monotonic() < deadline:
                time.sleep(0.01)
            print("saved")
            sys.exit(75)
        def handle(signum, frame):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            save(signum, frame)
        signal.signal(signal.SIGTERM, handle)
        print("ready")
        while True:
            time.sleep(0.02)
    """
    driver = drive(saves)
    driver.read(1)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.read(1) == ["[worker 0] saving"]
    driver.process.send_signal(signal.SIGTERM)
    code, out, _ = driver.end()
    assert out == ["[worker 0] saved"]
    assert code == 75


@pytest.mark.long
def test_tasks_that_ignore_a_signal_are_killed_after_the_grace_period(drive: Any) -> None:
    driver = drive(STUBBORN, grace=0.5)
    driver.read(1)
    driver.process.send_signal(signal.SIGTERM)
    code, _, err = driver.end()
    assert code == 128 + signal.SIGKILL
    assert "after the request to stop: worker 0" in err


@pytest.mark.long
def test_nohup_is_respected(drive: Any) -> None:
    prepare = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    driver = drive("print('ready'); import time; time.sleep(0.5)", prepare=prepare)
    driver.read(1)
    driver.process.send_signal(signal.SIGHUP)
    assert driver.end()[0] == 0


@pytest.mark.long
def test_a_parent_that_ignored_the_ends_of_children_is_not_felt(drive: Any) -> None:
    prepare = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    code, _, err = drive(FAILS, SLEEPS, prepare=prepare).end()
    assert code == 3
    assert err.endswith("kfit: error: worker 0 ended with exit code 3\n")


@pytest.mark.long
def test_a_process_without_stdout_runs_its_tasks(drive: Any, tmp_path: Path) -> None:
    flag = tmp_path / "done"
    prepare = "import sys; sys.stdout = None\n"
    driver = drive(f"print(1); open({str(flag)!r}, 'w').close()", prepare=prepare)
    assert driver.end() == (0, [], "")
    assert flag.exists()


HAS_A_CHILD = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print(os.getpid(), child.pid)
    time.sleep(600)
"""
WITHOUT_WATCHER = "import kfit.supervisor.reaper as m; m.Reaper._tell = lambda *_: None\n"
WITHOUT_PDEATHSIG = (
    "import kfit.supervisor.process_group as module; module._end_with_parent = lambda: None\n"
)


@pytest.mark.parametrize(
    ("prepare", "survivors"),
    [
        pytest.param("", 0, marks=pytest.mark.long),
        pytest.param(
            WITHOUT_WATCHER,
            2,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel"),
        ),
        (WITHOUT_PDEATHSIG, 0),
    ],
    ids=["both", "kernel alone", "reaper alone"],
)
def test_no_task_outlives_a_killed_supervisor(drive: Any, prepare: str, survivors: int) -> None:
    driver = drive(HAS_A_CHILD, HAS_A_CHILD, prepare=prepare)
    found = [re.findall(r"\d+", line.partition("]")[2]) for line in driver.read(2)]
    tasks, children = ([int(pair[i]) for pair in found] for i in (0, 1))
    driver.process.kill()
    wait_until(lambda: all(map(is_gone, tasks)), "the tasks are gone")
    if not survivors:
        wait_until(lambda: all(map(is_gone, children)), "what the tasks have started is gone")
    for pid in children:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_child_whose_parent_died_before_it_was_bound_ends() -> None:
    bind = generation_module._end_with_parent()
    assert bind is not None
    pid = os.fork()
    if pid == 0:
        # This child is the parent of another that believes in somebody else.
        grandchild = os.fork()
        if grandchild == 0:
            bind()
            os._exit(0)
        _, status = os.waitpid(grandchild, 0)
        os._exit(7 if os.WIFSIGNALED(status) else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.long
def test_a_reader_that_has_gone_stops_no_task(drive: Any, tmp_path: Path) -> None:
    flag = tmp_path / "done"
    driver = drive(f"for i in range(100000): print(i)\nopen({str(flag)!r}, 'w').close()")
    driver.read(1)
    driver.stdout.close()
    driver.process.wait(SOON)
    assert flag.exists()


TALKS = """
    import os, signal, sys
    count = 0
    def handle(signum, frame):
        with open(FLAG + ".talker", "w") as file:
            file.write(str(count))
        sys.exit(143)
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while count < 20000:
        os.write(1, b"%98d\\n" % count)
        count += 1
"""
IS_QUIET = """
    import signal, sys, time
    def handle(signum, frame):
        with open(FLAG, "w"):
            if signum == signal.SIGTERM:
                sys.exit(143)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, handle)
    time.sleep(WAIT)
    handle(0, None)
    while not WAIT < 100:
        time.sleep(0.02)
    sys.exit(3)
"""


@pytest.mark.parametrize(
    "event", only([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT, "failure"])
)
def test_signals_and_failures_are_acted_on_while_nobody_reads(
    drive: Any, tmp_path: Path, event: Any
) -> None:
    """The pipes are full, so the threads that print wait; whoever reads in the end gets all."""
    flag, talker = tmp_path / "flag", tmp_path / "flag.talker"
    is_failure = event == "failure"
    codes = [
        f"FLAG, WAIT = {str(flag)!r}, {2.0 if is_failure else 600.0}\n" + textwrap.dedent(code)
        for code in (TALKS, IS_QUIET)
    ]
    driver = drive(*codes, grace=5.0)
    time.sleep(2.0)
    if not is_failure:
        driver.process.send_signal(event)
    wait_until(flag.exists, "the quiet task has got the signal, or failed")
    if event == signal.SIGINT:
        driver.process.send_signal(event)  # kills them
        wait_until(lambda: not psutil.Process(driver.process.pid).children(), "none is left")
    else:
        wait_until(talker.exists, "the other one was stopped")
    code, out, err = driver.end()
    numbers = [int(line.removeprefix("[worker 0] ")) for line in out]
    assert numbers == list(range(len(numbers)))
    expected = {signal.SIGTERM: 143, signal.SIGINT: 137, "failure": 3}
    if event != signal.SIGINT:
        assert len(numbers) == int(talker.read_text())
    assert code == expected[event]
    lines = err.splitlines()
    assert len(numbers) > 1000
    first = "worker 1 ended with exit code 3" if is_failure else f"{event.name}: stopping the tasks"
    assert first in lines[0]
    assert len(lines) > 1


@pytest.mark.long
def test_a_run_that_a_signal_ends_does_not_wait_for_a_reader_for_ever(
    drive: Any, tmp_path: Path
) -> None:
    sooner = """if True:
        from kfit.supervisor import process_group, supervisor
        process_group._DRAIN_UNREAD = supervisor._AWAIT_READER_AFTER_SIGNAL = 0.2
    """
    flag = tmp_path / "flag"
    talker = f"FLAG = {str(flag)!r}\n" + textwrap.dedent(TALKS)
    driver = drive(talker, SLEEPS, prepare=sooner + "\n")
    time.sleep(2.0)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(SOON) == 143
    driver.process.stdout.close()
