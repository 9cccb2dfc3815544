"""Makes the commands of a cluster on this host: the program, ports and environment of each task."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Mapping, Sequence

from kfit.cluster import secret
from kfit.cluster.cluster import Cluster, Task
from kfit.supervisor.process_group import TaskCommand, own_program

# How many random ports, beyond those needed, are tried before the system chooses.
_SPARE = 200


def free_ports(count: int) -> tuple[int, ...]:
    """Finds free ports of this host, on which the tasks of a cluster can listen.

    If possible, the ports are below the range from which the system takes ports for outgoing
    connections. Otherwise this could happen: a worker calls a peer that has not started yet, the
    system gives the worker the peer's port for this connection, and the peer then finds its port
    taken.

    Args:
        count: The number of ports.

    Returns:
        The ports, all different.
    """
    lowest, highest = 10_000, _first_ephemeral_port()
    wanted: list[int] = []
    if highest - lowest >= 1000:
        chance = random.SystemRandom()
        wanted = [chance.randrange(lowest, highest) for _ in range(count + _SPARE)]
    # All ports are held until the last one is found, so that they differ. They are bound on all
    # interfaces, as TensorFlow's server does.
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
    ps: int = 0,
    evaluator: bool = False,
    started_by: str = "`kfit run`",
) -> list[TaskCommand]:
    """Makes the commands of a cluster whose tasks all run on this host.

    Args:
        argv: The program and its arguments.
        workers: The number of workers. A single worker is no cluster, and gets no `TF_CONFIG`.
        environ: The environment variables that the tasks start with. Variables that the user has
            set, such as those for threads and the log level, are kept.
        ps: The number of ps tasks. With one or more, training is asynchronous: a chief runs the
            program, and the workers and ps tasks are servers.
        evaluator: Whether to add an evaluator. If so, a single worker is part of a cluster, too.
        started_by: What the user has called, for messages about the cluster.

    Returns:
        One command for each task: the chief, if there is one, the workers in the order of their
        numbers, the ps tasks, and the evaluator. The tasks have a new secret in common, by which
        they recognize each other's messages. The tasks' ports are free now. The evaluator has
        an address, but does not listen there.
    """
    tasks = [Task("chief", 0)] if ps else []
    tasks += [Task("worker", index) for index in range(workers)]
    tasks += [Task("ps", index) for index in range(ps)]
    tasks += [Task("evaluator", 0)] if evaluator else []
    run_secret = secret.new_secret()
    addresses: dict[str, tuple[str, ...]] = {}
    if len(tasks) > 1:
        for task, port in zip(tasks, free_ports(len(tasks)), strict=True):
            addresses[task.type] = (*addresses.get(task.type, ()), f"127.0.0.1:{port}")
    commands = []
    for task in tasks:
        env = {**thread_limits(_num_cores() // workers), **task_environment(environ)}
        # kfit ignores an empty TF_CONFIG, but TensorFlow raises an error.
        env.pop("TF_CONFIG", None)
        # Other descriptions of a cluster in the environment must not replace this one.
        env["KFIT_CLUSTER"] = "tf_config" if addresses else "none"
        program, serves = tuple(argv), False
        if addresses:
            cluster = Cluster(addresses, task)
            env["TF_CONFIG"] = cluster.to_tf_config()
            env[secret.VARIABLE] = run_secret
            env["KFIT_STARTED_BY"] = started_by
            serves = cluster.serves
            if serves:
                program = own_program("kfit", "server")
        commands.append(TaskCommand(str(task), program, env, serves=serves))
    return commands


def task_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables for a task that a supervisor runs.

    Compared to `environ`, two things change. Python's output is not buffered, so that lines appear
    at once, and are not lost if the task is killed. And most of TensorFlow's start-up messages,
    which each worker would print, are turned off, unless `environ` sets their level. (The others
    are not printed where the output of a task goes through a pipe; see `is_start_up_message`.)

    Args:
        environ: The environment variables to start from.
    """
    return {"TF_CPP_MIN_LOG_LEVEL": "2", **environ, "PYTHONUNBUFFERED": "1"}


def thread_limits(cores: int) -> dict[str, str]:
    """Returns environment variables that make TensorFlow use only some of a host's cores.

    Args:
        cores: The number of cores that a task may use; 0 is taken for 1.
    """
    # By default every TensorFlow process uses all cores, so the workers of a host compete for them:
    # the tutorial CNN on 2 workers and 2 cores ran about twice as fast with 1 thread each.
    share = max(1, cores)
    return {
        "OMP_NUM_THREADS": str(share),
        "TF_NUM_INTRAOP_THREADS": str(share),
        # One op may wait for the peers in an all-reduce; a second thread runs other ops meanwhile.
        "TF_NUM_INTEROP_THREADS": str(max(2, share)),
    }


def _num_cores() -> int:
    """Returns how many cores this process may use; a job scheduler may have limited the number."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _first_ephemeral_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as setting:
            return int(setting.read().split()[0])
    except (OSError, ValueError, IndexError):
        # The first port of the range that IANA recommends, and that macOS uses.
        return 49_152
