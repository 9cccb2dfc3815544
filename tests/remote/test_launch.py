"""`kfit.launch` on this host. Workers that need no TensorFlow do not join: they start at once."""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import kfit
from tests.sweeps import only

# Many times what starting or ending a tiny process takes.
SOON = 30.0


def launch(function: Callable[..., Any], *args: Any, workers: int = 1, **options: Any) -> Any:
    return kfit.launch(function, args, workers=workers, join=False, **options)


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def test_a_closure_runs_on_every_worker_and_the_chief_returns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import numpy as np

    scale = np.array([1.0, 2.0])

    def scaled(by: float, *, shift: float = 0.0) -> Any:
        task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        print("here is", task)
        return {"worker": task, "values": scale * by + shift, "run": os.environ["KFIT_RUN"]}

    result = kfit.launch(scaled, (3.0,), {"shift": 1.0}, workers=2, join=False)
    assert result["worker"] == 0
    assert result["values"].tolist() == [4.0, 7.0]
    assert result["run"]
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == ["[worker 0] here is 0", "[worker 1] here is 1"]


def test_one_worker_is_no_cluster() -> None:
    assert launch(lambda: (os.environ.get("TF_CONFIG"), os.environ["KFIT_CLUSTER"])) == (
        None,
        "none",
    )


