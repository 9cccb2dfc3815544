"""Runs files of another project's tests in a process of their own, with a plugin of this folder."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_INI = "[pytest]\naddopts = -W ignore\npython_functions =\npython_files = *_test.py\n"
"""Tests are the methods of test cases; a function called `test_...` need not be one."""


def run_suite(
    plugin: str,
    files: Sequence[Path],
    folder: Path,
    *,
    environ: Mapping[str, str],
    launcher: Sequence[str] = (sys.executable,),
) -> subprocess.CompletedProcess[str]:
    """Runs pytest on the files.

    Args:
        plugin: The module of this folder that puts kfit in the place of what is tested.
        files: The test files.
        folder: Where it runs and may write.
        environ: What the plugin reads, in addition to the environment of this process.
        launcher: The command that runs a module of Python.
    """
    (folder / "pytest.ini").write_text(_INI)
    inherited = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PYTHONSAFEPATH")}
    environ = inherited | {"PYTHONPATH": str(Path(__file__).parent)} | dict(environ)
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [*launcher, "-m", "pytest", "-q", "-rA", "-p", plugin, "--tb=short"]
    command += ["-p", "no:cacheprovider", "-c", str(folder / "pytest.ini")]
    command += ["--import-mode=importlib", *map(str, files)]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


def check(ran: subprocess.CompletedProcess[str], least: int) -> None:
    """Prints what the tests said, and fails unless all passed.

    Args:
        ran: The result of `run_suite`.
        least: How many tests must have passed; fewer mean that something was not run at all.
    """
    print(ran.stdout)
    summary = next((line for line in reversed(ran.stdout.splitlines()) if " passed" in line), "")
    assert ran.returncode == 0, f"{summary}\n{ran.stdout[-20000:]}\n{ran.stderr[-2000:]}"
    passed = re.search(r"(\d+) passed", summary)
    assert int(passed.group(1) if passed else 0) >= least, summary
