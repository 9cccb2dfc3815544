"""A cluster on this host: which ports, which environment each of its tasks gets."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence

from kfit.cluster.cluster import Cluster, Task
from kfit.supervisor.process_group import TaskCommand

# How many of the ports that chance suggests may be taken before the system is asked.
_SPARE = 200


def free_ports(count: int) -> tuple[int, ...]:
    """Finds ports of the loopback interface that nobody uses.

    Args:
        count: How many.

    Returns:
        Different ports, below the range from which the system gives ports to outgoing
        connections: in that range, a worker that calls a peer which is not up yet can be given the
        peer's very port, and the peer then finds it taken.
    """
    lowest, highest = 10_000, _first_ephemeral_port()
    wanted: list[int] = []
    if highest - lowest >= 1000:
        chance = random.SystemRandom()
        wanted = [chance.randrange(lowest, highest) for _ in range(count + _SPARE)]
    # All are held until the last one is found, so that they differ; on all interfaces, where
    # TensorFlow's server will listen.
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in wanted:
            if len(ports) == count:
                break
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("", port)))
                ports.append(port)
        while len(ports) < count:
            server = held.enter_context(socket.create_server(("", 0)))
            ports.append(server.getsockname()[1])
        return tuple(ports)


def local_commands(
    argv: Sequence[str],
    workers: int,
    environ: Mapping[str, str] = os.environ,
    *,
    joining: Sequence[str] | None = None,
    ps: int = 0,
    evaluator: bool = False,
) -> list[TaskCommand]:
    """Makes the commands of a cluster whose tasks all run on this host.

    Args:
        argv: The program and its arguments.
        workers: How many; a single one gets no `TF_CONFIG`, as it is no cluster.
        environ: The environment variables that the tasks start from. What the user has set
            there, threads and log level included, stays as it is.
        joining: The program of those tasks that join a cluster at their start; None is `argv`.
        ps: How many ps tasks; with one or more, training is asynchronous: a chief runs the program,
            and the workers and ps are servers.
        evaluator: Whether an evaluator is one of the tasks; with it one worker is a cluster, too.

    Returns:
        One command a task: the chief, if there is one, and the workers, in the order of their ids,
        the ps, and the evaluator; on ports that are free now. Nobody listens on the evaluator's.
    """
    tasks = [Task("chief", 0)] if ps else []
    tasks += [Task("worker", index) for index in range(workers)]
    tasks += [Task("ps", index) for index in range(ps)]
    tasks += [Task("evaluator", 0)] if evaluator else []
    addresses: dict[str, tuple[str, ...]] = {}
    if len(tasks) > 1:
        for task, port in zip(tasks, free_ports(len(tasks)), strict=True):
            addresses[task.type] = (*addresses.get(task.type, ()), f"localhost:{port}")
    commands = []
    for task in tasks:
        env = {**thread_limits(_num_cores() // workers), **task_environment(environ)}
        # An empty TF_CONFIG is none to us, but an error to TensorFlow.
        env.pop("TF_CONFIG", None)
        # Whatever else the environment describes, this is the cluster that was asked for.
        env["KFIT_CLUSTER"] = "tf_config" if addresses else "none"
        program, serves = tuple(argv), False
        if addresses:
            cluster = Cluster(addresses, task)
            env["TF_CONFIG"] = cluster.to_tf_config()
            serves = cluster.serves
            if serves:
                program = (sys.executable, "-m", "kfit", "server")
            elif cluster.joins and joining is not None:
                program = tuple(joining)
        commands.append(TaskCommand(str(task), program, env, serves=serves))
    return commands


def task_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment of a task that is run by a supervisor.

    Args:
        environ: The environment variables to start from.

    Returns:
        The same, with unbuffered output, so that a line is seen when it is written and not lost
        when the task is killed, and without TensorFlow's start-up messages, once a worker.
    """
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **environ, "PYTHONUNBUFFERED": "1"}


def thread_limits(cores: int) -> dict[str, str]:
    """Returns the environment variables by which TensorFlow uses a share of a host's cores.

    Args:
        cores: How many a task may use; at least one.
    """
    # By default every TensorFlow process takes all cores, and the workers of one host fight over
    # them: the tutorial CNN on 2 workers and 2 cores ran about twice as fast with 1 thread each.
    share = max(1, cores)
    return {
        "OMP_NUM_THREADS": str(share),
        "TF_NUM_INTRAOP_THREADS": str(share),
        # One op waits for the peers in an all-reduce; a second thread keeps the others going.
        "TF_NUM_INTEROP_THREADS": str(max(2, share)),
    }


def _num_cores() -> int:
    """The cores this process may use, which a job scheduler may have restricted."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as setting:
            return int(setting.read().split()[0])
    except (OSError, ValueError, IndexError):
        # What IANA recommends, and macOS does.
        return 49_152
