"""One task that runs beside the others, under a supervisor of its own.

An evaluator has no part in the collectives of the workers, and a worker of asynchronous training is
in none: when it dies or hangs it is started again alone, and training goes on. So `kfit run` starts
it by this module,

    python -m kfit.supervisor.sidecar --max-restarts 3 'evaluator 0' script.py ...

and looks at it as at one task, which fails when its own supervisor has given it up. The run of that
supervisor is another one, with generations of its own, so KFIT_BESIDE tells the task of the outer.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from kfit.supervisor.process_group import TaskCommand
from kfit.supervisor.supervisor import DEFAULT_GRACE, HangTimeout, Supervisor


def beside(
    command: TaskCommand,
    *,
    grace: float = DEFAULT_GRACE,
    max_restarts: int = 0,
    hang_timeout: HangTimeout = "auto",
) -> TaskCommand:
    """Returns the command that runs `command` under a supervisor of its own.

    Args:
        command: The task.
        grace: As for `Supervisor`.
        max_restarts: As for `Supervisor`; a budget of the task's own.
        hang_timeout: As for `Supervisor`.
    """
    options = ["--grace", str(grace), "--max-restarts", str(max_restarts)]
    options += ["--hang-timeout", "off" if hang_timeout is None else str(hang_timeout)]
    argv = (sys.executable, "-m", __name__, *options, command.name, *command.argv)
    return replace(command, argv=argv, beside=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the task; returns the exit code of its run."""
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
        # The supervisor above puts the name before the lines.
        prefix=False,
    ).run()


if __name__ == "__main__":
    raise SystemExit(main())
