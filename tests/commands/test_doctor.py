"""`kfit doctor` as people run it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kfit.commands.main import main
from kfit.doctor import examination
from kfit.doctor.examination import DEFAULT_TIMEOUT
from kfit.supervisor.local import free_ports

SOON = 30.0


def doctor(*arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return subprocess.run(
        [sys.executable, "-m", "kfit", *arguments],
        # Whatever this host has of GPUs and CPUs.
        env={**kept, "CUDA_VISIBLE_DEVICES": "-1", "TF_NUM_INTRAOP_THREADS": "1", **changed},
        capture_output=True,
        text=True,
        timeout=SOON,
    )


def test_alone_and_quick_without_tensorflow(tmp_path: Path) -> None:
    trap = tmp_path / "tensorflow.py"
    trap.write_text("raise SystemExit('imported')")
    done = doctor(
        "doctor", "--json", "--backup-dir", str(tmp_path / "backup"), PYTHONPATH=str(tmp_path)
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["task"]) == (0, True, None), done
    assert set(told) == {"ok", "task", "source", "findings", "reports", "seconds"}
    assert set(told["findings"][0]) == {"check", "ok", "text", "fix", "about"}
    assert {"cluster", "environment", "versions", "gpus", "backup", "threads"} == {
        finding["check"] for finding in told["findings"]
    }


def test_a_task_that_is_down_within_ten_seconds() -> None:
    first, second = free_ports(2)
    workers = f"localhost:{first},localhost:{second}"
    assert DEFAULT_TIMEOUT <= 8
    begin = time.monotonic()
    done = doctor("doctor", "--timeout", "1.5", KFIT_WORKERS=workers, KFIT_INDEX="0")
    assert time.monotonic() - begin < 9.0  # 1.8 s on an idle machine
    assert done.returncode == 1, done
    assert f"worker 1 at localhost:{second}: nothing listens there" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("kfit doctor: worker 0: 1 problem")


def test_a_wrong_description_is_a_problem() -> None:
    done = doctor("doctor", TF_CONFIG="{")
    assert done.returncode == 1
    assert "is not JSON" in done.stdout


def test_a_task_without_an_address() -> None:
    outside = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}'
    done = doctor("doctor", TF_CONFIG=outside)
    assert done.returncode == 0, done
    assert "the cluster lists no address for evaluator 0" in done.stdout


def test_an_interrupt_is_no_error_of_kfit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(examination, "examine", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.long
def test_wrong_usage() -> None:
    for arguments in (["--timeout", "soon"], ["--backup-dir", ""], ["--what"]):
        done = doctor("doctor", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert "kfit: error: " in done.stderr


def test_two_tasks_compare(tmp_path: Path) -> None:
    """Two processes; one is told another version of Keras by a made-up package."""
    script = tmp_path / "one_differs.py"
    script.write_text(
        "import os, sys\n"
        "if os.environ['KFIT_INDEX'] == '1':\n"
        "    import importlib.metadata as metadata\n"
        "    ask = metadata.version\n"
        "    metadata.version = lambda name: '3.14.0' if name == 'keras' else ask(name)\n"
        "sys.argv = ['kfit', 'doctor', '--shared-dir', sys.argv[1], '--timeout', '20']\n"
        "from kfit.commands.main import main\n"
        "raise SystemExit(main())\n"
    )
    addresses = ",".join(f"localhost:{port}" for port in free_ports(2))
    environ = {
        **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        "KFIT_WORKERS": addresses,
        "TF_NUM_INTRAOP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={**environ, "KFIT_INDEX": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [task.communicate(timeout=SOON)[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    for index, task in enumerate(tasks):
        assert task.returncode == 1, said
        assert f"kfit doctor: worker {index}: 1 problem" in said[index]
        assert "the version of keras differs between tasks" in said[index]
        assert f"{tmp_path}: 2 tasks see it" in said[index]
    assert [path.name for path in tmp_path.iterdir()] == ["one_differs.py"]
