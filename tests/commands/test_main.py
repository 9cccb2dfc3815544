import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kfit.commands.main import main
from kfit.supervisor.local import free_ports
from tests.sweeps import only, sweep

SOON = 20.0
KFIT = [sys.executable, "-m", "kfit.commands.main"]
TWO = {"worker": ["localhost:23456", "localhost:23457"]}


def environment(**changed: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return {**kept, **changed}


def kfit(
    *arguments: str, cwd: Path | None = None, **changed: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KFIT, *arguments],
        env=environment(**changed),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SOON,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program that says who it is and what it was given."""
    path = tmp_path / "train.py"
    path.write_text(
        "import json, os, sys\n"
        "task = json.loads(os.environ.get('TF_CONFIG', '{}')).get('task')\n"
        "print(json.dumps([task, sys.argv[1:]]))\n"
    )
    return path


def test_help_and_version() -> None:
    shown = kfit("--help")
    assert shown.returncode == 0
    assert "run" in shown.stdout
    assert kfit("run", "--help").stdout.startswith("usage: kfit run [-h] [--workers N]")
    assert kfit("help").stdout == kfit().stdout == shown.stdout
    assert kfit("help", "manifest", "slurm").stdout.startswith("usage: kfit manifest slurm")
    for option in ("--version", "-V"):
        version = kfit(option)
        assert version.returncode == 0
        assert version.stdout.startswith("kfit ")
    alone = kfit()
    assert (alone.returncode, alone.stdout) == (0, shown.stdout)


def test_python_m_kfit(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kfit", "run", str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert (done.returncode, done.stdout) == (0, "[null, []]\n")


def test_help_is_quick() -> None:
    times = []
    for _ in range(3):
        begin = time.monotonic()
        kfit("--help")
        times.append(time.monotonic() - begin)
    # 0.08 s on an idle machine.
    assert min(times) < 1.0


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "{script}"], ["run", "--workers", "2", "--no-join", "{script}"]],
)
def test_never_imports_anything_heavy(script: Path, arguments: Sequence[str]) -> None:
    code = (
        "import sys\n"
        "from kfit.commands.main import main\n"
        "code = main(sys.argv[1:])\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "assert not names & {'tensorflow', 'keras', 'numpy', 'h5py'}, names\n"
        "raise SystemExit(code)\n"
    )
    given = [argument.format(script=script) for argument in arguments]
    subprocess.run(
        [sys.executable, "-c", code, *given],
        env=environment(),
        check=True,
        capture_output=True,
        timeout=SOON,
    )


def test_one_worker_is_as_if_run_by_python(script: Path) -> None:
    done = kfit("run", str(script), "--lr", "0.1", "-m", "--workers=7")
    assert done.returncode == 0
    assert json.loads(done.stdout) == [None, ["--lr", "0.1", "-m", "--workers=7"]]
    assert done.stderr.splitlines() == [
        f"kfit: note: `--workers=7` is passed to {script}, since it stands after it; options of "
        f"`kfit run` come before the script: `kfit run --workers=7 {script} --lr 0.1 -m`"
    ]
    assert kfit("run", str(script), "--lr", "0.1").stderr == ""


@pytest.mark.long
def test_streams_that_are_closed_are_empty(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import os\nfor i in range(2000): print(i)\nos.fstat(0)\nos.fstat(2)\n")
    for options in ("", "--workers 2 --no-join"):
        command = f"exec {sys.executable} -m kfit run {options} {program} <&- >&- 2>{tmp_path}/err"
        done = subprocess.run(["sh", "-c", command], env=environment(), timeout=SOON)
        assert done.returncode == 0, (tmp_path / "err").read_text()
        assert "Traceback" not in (tmp_path / "err").read_text()


def test_the_only_task_has_the_stdin(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import sys\nprint(repr(sys.stdin.read()))\n")
    for options, expected in (([], "'typed'\n"), (["--workers=2", "--no-join"], "''\n")):
        done = subprocess.run(
            [*KFIT, "run", *options, str(program)],
            env=environment(),
            input="typed",
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        assert done.returncode == 0, done.stderr
        assert all(line.endswith(expected) for line in done.stdout.splitlines(keepends=True))


def test_the_only_task_can_ask_in_a_terminal(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print(repr(input('name? ')))\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*KFIT, "run", str(program)], environment())
    shown = b""
    try:
        while b"name? " not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"me\n")
        while b"'me'" not in shown:
            shown += os.read(terminal, 1000)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(terminal)


def test_wrong_settings_are_refused_before_any_task_is_started(script: Path) -> None:
    for changed, word in (
        ({"KFIT_SECRET": "short", "TF_CONFIG": GOOD_CONFIG}, "`KFIT_SECRET` has 5 characters"),
        ({"KFIT_START_TIMEOUT": "abc", "TF_CONFIG": GOOD_CONFIG}, "Got: 'abc'"),
    ):
        done = kfit("run", "--max-restarts", "3", str(script), **changed)
        assert (done.returncode, done.stdout) == (2, "")
        [line] = done.stderr.splitlines()
        assert word in line


@pytest.mark.long
def test_the_cpu_is_split_for_a_single_process(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import kfit, keras, sys\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "print(sys.argv[1:], kfit.Trainer(model).num_replicas)\n"
    )
    command = [*KFIT, "run", "--cpus", "3", str(path), "a"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "kfit: strategy 'auto' chose 'mirrored': `kfit run --cpus 3` has split the CPU.",
        "['a'] 3",
    ]


@pytest.mark.parametrize(
    "options",
    only([["--workers", "2"]], [["--workers", "2"], ["--workers=2"], ["--workers", "2", "--"]]),
)
def test_workers(script: Path, options: Sequence[str]) -> None:
    done = kfit("run", "--no-join", *options, str(script), "a", "--b")
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "kfit: starting 2 workers on this host"
    assert sorted(done.stdout.splitlines()) == [
        f'[worker {i}] [{{"type": "worker", "index": {i}}}, ["a", "--b"]]' for i in (0, 1)
    ]


def test_the_processes_of_the_workers_are_told_so_that_one_can_be_killed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os; print(os.getpid())")
    done = kfit("run", "--workers", "2", "--no-join", str(script))
    pids = dict(re.findall(r"\[(worker \d)\] (\d+)", done.stdout))
    told = ", ".join(f"{task} is process {pids[task]}" for task in ("worker 0", "worker 1"))
    assert done.stderr.splitlines() == ["kfit: starting 2 workers on this host", f"kfit: {told}"]


def test_module(script: Path) -> None:
    done = kfit(
        "run", "--workers", "2", "--no-join", "-m", "train", "--lr", "0.1", cwd=script.parent
    )
    assert done.returncode == 0
    assert '[worker 1] [{"type": "worker", "index": 1}, ["--lr", "0.1"]]' in done.stdout


def test_the_task_of_a_cluster(script: Path) -> None:
    config = json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 1}})
    done = kfit("run", "--no-join", str(script), TF_CONFIG=config)
    assert done.returncode == 0
    assert done.stdout == '[worker 1] [{"type": "worker", "index": 1}, []]\n'


@pytest.mark.parametrize("listed", sweep([{}, {"evaluator": ["localhost:23458"]}]))
def test_the_evaluator_of_a_cluster(script: Path, listed: dict[str, list[str]]) -> None:
    config = json.dumps({"cluster": {**TWO, **listed}, "task": {"type": "evaluator", "index": 0}})
    done = kfit("run", str(script), TF_CONFIG=config)
    assert done.returncode == 0
    assert done.stdout == '[evaluator 0] [{"type": "evaluator", "index": 0}, []]\n'


def test_an_evaluator_is_not_started_twice(script: Path) -> None:
    config = json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 1}})
    done = kfit("run", "--evaluator", str(script), TF_CONFIG=config)
    assert done.returncode == 2
    assert "`--evaluator` is given, but TF_CONFIG already describes a cluster" in done.stderr


def test_exit_code_and_report(script: Path) -> None:
    script.write_text("import sys; print('bad news', file=sys.stderr); sys.exit(9)")
    done = kfit("run", "--workers", "2", "--no-join", "--grace", "1", str(script))
    assert done.returncode == 9
    assert "ended with exit code 9" in done.stderr.splitlines()[-1]
    assert "bad news" in done.stderr


@pytest.mark.long
def test_a_single_program_is_called_by_its_name(script: Path, tmp_path: Path) -> None:
    script.write_text("raise SystemExit(9)")
    done = kfit("run", "--log-dir", str(tmp_path / "logs"), str(script))
    assert done.returncode == 9
    assert done.stderr == (
        f"kfit: the whole output of each task goes to {tmp_path / 'logs'}\n"
        f"kfit: error: {script.name} ended with exit code 9\n"
    )
    assert [log.name for log in (tmp_path / "logs").iterdir()] == [f"{script.name}.log"]
    done = kfit("run", "-m", script.stem, cwd=script.parent)
    assert done.stderr == f"kfit: error: {script.stem} ended with exit code 9\n"


def test_ctrl_c_prints_no_traceback_also_while_the_program_imports(script: Path) -> None:
    script.with_name("slow.py").write_text("import time\nprint('ready')\ntime.sleep(600)")
    script.write_text("import slow")
    with subprocess.Popen(
        [*KFIT, "run", str(script)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=SOON)
    assert process.returncode == 128 + signal.SIGINT
    assert error.splitlines() == [
        "kfit: SIGINT: stopping the tasks; again to kill them",
        "kfit: stopped by SIGINT",
    ]


def test_an_interrupt_of_the_program_itself_has_its_traceback(script: Path) -> None:
    script.write_text("raise KeyboardInterrupt")
    done = kfit("run", str(script))
    assert done.returncode == 130
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 1, in <module>',
        "    raise KeyboardInterrupt",
        "KeyboardInterrupt",
        f"kfit: error: {script.name} was killed by SIGINT",
    ]


def test_sigterm_reaches_the_workers(script: Path) -> None:
    script.write_text("import time; print('ready', flush=True); time.sleep(600)")
    with subprocess.Popen(
        [*KFIT, "run", "--workers", "2", "--no-join", str(script)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SOON)
    assert process.returncode == 128 + signal.SIGTERM
    assert "kfit: stopped by SIGTERM" in err


REJOINS = """
import os, socket, sys, threading, time
from kfit.cluster.cluster import split_address
from kfit.cluster.resolvers import current_cluster
from kfit.cluster.rendezvous import rendezvous
from kfit.heartbeat import Heartbeat
cluster, heartbeat = current_cluster(), Heartbeat.of_environment()
generation = int(os.environ["KFIT_GENERATION"])
print("addresses", *cluster.addresses["worker"])
rendezvous(cluster)
# What TensorFlow does: a server at the own address, and a connection that breaks with the peer.
server = socket.create_server(split_address(cluster.address))
((_, peer),) = cluster.peers
served, kept = threading.Event(), []

def serve():
    while True:
        kept.append(server.accept()[0])
        kept[-1].settimeout(5)
        try:
            if kept[-1].recv(5) == b"hello":
                kept[-1].sendall(b"hello")
                served.set()
        except OSError:
            pass

threading.Thread(target=serve, daemon=True).start()
deadline = time.monotonic() + 30
while True:  # the first calls may come to the socket of the rendezvous, which is closed just now
    try:
        connection = socket.create_connection(split_address(peer), timeout=5)
        connection.sendall(b"hello")
        if connection.recv(5) == b"hello":
            break
    except OSError:
        pass
    assert time.monotonic() < deadline
    time.sleep(0.05)
connection.settimeout(None)
for step in range(1, 6):
    heartbeat.beat(step)
    time.sleep(0.02)
if generation == 0:
    if cluster.task.id == 1:
        os.kill(os.getpid(), 9)
    connection.recv(1)
    time.sleep(1)  # its server still answers while the peer is back already
    sys.exit("the peer has gone")
assert served.wait(30)
print("done")
"""


def test_tasks_of_several_hosts_rejoin(script: Path) -> None:
    script.write_text(REJOINS)
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    cluster = {"worker": addresses}
    running = []
    for index in (0, 1):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        process = subprocess.Popen(
            [*KFIT, "run", "--max-restarts", "1", "--no-join", str(script)],
            env=environment(TF_CONFIG=config),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
    try:
        ended = [process.communicate(timeout=6 * SOON) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (out, err) in zip(running, ended, strict=True):
        assert process.returncode == 0, err
        lines = [line.partition("] ")[2] for line in out.splitlines()]
        assert lines == [f"addresses {' '.join(addresses)}"] * 2 + ["done"]
        assert re.fullmatch(r"kfit: worker \d ended well in attempt 2", err.splitlines()[-1])


BAD_CONFIG = json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 2}})
GOOD_CONFIG = json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 1}})


@pytest.mark.parametrize(
    ("arguments", "config", "words"),
    sweep(
        [
            (["run", "{script}"], BAD_CONFIG, ["`TF_CONFIG`: `task.index` is 2"]),
            (["run", "no.py"], BAD_CONFIG, ["`task.index` is 2"]),
            (["run", "{script}"], "{'cluster'", ["`TF_CONFIG`: the text is not JSON"]),
            (
                ["run", "--workers", "2", "{script}"],
                GOOD_CONFIG,
                ["`--workers` is 2", "TF_CONFIG", "worker 1", "set KFIT_CLUSTER=none"],
            ),
            (["run", "--workers", "0", "{script}"], "", ["`--workers` is '0'", "from 1 up"]),
            (["run", "--workers", "two", "{script}"], "", ["`--workers` is 'two'"]),
            (["run", "--workers", "-1", "{script}"], "", ["--workers"]),
            (["run", "--grace", "-1", "{script}"], "", ["--grace"]),
            (["run", "--grace", "nan", "{script}"], "", ["`--grace` is 'nan'"]),
            (
                ["run", "--start-timeout", "0", "{script}"],
                "",
                ["`--start-timeout` is '0'", "above 0"],
            ),
            (["run", "--max-restarts", "-1", "{script}"], "", ["--max-restarts"]),
            (
                ["run", "--max-restarts", "2.5", "{script}"],
                "",
                ["`--max-restarts` is '2.5'", "0 up"],
            ),
            (
                ["run", "--hang-timeout", "0", "{script}"],
                "",
                ["`--hang-timeout` is '0'", "above 0"],
            ),
            (["run", "--hang-timeout", "inf", "{script}"], "", ["`--hang-timeout` is 'inf'"]),
            (
                ["run", "--hang-timeout", "no", "{script}"],
                "",
                ["'no'; expected", "'auto' or 'off'"],
            ),
            (["run", "--log-format", "json", "{script}"], "", ["is 'json'", "add `--log-dir DIR`"]),
            (
                ["run", "--log-format", "xml", "{script}"],
                "",
                ["is 'xml'; expected 'text' or 'json'"],
            ),
            (
                ["run", "--log-dir", "{script}", "{script}"],
                "",
                ["`--log-dir` is", "cannot be made"],
            ),
            (["run"], "", ["`script.py` is missing"]),
            (["run", "no.py"], "", ["the script 'no.py' does not exist in"]),
            (["run", "{folder}"], "", ["a directory"]),
            (["run", "/dev/stdin"], "", ["`script.py` is '/dev/stdin', no file on a disk"]),
            (["run", "/dev/null"], "", ["`script.py` is '/dev/null', no file on a disk"]),
            (
                ["run", "--log-dir", "gs://a/b", "{script}"],
                "",
                ["`--log-dir` is 'gs://a/b', a URL"],
            ),
            (
                ["manifest", "slurm", "--backup-dir", "gs://a", "b.py"],
                "",
                ["`--backup-dir` is", "URL"],
            ),
            (
                ["manifest", "slurm", "-m", "bad-name"],
                "",
                ["`-m` is 'bad-name'; expected a module"],
            ),
            (["manifest", "slurm", "-m"], "", ["`-m` is missing"]),
            (["run", "--log-dir", "", "{script}"], "", ["`--log-dir` is ''; expected the path"]),
            (["run", "-m"], "", ["`-m` is missing"]),
            (["run", "-m", "train.py-x"], "", ["`-m` is 'train.py-x'"]),
            (["run", "--worker", "2", "{script}"], "", ["--worker"]),
            (["run", "--ps", "0", "{script}"], "", ["`--ps` is '0'", "from 1 up"]),
            (["run", "--ps", "1", "{script}"], GOOD_CONFIG, ["`--ps` is 1", "already describes"]),
            (["server"], "", ["no cluster is described", "--worker, --ps and --task"]),
            (["server"], GOOD_CONFIG, ["TF_CONFIG lists no ps"]),
            (["server", "--task", "ps:0"], "", ["`--worker` is missing"]),
            (
                ["server", "--worker", "a:1", "--ps", "b:1", "--task", "chief:0"],
                "",
                ["`--task` is 'chief:0'", "worker:INDEX"],
            ),
            (
                ["server", "--worker", "a:1", "--ps", "b:1", "--task", "worker:3"],
                "",
                ["`--worker`, `--ps` and `--task`", "index"],
            ),
            *(
                (
                    [*command, "A.ipynb"],
                    "",
                    ["is 'A.ipynb', a notebook", "nbconvert", "kfit.launch"],
                )
                for command in (["run"], ["run", "--workers", "2"], [], ["verify"])
            ),
            (["manifest", "slurm", "a.ipynb"], "", ["is 'a.ipynb', a notebook", "--to script"]),
            (["run", "python", "t.py", "-v"], "", ["leave it out, as in `kfit run t.py -v`"]),
            (
                ["run", sys.executable, "-m", "train"],
                "",
                ["leave it out, as in `kfit run -m train`"],
            ),
            (["run", "{folder}/trian.py"], "", ["does not exist in", "; did you mean '{script}'?"]),
            (
                ["run", "{folder}/nope.py"],
                "",
                ["; expected the path of a Python script, or `-m mod"],
            ),
            (["--workers", "2", "a.py"], "", ["of `kfit run`; write `kfit run --workers 2 a.py`"]),
            (["--cpus=2", "run", "a.py"], "", ["of `kfit run`; write `kfit run --cpus=2 a.py`"]),
            (["-m", "train"], "", ["`-m` is an option of `kfit run`; write `kfit run -m train`"]),
            (["launch"], "", ["`launch` is not a command; expected one of doctor, ", ", run, "]),
            (
                ["rnu", "{script}"],
                "",
                ["`rnu` is not a command; did you mean `run`? See `kfit --help`"],
            ),
            (["manifest"], "", ["required: kubernetes|slurm; see `kfit manifest --help`"]),
            (["doctor", "--foo"], "", ["expected one of --backup-dir, ", ", --help"]),
            (["doctor", "train.py"], "", ["`kfit doctor` takes no such argument: `train.py`; see"]),
            (["version"], "", ["`version` is not a command; did you mean `--version`?"]),
            (["manifest", "slurm"], "", ["missing; expected `kfit manifest slurm script.py` or"]),
            (["manifest", "slrum"], "", ["did you mean `slurm`? See `kfit manifest --help`"]),
            (
                ["run", "--wrokers=2", "{script}"],
                "",
                ["`--wrokers` is not an option of `kfit run`; did you mean `--workers`"],
            ),
            (["inspect", "--jsno", "a"], "", ["of `kfit inspect`; did you mean `--json`"]),
            (["run", "--cpus", "0", "{script}"], "", ["`--cpus` is '0'", "from 1 up"]),
            (
                ["run", "--cpus", "2", "--workers", "2", "{script}"],
                "",
                ["`--cpus` splits the CPU for a single process"],
            ),
            (["run", "--cpus", "2", "{script}"], GOOD_CONFIG, ["set KFIT_CLUSTER=none"]),
        ],
        every=5,
    ),
)
def test_refuses_at_once(
    script: Path, arguments: Sequence[str], config: str, words: Sequence[str]
) -> None:
    given = [argument.format(script=script, folder=script.parent) for argument in arguments]
    begin = time.monotonic()
    done = kfit(*given, TF_CONFIG=config)
    # 0.1 s on an idle machine; TensorFlow alone would take 3 s.
    assert time.monotonic() - begin < 2.0
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("kfit: error: ")
    for word in words:
        assert word.replace("{script}", str(script)) in line


def test_a_misspelled_variable_is_told(script: Path) -> None:
    done = kfit("run", str(script), KFIT_WORKER="a:1,b:2")
    assert done.returncode == 0
    assert (
        "kfit: warning: `KFIT_WORKER` is no variable of kfit, which ignores it; did" in done.stderr
    )
    done = kfit("run", str(script), KFIT_WORKER="a:1,b:2", KFIT_INDEX="0")
    assert done.returncode == 2
    assert "did you mean `KFIT_WORKERS` by `KFIT_WORKER`?" in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (
            "--cpus 2 {} --verbose --lr 1 --max-restarts 3 --x '' --log-dir=a",
            "--cpus 2 --verbose --max-restarts 3 --log-dir=a {} --lr 1 --x ''",
        ),
        ("-m timeit --workers 2 --workers", "--workers 2 --workers -m timeit"),
    ],
)
def test_the_note_has_the_command_line_that_is_meant(
    words: str, meant: str, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("kfit.supervisor.supervisor.Supervisor.run", lambda self: 0)
    given = shlex.split(words.format(script))
    assert main(["run", *given]) == 0
    assert (
        capsys.readouterr()
        .err.splitlines()[0]
        .endswith(
            f"options of `kfit run` come before the script: `kfit run {meant.format(script)}`"
        )
    )


@pytest.mark.parametrize("command", [["run", "--workers", "2"], ["verify"], ["run"]])
def test_a_script_that_cannot_be_compiled_is_told_once(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "wrong.py").write_text('text = "\\d"\nprint(text\n')
    told = kfit(*command, "wrong.py", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith('  File "wrong.py", line 2\n')
    assert told.stderr.endswith("\nSyntaxError: '(' was never closed\n")
    assert told.stderr.count("\n") == 4


def test_the_help_says_where_callbacks_write(capsys: Any) -> None:
    assert main(["run", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "writes files does so on every worker, unless it is wrapped in kfit.callbacks" in told


def test_a_foreign_log_file_is_told_before_anything_starts(
    tmp_path: Path, script: Path, capsys: Any
) -> None:
    (tmp_path / "worker-1.log").write_text("my own results\n")
    assert main(["run", "--workers", "2", "--log-dir", str(tmp_path), str(script)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("kfit: error: `--log-dir` is ")
    assert "'worker-1.log' kfit did not write" in line


@pytest.mark.parametrize("system", [["kubernetes", "--image", "x"], ["slurm"]])
def test_options_of_a_manifest_after_the_script_are_told(
    system: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", *system, "train.py", "--gpus", "4", "--lr", "1"]) == 0
    told = capsys.readouterr()
    assert "train.py" in told.out
    assert told.err == (
        f"kfit: note: `--gpus` is passed to train.py, since it stands after it; options of `kfit "
        f"manifest {system[0]}` come before the script: "
        f"`kfit manifest {' '.join(system)} --gpus 4 train.py --lr 1`\n"
    )


@pytest.mark.parametrize(("words", "is_told"), [(["--workers", "2"], True), (["--lr", "2"], False)])
def test_options_after_a_script_of_plain_keras_are_told(
    script: Path,
    words: list[str],
    is_told: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: run.append(command))
    main([str(script), *words])
    assert run[0][-3:] == [str(script), *words]
    meant = f"`kfit run --keras-fit --workers 2 {script}`\n"
    assert capsys.readouterr().err.endswith(meant) == is_told


def test_a_pipe_that_breaks_elsewhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Parser:
        def parse_args(self, words: Any) -> Any:
            return types.SimpleNamespace(command=self.fails)

        def fails(self, arguments: Any) -> int:
            raise BrokenPipeError("another pipe")

    monkeypatch.setattr("kfit.commands.main._parser", Parser)
    with pytest.raises(BrokenPipeError, match="another pipe"):
        main(["inspect"])
