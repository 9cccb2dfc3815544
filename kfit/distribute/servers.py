"""The servers of asynchronous training: worker and ps tasks, which a coordinator uses."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kfit.cluster.cluster import Cluster, ClusterError, split_address
from kfit.cluster.resolvers import start_timeout_of
from kfit.cluster.sockets import call, explain, listen

_LOOK_INTERVAL = 1.0
# Seconds for one call. A call of a host that is down takes all of them, so calls run in parallel.
_ANSWER = 2.0
_MOST_CALLS = 64
_TOLD_TO_STOP = 128 + signal.SIGTERM


def serve(cluster: Cluster) -> int:
    """Runs the server of this worker or ps task until SIGTERM, or until the chief has ended.

    If `cluster` lists a chief, this task looks for it every second. After the chief has been up,
    and then gone for the start timeout (KFIT_START_TIMEOUT, by default 60 s), the task ends. A
    chief that has not been up yet is waited for without limit; after the start timeout a message
    reports it. If `cluster` lists no chief, the server runs until it is stopped.

    Args:
        cluster: The cluster, as seen by this task.

    Returns:
        The exit code of the task: 0 when the chief has ended, 143 after SIGTERM.

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
    server = tf.distribute.Server(
        spec, job_name=task.type, task_index=task.id, protocol="grpc", start=True
    )
    print(f"kfit: {task} serves on {cluster.address}", flush=True)
    done = threading.Event()
    previous: Any = None
    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGTERM, lambda *_: done.set())
    try:
        _wait(cluster, done, start_timeout_of())
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
    del server
    return int(_TOLD_TO_STOP) if done.is_set() else 0


def _wait(cluster: Cluster, done: threading.Event, patience: float) -> None:
    """Waits for `done`, or until the chief has been up and then gone for `patience` seconds.

    It prints a message if the chief has not been up within `patience` seconds, and when it stops
    waiting because the chief is gone.

    Args:
        cluster: The cluster, as seen by this task.
        done: Set when this task must stop.
        patience: Seconds.
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
    """Waits until all workers and ps tasks can be reached.

    Args:
        cluster: The cluster.
        timeout: Seconds to wait.

    Raises:
        ClusterError: If some do not start in time; each is named with the reason.
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
    """Returns why an address cannot be reached; None if it accepts connections."""
    try:
        with call(address, timeout=_ANSWER):
            return None
    except OSError as error:
        return explain(error, split_address(address)[0])[0]
