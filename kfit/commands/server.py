"""The `kfit server` command: one worker or ps of a cluster that a coordinator makes use of."""

from __future__ import annotations

import argparse
from typing import Any

from kfit.argument_checks import CommandError
from kfit.cluster.cluster import Cluster, ClusterError, Task, check_has_servers
from kfit.cluster.resolvers import cluster_source, current_cluster


def add_server(commands: Any) -> None:
    """Adds the command to those of `kfit`."""
    parser = commands.add_parser(
        "server",
        help="run one worker or ps of a cluster for asynchronous training",
        description="Serve a coordinator: a program that trains with the strategy "
        "'parameter_server', here or elsewhere, one after the other. The cluster is that of "
        "TF_CONFIG, or is given by --worker, --ps and --task. It ends with SIGTERM, or, where the "
        "cluster lists a chief, when that has gone.",
        allow_abbrev=False,
    )
    parser.add_argument("--worker", metavar="HOST:PORT,...", help="addresses of all workers")
    parser.add_argument("--ps", metavar="HOST:PORT,...", help="addresses of all ps tasks")
    parser.add_argument("--task", metavar="TYPE:INDEX", help="this task, as worker:0 or ps:1")
    parser.set_defaults(command=_server)


def _server(arguments: argparse.Namespace) -> int:
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
    # Here, so that a wrong option is refused before the seconds that TensorFlow takes.
    from kfit.distribute.servers import serve

    return serve(cluster)


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
