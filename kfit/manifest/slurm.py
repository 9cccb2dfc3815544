"""Writes a training job as a batch script for Slurm: `srun` starts one task for each worker.

Before the time limit Slurm sends the tasks SIGUSR1. The tasks stop after the same training step,
save, and exit with the code 138. The script then puts the job into the queue again (requeues it).
If Slurm preempts the job, Slurm itself requeues it (`--requeue`). A cancelled job exits with 143,
and must not be requeued. (In the documentation of Slurm: `man sbatch`, `man srun`, "Preemption".)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from kfit.argument_checks import CommandError
from kfit.cluster import secret
from kfit.manifest.job import Job, refuse_control

# Slurm checks time limits periodically: a warning may come up to a minute too early or too late.
_LEEWAY = 90
_EARLY = 60
_TIME = r"[0-9]+(-[0-9]+(:[0-9]+){0,2}|(:[0-9]+){0,2})"
_SIGUSR1 = 128 + 10
_NEW_SECRET = "od -An -N16 -tx1 /dev/urandom | tr -d ' \\n'"


@dataclass(frozen=True)
class Allocation:
    """The resources that a job requests from Slurm, and further options of the batch script.

    Args:
        nodes: The number of hosts.
        tasks_per_node: The number of tasks on each host.
        time: The time limit, in the format of `sbatch --time`; None for the partition's default.
        partition: The name of the partition of the cluster; None for the default.
        account: The name of the account to charge; None for the default.
        output: The file for the output, in the format of `sbatch --output`; None for "NAME-%j.log".
        setup: Shell lines that run before the training, such as `module load cuda`.
    """

    nodes: int = 1
    tasks_per_node: int = 1
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    output: str | None = None
    setup: Sequence[str] = ()


def slurm_script(job: Job, allocation: Allocation) -> str:
    """Returns the text of a batch script for Slurm that runs a training job.

    Args:
        job: The description of the training job.
        allocation: The resources to request, and further options of the script.

    Raises:
        CommandError: If Slurm would not accept a value, or a value has characters that a script
            cannot contain. Also if the time limit is so short that Slurm might stop and requeue the
            job before it makes progress.
    """
    _check(job, allocation)
    options = {
        "job-name": job.name,
        "nodes": allocation.nodes,
        "ntasks-per-node": allocation.tasks_per_node,
        "cpus-per-task": job.cpus,
        "mem": _memory_of_node(job.memory, allocation.tasks_per_node),
        "gpus-per-task": job.gpus or None,
        "time": allocation.time,
        "partition": allocation.partition,
        "account": allocation.account,
        "output": allocation.output or f"{job.name}-%j.log",
        "open-mode": "append",
        "signal": None if job.doctor else f"USR1@{job.grace + _LEEWAY}",
    }
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    lines.append("#SBATCH --no-requeue" if job.doctor else "#SBATCH --requeue")
    lines += ["", *allocation.setup] if allocation.setup else []
    variables = job.variables()
    if variables:
        lines += ["", *(f"export {name}={shlex.quote(v)}" for name, v in variables.items())]
    if job.workers > 1:
        lines += [
            "",
            "# TensorFlow's servers run whatever a caller sends them (docs/security.md of kfit).",
            "# Use nodes whose ports other users cannot reach, such as nodes that you share with",
            "# nobody (--exclusive) in a network of their own.",
            "",
            "# A new secret for each run, by which the tasks recognize each other's messages.",
            f'export {secret.VARIABLE}="${{{secret.VARIABLE}:-$({_NEW_SECRET})}}"',
        ]
    step = ["srun", "--distribution=block", "--label", "--kill-on-bad-exit=0"]
    if job.cpus is not None:
        # Since Slurm 22.05 a step does not inherit this option from the job.
        step.append(f"--cpus-per-task={job.cpus}")
    if not job.doctor:
        # Give the other tasks time to save after the first task has ended, before srun kills them.
        step.append(f"--wait={job.grace + _LEEWAY}")
    lines += ["", shlex.join([*step, *job.command()]), "code=$?"]
    if not job.doctor:
        lines += [
            f"# {_SIGUSR1}: stopped and saved before the time limit. Slurm itself requeues a job",
            "# that it preempts, and a cancelled one must not come back.",
            f'if [ "$code" -eq {_SIGUSR1} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        ]
    return "\n".join([*lines, 'exit "$code"']) + "\n"


def seconds_of(time: str) -> int:
    """Converts a time limit in Slurm's format to seconds.

    "90" is 90 minutes, and "1-12" is one day and 12 hours.
    """
    days, dash, rest = time.rpartition("-")
    numbers = [int(part) for part in rest.split(":")]
    if dash or len(numbers) == 3:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    else:
        hours, minutes, seconds = 0, *(*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _memory_of_node(memory: str | None, tasks: int) -> str | None:
    """Returns the value of Slurm's option `--mem`, the memory of all tasks of a host together.

    Args:
        memory: The memory of each task in Slurm's format, such as "64G"; if None, so is the result.
        tasks: The number of tasks on the host.
    """
    if memory is None:
        return None
    unit = memory.lstrip("0123456789")
    return f"{int(memory.removesuffix(unit)) * tasks}{unit}"


def _check(job: Job, allocation: Allocation) -> None:
    for option, text in (
        ("--name", job.name),
        ("--partition", allocation.partition),
        ("--account", allocation.account),
        ("--log", allocation.output),
    ):
        if text is not None and not re.fullmatch(
            r"[A-Za-z0-9_.,:/@%+=][A-Za-z0-9_.,:/@%+=-]*", text
        ):
            raise CommandError(
                f"`{option}` is {text!r}; expected letters, digits and any of '_.,:/@%+=-', which "
                "can stand in an #SBATCH line"
            )
    if job.cpus is not None and not re.fullmatch("[1-9][0-9]*", job.cpus):
        raise CommandError(f"`--cpus` is {job.cpus!r}; expected a whole number from 1 up")
    if job.memory is not None and not re.fullmatch("[1-9][0-9]*[KMGT]?", job.memory):
        raise CommandError(
            f"`--memory` is {job.memory!r}; expected a whole number with K, M, G or T, as in 64G"
        )
    if allocation.time is not None and not re.fullmatch(_TIME, allocation.time):
        raise CommandError(
            f"`--time` is {allocation.time!r}; expected minutes, hours:minutes:seconds or "
            "days-hours:minutes:seconds"
        )
    warned = job.grace + _LEEWAY + _EARLY
    is_short = allocation.time is not None and seconds_of(allocation.time) < 2 * warned
    if is_short and not job.doctor:  # a job of the doctor gets no warning
        raise CommandError(
            f"`--time` is {allocation.time!r}, but Slurm's warning may come {warned} s before its "
            f"end; expected at least {2 * warned} s, or the job may be requeued without progress"
        )
    for word in (*job.program, *allocation.setup):
        refuse_control("script.py", word)
    for line in allocation.setup:
        if "\n" in line:
            raise CommandError(f"`--setup` is {line!r}; give a separate `--setup` for each line")
