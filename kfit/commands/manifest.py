"""The command `kfit manifest`, which writes a job file for Kubernetes, Kubeflow or Slurm."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

from kfit.argument_checks import CommandError, is_url
from kfit.commands.program import check_is_script, check_module, note_options_of_the_script
from kfit.manifest.job import Job, check_environment, name_of, refuse_control


def add_manifest(commands: Any) -> None:
    """Adds the command `manifest` to the subcommands of `kfit`.

    Args:
        commands: What `ArgumentParser.add_subparsers` has returned.
    """
    parser = commands.add_parser(
        "manifest",
        help="write the job file of a cluster: Kubernetes, Kubeflow or Slurm",
        description="Writes a job file in which every task runs `kfit run` with the program. "
        "docs/clusters.md says how the tasks are stopped, saved and restarted.",
        allow_abbrev=False,
    )
    systems = parser.add_subparsers(title="systems", metavar="kubernetes|slurm", required=True)
    _add_kubernetes(systems)
    _add_slurm(systems)


def _add_kubernetes(systems: Any) -> None:
    parser = systems.add_parser(
        "kubernetes",
        usage="kfit manifest kubernetes --image IMAGE [options] (script.py | -m module) [args...]",
        help="an indexed Job with its Service, or a TFJob",
        description="Writes YAML for `kubectl apply -f`.",
        allow_abbrev=False,
    )
    parser.add_argument("--image", required=True, help="the container image, with kfit in it")
    parser.add_argument(
        "--kind",
        choices=("job", "tfjob"),
        default="job",
        help="a Job of Kubernetes itself (1.26 or later), or a TFJob of Kubeflow's training "
        "operator v1 (default: job)",
    )
    parser.add_argument("--workers", metavar="N", help="tasks that train (default: 1)")
    parser.add_argument("--chief", action="store_true", help="tfjob: add a separate chief")
    parser.add_argument("--ps", metavar="N", help="tfjob: add N parameter servers and a chief")
    parser.add_argument("--evaluator", action="store_true", help="tfjob: add an evaluator")
    parser.add_argument("--namespace", metavar="NAME", help="the namespace (default: kubectl's)")
    parser.add_argument("--port", metavar="PORT", help="the port of the tasks (default: 2222)")
    parser.add_argument(
        "--backup-claim",
        metavar="NAME",
        help="a PersistentVolumeClaim, mounted at --backup-dir; ReadWriteMany if "
        "pods are on several nodes",
    )
    _add_shared(parser, memory="16Gi")
    parser.set_defaults(command=_kubernetes, parser=parser, shown_as=parser.prog)


def _add_slurm(systems: Any) -> None:
    parser = systems.add_parser(
        "slurm",
        usage="kfit manifest slurm [options] (script.py | -m module) [args...]",
        help="a batch script",
        description="Writes a script for `sbatch`.",
        allow_abbrev=False,
    )
    parser.add_argument("--nodes", metavar="N", help="hosts (default: 1)")
    parser.add_argument("--tasks-per-node", metavar="N", help="workers per host (default: 1)")
    parser.add_argument("--time", metavar="T", help="the time limit, such as 24:00:00")
    parser.add_argument("--partition", metavar="NAME", help="the partition")
    parser.add_argument("--account", metavar="NAME", help="the account")
    parser.add_argument("--log", metavar="FILE", help="where output goes (default: NAME-%%j.log)")
    parser.add_argument(
        "--setup",
        metavar="LINE",
        action="append",
        default=[],
        help="a line of shell to run first, such as 'module load cuda'; may be given again",
    )
    _add_shared(parser, memory="64G")
    parser.set_defaults(command=_slurm, parser=parser, shown_as=parser.prog)


def _add_shared(parser: argparse.ArgumentParser, memory: str) -> None:
    parser.add_argument("--name", help="the name of the job (default: the program's)")
    parser.add_argument("--cpus", metavar="N", help="CPUs of each task")
    parser.add_argument("--memory", metavar="M", help=f"memory of each task, such as {memory}")
    parser.add_argument("--gpus", metavar="N", help="GPUs of each task (default: 0)")
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an environment variable; may be given again",
    )
    parser.add_argument(
        "--backup-dir",
        metavar="DIR",
        help="the `backup_dir` of BackupAndRestore, which --doctor checks",
    )
    parser.add_argument(
        "--max-restarts", metavar="K", help="as of `kfit run`, in each task (default: 10)"
    )
    parser.add_argument(
        "--start-timeout", metavar="S", help="seconds to wait for all tasks (default: 600)"
    )
    parser.add_argument(
        "--grace", metavar="S", help="seconds a task has to save when it is stopped (default: 30)"
    )
    parser.add_argument(
        "--doctor", action="store_true", help="a job that runs `kfit doctor` on every task instead"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write to a file that does not exist yet, which only you can read",
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="module", help="run a module"
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="script.py", help="the training script"
    )


def _kubernetes(arguments: argparse.Namespace) -> int:
    from kfit.manifest.kubernetes import PodOptions, kubernetes_documents
    from kfit.manifest.tfjob import tfjob_documents
    from kfit.manifest.yaml_text import yaml_text

    job = _job(arguments, _number("--workers", arguments.workers, 1, least=1))
    options = PodOptions(
        image=arguments.image,
        namespace=arguments.namespace,
        port=_number("--port", arguments.port, 2222, least=1),
        backup_claim=arguments.backup_claim,
    )
    refuse_control("--image", options.image)
    servers = _number("--ps", arguments.ps, 0)
    if arguments.kind == "tfjob":
        documents = tfjob_documents(
            job,
            options,
            parameter_servers=servers,
            chief=arguments.chief,
            evaluator=arguments.evaluator,
        )
    else:
        for option, given in (
            ("--chief", arguments.chief),
            ("--ps", servers),
            ("--evaluator", arguments.evaluator),
        ):
            if given:
                raise CommandError(f"`{option}` needs `--kind tfjob`: a Job has workers only")
        documents = kubernetes_documents(job, options)
    header = "# Written by `kfit manifest kubernetes`; start it with `kubectl apply -f FILE`.\n"
    _write(header + yaml_text(documents), arguments.output)
    return 0


def _slurm(arguments: argparse.Namespace) -> int:
    from kfit.manifest.slurm import Allocation, slurm_script

    nodes = _number("--nodes", arguments.nodes, 1, least=1)
    per_node = _number("--tasks-per-node", arguments.tasks_per_node, 1, least=1)
    allocation = Allocation(
        nodes=nodes,
        tasks_per_node=per_node,
        time=arguments.time,
        partition=arguments.partition,
        account=arguments.account,
        output=arguments.log,
        setup=arguments.setup,
    )
    _write(slurm_script(_job(arguments, nodes * per_node), allocation), arguments.output)
    return 0


def _job(arguments: argparse.Namespace, workers: int) -> Job:
    program = _program(arguments)
    for word in program:
        refuse_control("script.py", word)
    if program:
        note_options_of_the_script(program, arguments.parser, arguments.given)
    if arguments.backup_dir is not None and is_url(arguments.backup_dir):
        raise CommandError(
            f"`--backup-dir` is {arguments.backup_dir!r}, a URL; expected a path of a file system, "
            "such as that of a mounted volume"
        )
    name = name_of(program) if arguments.name is None else arguments.name
    return Job(
        name=f"{name}-doctor" if arguments.doctor else name,
        program=program,
        workers=workers,
        cpus=arguments.cpus,
        memory=arguments.memory,
        gpus=_number("--gpus", arguments.gpus, 0),
        max_restarts=_number("--max-restarts", arguments.max_restarts, 10),
        start_timeout=_number("--start-timeout", arguments.start_timeout, 600, least=1),
        grace=_number("--grace", arguments.grace, 30),
        environment=check_environment(arguments.env),
        backup_dir=arguments.backup_dir,
        doctor=arguments.doctor,
    )


def _program(arguments: argparse.Namespace) -> Sequence[str]:
    """Returns the user's program and its arguments, as they are passed to `kfit run`.

    The file need not exist on this host.

    Raises:
        CommandError: If the program is missing, begins with "-", as an option does, is a notebook,
            or is no name of a module after `-m`.
    """
    if arguments.module is not None:
        check_module(arguments.module)
        return ("-m", *arguments.module)
    script = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if not script and not arguments.doctor:
        raise CommandError(
            f"`script.py` is missing; expected `{arguments.shown_as} script.py` or `-m module`"
        )
    if script and script[0].startswith("-"):
        raise CommandError(
            f"`{shlex.quote(script[0])}` is not an option of `kfit manifest`; options come before "
            "the script, the script's own arguments after it"
        )
    if script:
        check_is_script(script, arguments.shown_as)
    return tuple(script)


def _number(option: str, text: str | None, default: int, least: int = 0) -> int:
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        raise CommandError(f"`{option}` is {text!r}; expected a whole number from {least} up")
    return int(text)


def _write(text: str, output: str | None) -> None:
    if output is None:
        print(text, end="")
        return
    try:
        # It may have the secret of the run, and values of `--env`.
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CommandError(f"`--output` is {output!r}: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
