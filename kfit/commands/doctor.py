"""The command `kfit doctor`."""

from __future__ import annotations

import argparse
from typing import Any

from kfit.argument_checks import CommandError, read_seconds


def add_doctor(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    parser = commands.add_parser(
        "doctor",
        help="say what would make training hang or go wrong, before it does",
        description="Looks at what this process was started with: the cluster, addresses, ports, "
        "versions, directories, GPUs, threads and environment variables. Run it on all tasks at "
        "the same time, as by `srun kfit doctor`: they find each other on their own ports and "
        "compare. The exit code is 0 when all is well and 1 when there is a problem.",
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
        help="the `backup_dir` of BackupAndRestore: whether the chief can write it, and free space",
    )
    parser.add_argument(
        "--shared-dir", metavar="DIR", help="a directory that all tasks should see: whether they do"
    )
    parser.add_argument(
        "--gpus",
        action="store_true",
        help="ask TensorFlow for GPUs, which takes seconds, even where no device is found",
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
