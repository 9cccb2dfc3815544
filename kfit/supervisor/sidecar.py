"""Runs a task that the other tasks can do without, under a supervisor of its own.

The workers do not wait for an evaluator, and asynchronous training can go on without one of its
workers for some time. When such a task fails or hangs, it is restarted alone, while training
continues. So `kfit run` starts an evaluator, or a worker of asynchronous training, by this module:

    python -m kfit.supervisor.sidecar --max-restarts 3 'evaluator 0' script.py ...

There are two supervisors then: the outer one runs all tasks, and the inner one, in this process,
runs the single task. For the outer supervisor this process is a task, which fails when the inner
supervisor gives up. Each supervisor has its own identifier of the run, and counts its own
generations (attempts). The task gets those of the inner supervisor in KFIT_RUN and KFIT_GENERATION,
and those of the outer supervisor in KFIT_BESIDE.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace

from kfit.supervisor.backend import LocalBackend
from kfit.supervisor.process_group import TaskCommand, own_program
from kfit.supervisor.supervisor import DEFAULT_GRACE, HangTimeout, Supervisor


def as_sidecar(
    command: TaskCommand,
    *,
    grace: float = DEFAULT_GRACE,
    max_restarts: int = 0,
    hang_timeout: HangTimeout = "auto",
) -> TaskCommand:
    """Returns a command that runs a task under a supervisor of its own, which restarts it alone.

    `kfit run` uses this for an evaluator, and for the workers of asynchronous training. The other
    tasks continue if such a task fails in the end.

    Args:
        command: The command that starts the task itself.
        grace: Seconds that the task has to stop before it is killed.
        max_restarts: Maximum number of restarts of this task in a row.
        hang_timeout: Seconds without progress after which the task counts as hung; "auto" and None
            as for `Supervisor`.
    """
    options = ["--grace", str(grace), "--max-restarts", str(max_restarts)]
    options += ["--hang-timeout", "off" if hang_timeout is None else str(hang_timeout)]
    argv = own_program("kfit.supervisor.sidecar", *options, command.name, *command.argv)
    return replace(command, argv=argv, dispensable=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a single task under a supervisor of its own, and waits for its end.

    Args:
        argv: Options of the supervisor, the task's name, and its command. None for the arguments of
            this process.

    Returns:
        The exit code of the last attempt, as `Supervisor.run` returns it.
    """
    parser = argparse.ArgumentParser(prog="python -m kfit.supervisor.sidecar", allow_abbrev=False)
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
        # The outer supervisor prints the name before the lines, and that the run was stopped.
        LocalBackend(lambda: [task], prefix=False, tell_processes=True),
        grace=arguments.grace,
        max_restarts=arguments.max_restarts,
        hang_timeout=words[limit] if limit in words else float(limit),
        prefix=False,
        announce_stop=False,
    ).run()


if __name__ == "__main__":
    raise SystemExit(main())
