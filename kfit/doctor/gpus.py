"""Checks that TensorFlow can use this host's GPUs, and that no two tasks use the same GPU."""

from __future__ import annotations

import glob
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kfit.doctor.findings import Finding
from kfit.doctor.report import Report

# Timeout in seconds: importing TensorFlow takes seconds, and a broken driver may never answer.
_LONGEST = 60.0
_QUESTION = (
    # With `python -c`, Python would look for modules in the current folder first.
    "import sys\n"
    "sys.path[:1] = [folder for folder in sys.path[:1] if folder]\n"
    "import json, tensorflow as tf\n"
    "print(json.dumps([tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm(),\n"
    "    len(tf.config.list_physical_devices('GPU'))]))"
)


@dataclass(frozen=True)
class Gpus:
    """The GPUs that this task will use, and what is wrong with them.

    Args:
        count: The number of GPUs; -1 if it is unknown.
        visible: The indices or names of the GPUs, as CUDA_VISIBLE_DEVICES would list them.
        findings: The results of the check.
    """

    count: int
    visible: list[str]
    findings: list[Finding]


def look_for_gpus(
    environ: Mapping[str, str],
    *,
    ask: bool,
    devices: Callable[[], int] = lambda: len(glob.glob("/dev/nvidia[0-9]*")),
    answer: Callable[[], tuple[bool, int] | str] | None = None,
) -> Gpus:
    """Checks that TensorFlow sees the GPUs of this host.

    If the host has no GPU, TensorFlow is not asked, since importing it takes seconds.

    Args:
        environ: The environment variables.
        ask: Whether to ask TensorFlow even if this host has no GPU device.
        devices: A function that returns the number of this host's NVIDIA devices.
        answer: A function that returns TensorFlow's answer: whether TensorFlow was built for GPUs,
            and how many GPUs it sees; or a text that says why TensorFlow could not be asked. By
            default TensorFlow is asked in a new process.
    """
    there = devices()
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if not there and not ask:
        if text not in (None, "", "-1", "NoDevFiles"):
            return Gpus(0, [], [_problem(_no_such(text, "no NVIDIA device"), _UNSET)])
        return Gpus(0, [], [Finding("gpus", True, "none here")])
    visible, wrong = _visible(text, there)
    if wrong:
        return Gpus(-1, visible, [_problem(wrong, _UNSET)])
    if there and not visible:
        hidden = f"CUDA_VISIBLE_DEVICES={text} hides the {there} of this host"
        return Gpus(0, [], [Finding("gpus", True, hidden)])
    answered = (answer or _ask_tensorflow)()
    if isinstance(answered, str):
        return Gpus(
            -1, visible, [_problem(f"TensorFlow cannot be asked for GPUs: {answered}", _DRIVER)]
        )
    built, seen = answered
    if seen < len(visible):
        why = "" if built else "; this TensorFlow was built without them"
        text = f"this host has {len(visible)} visible to this task, TensorFlow sees {seen}{why}"
        return Gpus(seen, visible, [_problem(text, _DRIVER if built else _CUDA)])
    return Gpus(seen, visible, [Finding("gpus", True, f"TensorFlow sees {seen}")])


def compare_gpus(
    own: Report, reports: Mapping[str, Report], *, in_step: bool = True
) -> list[Finding]:
    """Checks that all workers have equally many GPUs, and that no other task uses this task's GPUs.

    Args:
        own: The report of this task about itself.
        reports: The reports of all tasks that answered, by the tasks' names.
        in_step: Whether training is synchronous. Only then must the workers have equally many GPUs.

    Returns:
        A finding for each problem; an empty list if there is none.
    """
    found = []
    trains = {
        name: report
        for name, report in reports.items()
        if name.startswith(("chief", "worker")) and report.gpus >= 0
    }
    counts = {report.gpus for report in trains.values()}
    if in_step and len(counts) > 1:
        by_task = ", ".join(f"{name} {report.gpus}" for name, report in trains.items())
        found.append(
            _problem(
                f"the tasks have different numbers of GPUs ({by_task}), but TensorFlow requires "
                "that every task has the same number",
                "give each the same number, as by `srun --gpus-per-task` or CUDA_VISIBLE_DEVICES",
            )
        )
    for name, report in reports.items():
        shared = sorted(set(own.visible_gpus) & set(report.visible_gpus))
        if name != own.task and report.machine == own.machine and shared:
            found.append(
                _problem(
                    f"{own.task} and {name} would both use GPU {', '.join(shared)} of this host, "
                    "and each takes all of its memory",
                    "give each its own, as by `srun --gpus-per-task=1` or CUDA_VISIBLE_DEVICES",
                )
            )
    return found


_UNSET = "correct or unset CUDA_VISIBLE_DEVICES"
_CUDA = "pip install 'tensorflow[and-cuda]'"
_DRIVER = (
    "see whether `nvidia-smi` works and `python -c 'import tensorflow'` warns of a library; in a "
    "fresh environment: pip install 'tensorflow[and-cuda]'"
)


def _problem(text: str, fix: str) -> Finding:
    return Finding("gpus", False, text, fix)


def _visible(text: str | None, devices: int) -> tuple[list[str], str]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES selects, and what is wrong with this variable.

    Args:
        text: The value of the variable; None if it is not set.
        devices: The number of this host's GPU devices.

    Returns:
        The indices or names of the selected GPUs; and a description of the problem with the
        variable, "" if there is no problem.
    """
    every = [str(index) for index in range(devices)]
    if text is None:
        return every, ""
    listed = [part.strip() for part in text.split(",")] if text.strip() else []
    if listed in (["-1"], ["NoDevFiles"]):
        return [], ""
    for part in listed:
        # CUDA silently ignores all entries after an index that does not exist.
        if part.lstrip("-").isdecimal() and part not in every:
            return listed, _no_such(text, f"{devices} NVIDIA device{'s' if devices != 1 else ''}")
    if len(set(listed)) < len(listed):
        return listed, f"`CUDA_VISIBLE_DEVICES` is {text!r}, which names a device twice"
    return listed, ""


def _no_such(text: str | None, there: str) -> str:
    return f"`CUDA_VISIBLE_DEVICES` is {text!r}, but this host has {there}"


def _ask_tensorflow() -> tuple[bool, int] | str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUESTION],
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
        built, count = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_LONGEST:g} s"
    except ValueError:
        return (done.stderr.strip().splitlines() or [f"it exited with {done.returncode}"])[-1]
    return bool(built), int(count)