def test_workers_import_what_this_process_could(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "of_mine.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert launch(importlib.import_module("of_mine").twice, 4) == 8


def test_a_worker_without_a_cluster_knows_what_has_started_it() -> None:
    assert launch(os.getenv, "KFIT_STARTED_BY") == "`kfit.launch`"


def test_a_class_comes_back_as_the_class_that_it_was() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    point = launch(lambda: Point(3))
    assert isinstance(point, Point)
    assert point.x == 3


def test_what_raises_is_named_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fails() -> None:
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise KeyError("no such column\nhere")
        time.sleep(600)

    with pytest.raises(kfit.LaunchError) as caught:
        launch(fails, workers=2)
    message = str(caught.value)
    assert message.splitlines()[0] == r"worker 1 raised KeyError: 'no such column\nhere'"
    assert 'raise KeyError("no such column' in message
    assert "run_call.py" not in message
    assert caught.value.task == "worker 1"
    *where, error = caught.value.traceback.splitlines()
    assert "\n".join(where) in message
    # The error is told once, by the first line.
    assert error == r"KeyError: 'no such column\nhere'"
    assert message.count(error) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert launch(lambda: "again", workers=2) == "again"


@pytest.mark.long
def test_the_first_cause_is_named_though_another_ends_first() -> None:
    def fails(folder: str) -> None:
        first = Path(folder, "first")
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            threading.Thread(target=time.sleep, args=(1.0,)).start()  # dies slowly
            first.touch()
            raise ValueError("Exception encountered when calling Dense.call().\n\nthe cause")
        while not first.exists():
            time.sleep(0.01)
        time.sleep(0.3)
        raise RuntimeError("a peer has failed")

    with tempfile.TemporaryDirectory() as folder, pytest.raises(kfit.LaunchError) as caught:
        launch(fails, folder, workers=2)
    lines = str(caught.value).splitlines()
    assert lines[0] == "worker 1 raised ValueError: the cause"
    assert lines[-1] == "  worker 0: RuntimeError: a peer has failed"


def test_restarts(capsys: pytest.CaptureFixture[str]) -> None:
    def fails_once() -> str:
        if os.environ["KFIT_GENERATION"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return os.environ["KFIT_SEED"]

    assert int(launch(fails_once, max_restarts=1)) >= 0
    said = capsys.readouterr().err
    assert said.startswith("kfit: starting ")
    assert "attempt 2 starts" in said

    def always_fails() -> None:
        raise OSError("full")

    with pytest.raises(kfit.LaunchError) as caught:
        launch(always_fails, max_restarts=1)
    assert str(caught.value).splitlines()[-2:] == [
        "  attempt 1: worker 0 raised OSError: full",
        "  attempt 2: worker 0 raised OSError: full",
    ]
    # An error that a restart follows would be lost otherwise. It is printed once for each attempt.
    assert capsys.readouterr().err.count("[worker 0] OSError: full") == 2
    assert "Traceback" not in str(caught.value)
    assert "Its traceback is printed above" in str(caught.value)
    assert caught.value.traceback.endswith("OSError: full")


@pytest.mark.long
@pytest.mark.parametrize("is_good", [True, False])
def test_the_result_of_an_earlier_attempt_is_none(tmp_path: Path, is_good: bool) -> None:
    """The chief returns, then another worker fails; in the next attempt the chief just ends."""

    def returns_once(ended: str) -> Any:
        is_first = os.environ["KFIT_GENERATION"] == "0"
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
            if not is_first:
                sys.exit(0)
            atexit.register(Path(ended, "chief").touch)
            return "old" if is_good else (i for i in [1])
        while is_first and not Path(ended, "chief").exists():
            time.sleep(0.05)
        if is_first:
            time.sleep(1.0)
            raise ValueError("too late")
        return None

    with pytest.raises(kfit.LaunchError, match="before the function had returned"):
        launch(returns_once, str(tmp_path), workers=2, max_restarts=1)


@pytest.mark.long
def test_other_ends() -> None:
    with pytest.raises(kfit.LaunchError, match=r"^worker 0 was killed by SIGKILL"):
        launch(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(kfit.LaunchError, match="before the function had returned"):
        launch(lambda: sys.exit(0))
    with pytest.raises(kfit.LaunchError, match=r"^worker 0 ended with exit code 3"):
        launch(lambda: sys.exit(3))
    with pytest.raises(kfit.LaunchError, match=r"`result\['later'\]`, of type generator, cannot"):
        launch(lambda: {"now": 1, "later": (i for i in [1])}, max_restarts=5)


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def inner() -> None:
        with lock:
            pass

    def outer() -> None:
        inner()

    begin = "`lock`, which `inner` refers to, of type lock, cannot be sent to the workers"
    with pytest.raises(ValueError, match=begin):
        launch(outer)
    with pytest.raises(ValueError, match=r"`args\[1\]`, of type lock, cannot"):
        launch(max, 1, lock)
    with pytest.raises(ValueError, match=r"`kwargs\['key'\]`, of type lock, cannot"):
        kfit.launch(max, (1,), {"key": lock}, workers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": "a.py"}, r"`function` is 'a.py'; .*: kfit run --workers 2 a.py"),
        ({"function": 3}, r"`function` is 3; expected a function: .* without calling it"),
        ({"args": "xy"}, r"`args` is 'xy'; expected a tuple"),
        ({"kwargs": [1]}, r"`kwargs` is \[1\]; expected a dict"),
        ({"workers": 0}, "`workers` is 0; expected a whole number from 1 up"),
        ({"workers": True}, "`workers` is True"),
        ({"workers": 2.0}, "`workers` is 2.0"),
        ({"max_restarts": -1}, "`max_restarts` is -1; expected a whole number from 0 up"),
        ({"hang_timeout": 0}, "`hang_timeout` is 0; expected"),
        ({"hang_timeout": "10"}, "`hang_timeout` is '10'; expected .* 'auto', or None"),
        ({"start_timeout": "60"}, "`start_timeout` is '60'; expected a number of seconds above 0"),
        ({"grace": -1}, "`grace` is -1; expected a number of seconds from 0 up"),
        ({"start_timeout": 0}, "`start_timeout` is 0; expected a number of seconds above 0"),
        ({"env": {"A": 1}}, r"`env` is \{'A': 1\}; expected a dict of environment variables"),
        ({"env": {"TF_CONFIG": "{}"}}, "`env` sets TF_CONFIG, which the launch itself sets"),
        ({"on": "slurm"}, "`on` is 'slurm'; expected 'local', .* or 'ray'"),
        ({"gpus": 1}, "`gpus` is 1, but `on` is 'local'"),
        ({"on": "ray", "cpus": -1}, "`cpus` is -1; expected a number from 0 up"),
        ({"on": "ray", "resources": {"GPU": 1}}, "`resources` holds 'GPU'; give `gpus` instead"),
        ({"on": "ray", "placement": "TIGHT"}, "`placement` is 'TIGHT'; expected one of"),
        ({"on": "ray", "env": {"KFIT_START_TIMEOUT": "inf"}}, "`KFIT_START_TIMEOUT` must be"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    given = {"function": print, "workers": 2, **options}
    with pytest.raises(ValueError, match=message):
        kfit.launch(**given)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"Ray is not installed here; .*'\.\[ray\]'"):
        kfit.launch(print, workers=1, on="ray")


PROGRAM = """
    import os, signal, sys, time
    import kfit

    def waits(folder):
        import subprocess
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        name = os.path.join(folder, str(os.getpid()))
        with open(name + ".new", "w") as file:
            print(child.pid, file=file)
        os.rename(name + ".new", name)
        time.sleep(600)

    before = signal.getsignal(signal.SIGINT)
    try:
        kfit.launch(waits, (sys.argv[1],), workers=2, join=False)
    except KeyboardInterrupt:
        print("interrupted", signal.getsignal(signal.SIGINT) is before)
"""


@pytest.mark.parametrize(
    "signum",
    only([signal.SIGINT, signal.SIGKILL], [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]),
)
def test_nothing_outlives_the_launch(tmp_path: Path, signum: signal.Signals) -> None:
    flags, temporary = tmp_path / "flags", tmp_path / "temporary"
    flags.mkdir()
    temporary.mkdir()
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    process = subprocess.Popen(
        [sys.executable, program, flags],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        wait_until(lambda: len(list(flags.glob("*[0-9]"))) == 2, "both workers wait")
        [folder] = temporary.glob("kfit-launch-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        pids = [int(path.name) for path in flags.iterdir()]
        pids += [int(path.read_text()) for path in flags.iterdir()]
        process.send_signal(signum)
        output, _ = process.communicate(timeout=SOON)
    if signum == signal.SIGINT:
        assert output.splitlines()[-1:] == ["interrupted True"]
        assert process.returncode == 0
    else:
        assert process.returncode == -signum
    wait_until(lambda: not any(map(runs, pids)), "all processes have ended")
    wait_until(lambda: not list(temporary.glob("kfit-launch-*")), "the folder is gone")


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_payloads_are_the_only_pickles() -> None:
    """What the S301 of ruff cannot see: pickles that are made, and cloudpickle."""
    root = Path(kfit.__file__).parent
    naming = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "import pickle" in (text := path.read_text(encoding="utf-8")) or "cloudpickle" in text
    }
    of_pool = {f"inputs/{name}.py" for name in ("processes", "batch_maker", "batch_process")}
    assert naming == {"remote/pickling.py", *of_pool}
