"""The command `kfit server`, which runs a worker or ps task for asynchronous training.

Such a task is a server: it runs what a coordinator (the task with the user's program) sends.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from kfit.argument_checks import CommandError
from kfit.cluster.cluster import Cluster, ClusterError, Task, check_has_servers
from kfit.cluster.resolvers import cluster_source, current_cluster


def add_server(commands: Any) -> None:
    """Adds the command `server` to the subcommands of `kfit`.

    Args:
        commands: What `ArgumentParser.add_subparsers` has returned.
    """
    parser = commands.add_parser(
        "server",
        help="run one worker or ps of a cluster for asynchronous training",
        description="Serves a coordinator: a program that trains with the strategy "
        "'parameter_server' on this host or another one. It can serve several coordinators, one "
        "after the other. The cluster is that of TF_CONFIG, or is given by --worker, --ps and "
        "--task. The server ends on SIGTERM or, if the cluster lists a chief, when the chief has "
        "ended.",
        allow_abbrev=False,
    )
    parser.add_argument("--worker", metavar="HOST:PORT,...", help="addresses of all workers")
    parser.add_argument("--ps", metavar="HOST:PORT,...", help="addresses of all ps tasks")
    parser.add_argument("--task", metavar="TYPE:INDEX", help="this task: worker:0, ps:1, ...")
    parser.set_defaults(command=_server)


def _server(arguments: argparse.Namespace) -> NoReturn:
    given = [arguments.worker, arguments.ps, arguments.task]
    if any(given):
        cluster = _of_arguments(arguments)
    else:
        described = current_cluster()
        if described is None:
            raise CommandError(
                "no cluster is described: give --worker, --ps and --task, or set TF_CONFIG"
            )
        cluster = described
    check_has_servers(cluster, cluster_source() or "`cluster`")
    # Imported only here, because it imports TensorFlow, which takes seconds. Wrong options are
    # reported before.
    from kfit.distribute.servers import serve

    code = serve(cluster)
    # TensorFlow takes three seconds to take a server apart that a coordinator has called, and the
    # tasks of a failed run are killed before that. Nothing of it is needed: the process ends.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _of_arguments(arguments: argparse.Namespace) -> Cluster:
    for option in ("worker", "ps", "task"):
        if not getattr(arguments, option):
            raise CommandError(
                f"`--{option}` is missing; expected --worker HOST:PORT,... --ps HOST:PORT,... and "
                "--task TYPE:INDEX together"
            )
    kind, _, index = arguments.task.partition(":")
    if kind not in ("worker", "ps") or not index.isdecimal():
        raise CommandError(f"`--task` is {arguments.task!r}; expected worker:INDEX or ps:INDEX")
    addresses = {
        option: tuple(part.strip() for part in getattr(arguments, option).split(","))
        for option in ("worker", "ps")
    }
    try:
        return Cluster(addresses, Task(kind, int(index)))
    except ClusterError as error:
        raise CommandError(f"`--worker`, `--ps` and `--task`: {error}") from None
