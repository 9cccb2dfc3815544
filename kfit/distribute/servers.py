"""The servers of asynchronous training: the worker and ps tasks, which the chief sends steps to.

A ps task (parameter server) stores variables. The chief, also called coordinator, runs `fit`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from kfit.cluster.cluster import Cluster, ClusterError, split_address
from kfit.cluster.loopback import kept_to_this_host
from kfit.cluster.resolvers import start_timeout_of
from kfit.cluster.sockets import call, explain, listen
from kfit.heartbeat.signal_handlers import TemporaryHandlers

_LOOK_INTERVAL = 1.0
# Seconds for one call. A call of a host that is down takes all of them, so calls run in parallel.
_ANSWER = 2.0
_MOST_CALLS = 64
_TOLD_TO_STOP = 128 + signal.SIGTERM


def serve(cluster: Cluster) -> int:
    """Runs the server of this worker or ps task, until SIGTERM arrives or the chief has ended.

    In asynchronous training one process, the chief, runs `fit`. It sends steps to the worker tasks,
    and stores the variables on the ps tasks (parameter servers); each of these tasks runs a server.
    This task tries every second to reach the chief. If the chief was up, and then cannot be reached
    for as long as the start timeout (the environment variable KFIT_START_TIMEOUT, by default 60 s),
    this task ends. If the chief has not been up yet, this task waits without limit, and prints a
    message after the start timeout. If `cluster` lists no chief, the server runs until SIGTERM
    arrives.

    Args:
        cluster: The cluster, which also tells which of its tasks this process is.

    Returns:
        The exit code of the task: 0 if the chief has ended, 143 after SIGTERM.

    Raises:
        ClusterError: If this task is neither a worker nor a ps, or its port is taken.
    """
    task = cluster.task
    if not cluster.serves:
        raise ClusterError(
            f"`task` is {task}; only a worker or a ps of a cluster with both can be a server"
        )
    import tensorflow as tf

    # So that servers reconnect to each other after one of them has been restarted.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    spec = tf.train.ClusterSpec({kind: list(cluster.addresses[kind]) for kind in ("worker", "ps")})
    with listen(cluster):
        pass  # raises ClusterError if the address is taken
    with kept_to_this_host(cluster):
        server = tf.distribute.Server(
            spec, job_name=task.type, task_index=task.id, protocol="grpc", start=True
        )
    print(f"kfit: {task} serves on {cluster.address}", flush=True)
    done = threading.Event()
    with TemporaryHandlers(lambda *_: done.set()) as handlers:
        if threading.current_thread() is threading.main_thread():
            handlers.take(signal.SIGTERM)
        _wait(cluster, done, start_timeout_of())
    del server
    return int(_TOLD_TO_STOP) if done.is_set() else 0


def _wait(cluster: Cluster, done: threading.Event, patience: float) -> None:
    """Waits until `done` is set, or the chief was up and then was gone for `patience` seconds.

    `serve` calls it while the server of this task runs. A message is printed if the chief has not
    been up within `patience` seconds, and when the waiting ends since the chief is gone.

    Args:
        cluster: The cluster, which also tells which of its tasks this process is.
        done: The event that is set when this task must stop.
        patience: Seconds for which the chief may be out of reach.
    """
    chief = cluster.addresses.get("chief", (None,))[0]
    looked_since, seen, has_said = time.monotonic(), False, False
    while not done.wait(_LOOK_INTERVAL):
        if chief is None:
            continue
        why = why_not_up(chief)
        now = time.monotonic()
        if why is None:
            looked_since, seen = now, True
        elif now - looked_since > patience and seen:
            print(
                f"kfit: {cluster.task} ends: the chief at {chief} has been gone for {patience:g} s "
                "(KFIT_START_TIMEOUT)",
                flush=True,
            )
            return
        elif now - looked_since > patience and not has_said:
            has_said = True
            print(
                f"kfit: {cluster.task} waits for the chief at {chief}, which has not come for "
                f"{patience:g} s: {why}",
                flush=True,
            )


def wait_for_servers(cluster: Cluster, timeout: float) -> None:
    """Waits until the servers of all workers and ps tasks accept connections.

    The chief calls it before it connects to them.

    Args:
        cluster: The cluster with their addresses.
        timeout: Seconds to wait.

    Raises:
        ClusterError: If some servers do not start in time. The message names each with the reason.
    """
    missing = {
        f"{kind} {index}": address
        for kind in ("ps", "worker")
        for index, address in enumerate(cluster.addresses[kind])
    }
    deadline = time.monotonic() + timeout
    with ThreadPoolExecutor(min(len(missing), _MOST_CALLS), "kfit-call") as callers:
        while True:
            reasons = dict(zip(missing, callers.map(why_not_up, missing.values()), strict=True))
            missing = {name: missing[name] for name, why in reasons.items() if why is not None}
            if not missing:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
    listed = "; ".join(f"{name} at {missing[name]} ({reasons[name]})" for name in missing)
    raise ClusterError(
        f"not up after {timeout:g} s: {listed}. Start each with `kfit server`, or all tasks on "
        "this host with `kfit run --workers N --ps M script.py`; see whether the addresses are "
        "right"
    )


def why_not_up(address: str) -> str | None:
    """Returns the reason why a task cannot be reached; None if the task accepts connections.

    Args:
        address: The `host:port` of the task.
    """
    try:
        with call(address, timeout=_ANSWER):
            return None
    except OSError as error:
        return explain(error, split_address(address)[0])[0]
