"""The command `kfit doctor`, which finds problems with a cluster before training is started.

This module reads the options and prints the findings. The checks are in `kfit.doctor`.
"""

from __future__ import annotations

import argparse
from typing import Any

from kfit.argument_checks import CommandError, read_seconds


def add_doctor(commands: Any) -> None:
    """Adds the command `doctor` to the subcommands of `kfit`.

    Args:
        commands: What `ArgumentParser.add_subparsers` has returned.
    """
    parser = commands.add_parser(
        "doctor",
        help="find what would make training hang or fail, before training is started",
        description="Checks the setup of this task: the cluster, addresses, ports, versions, "
        "directories, GPUs, threads and environment variables. Run it on all tasks at the same "
        "time, as by `srun kfit doctor`: they connect to each other's ports and compare their "
        "setups. The exit code is 0 without a problem and 1 with one.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--timeout",
        metavar="S",
        help="seconds to wait for the doctors of the other tasks (default: 8)",
    )
    parser.add_argument(
        "--backup-dir",
        metavar="DIR",
        help="the `backup_dir` of BackupAndRestore: check that the chief can write there, and that "
        "there is space",
    )
    parser.add_argument(
        "--shared-dir", metavar="DIR", help="a directory: check that all tasks see the same one"
    )
    parser.add_argument(
        "--gpus",
        action="store_true",
        help="ask TensorFlow for GPUs, which takes seconds, even if no device is found",
    )
    parser.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from kfit.doctor.examination import DEFAULT_TIMEOUT, Options, examine

    timeout = read_seconds("--timeout", arguments.timeout)
    for option in ("backup_dir", "shared_dir"):
        if getattr(arguments, option) == "":
            name = "--" + option.replace("_", "-")
            raise CommandError(f"`{name}` is empty; expected the path of a directory")
    examination = examine(
        Options(
            timeout=DEFAULT_TIMEOUT if timeout is None else timeout,
            backup_dir=arguments.backup_dir,
            shared_dir=arguments.shared_dir,
            gpus=arguments.gpus,
        )
    )
    print(examination.as_json() if arguments.json else examination.as_text())
    return 0 if examination.ok else 1
