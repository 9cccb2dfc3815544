"""A task that runs beside the others, under a supervisor of its own.

The workers do not wait for an evaluator, and a worker of asynchronous training can be missing for
some time. When such a task fails or hangs, it is restarted alone, and training continues. So
`kfit run` starts an evaluator, or a worker of asynchronous training, by this module:

    python -m kfit.supervisor.sidecar --max-restarts 3 'evaluator 0' script.py ...

The outer supervisor, that of the other tasks, treats this process as one task, which fails when the
inner supervisor gives up. Each supervisor has its own run and generations (attempts). The task gets
those of the inner one in KFIT_RUN and KFIT_GENERATION, and those of the outer one in KFIT_BESIDE.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from kfit.supervisor.process_group import TaskCommand
from kfit.supervisor.supervisor import DEFAULT_GRACE, HangTimeout, Supervisor


def as_sidecar(
    command: TaskCommand,
    *,
    grace: float = DEFAULT_GRACE,
    max_restarts: int = 0,
    hang_timeout: HangTimeout = "auto",
) -> TaskCommand:
    """Returns the command that runs `command` under a supervisor of its own.

    Its task counts as dispensable: the other tasks continue if it fails.

    Args:
        command: The task.
        grace: As for `Supervisor`.
        max_restarts: As for `Supervisor`; this budget is for this task alone.
        hang_timeout: As for `Supervisor`.
    """
    options = ["--grace", str(grace), "--max-restarts", str(max_restarts)]
    options += ["--hang-timeout", "off" if hang_timeout is None else str(hang_timeout)]
    argv = (sys.executable, "-m", __name__, *options, command.name, *command.argv)
    return replace(command, argv=argv, dispensable=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the task that the command line describes under a supervisor, and waits for its end.

    Args:
        argv: The arguments of the command line; None for those of this process.

    Returns:
        The exit code of the run.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", allow_abbrev=False)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--max-restarts", type=int, required=True)
    parser.add_argument("--hang-timeout", required=True)
    parser.add_argument("name")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    words: dict[str, HangTimeout] = {"auto": "auto", "off": None}
    limit = arguments.hang_timeout
    outer = f"{os.environ['KFIT_RUN']}:{os.environ['KFIT_GENERATION']}"
    environ = {**os.environ, "KFIT_BESIDE": outer}
    task = TaskCommand(arguments.name, tuple(arguments.argv), environ)
    return Supervisor(
        lambda: [task],
        grace=arguments.grace,
        max_restarts=arguments.max_restarts,
        hang_timeout=words[limit] if limit in words else float(limit),
        # The outer supervisor prints the name before the lines.
        prefix=False,
    ).run()


if __name__ == "__main__":
    raise SystemExit(main())
