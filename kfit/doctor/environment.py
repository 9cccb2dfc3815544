"""Checks for environment variables that are known to break training."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from kfit.cluster.cluster import Cluster, Task, split_address
from kfit.cluster.variables import misspelled_variables
from kfit.doctor.findings import Finding

Environ = Mapping[str, str]

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_NUMBERS = {
    "KFIT_START_TIMEOUT": "a number of seconds above 0",
    "OMP_NUM_THREADS": "a whole number from 1 up",
    "TF_NUM_INTEROP_THREADS": "a whole number from 0 up",
    "TF_NUM_INTRAOP_THREADS": "a whole number from 0 up",
}


def check_environment(
    environ: Environ,
    cluster: Cluster | None,
    interfaces: Callable[[], Sequence[str]] | None = None,
) -> list[Finding]:
    """Checks for environment variables that are known to break training.

    Args:
        environ: The environment variables.
        cluster: The cluster of this process, or None. No proxy may be set for its hosts.
        interfaces: A function that returns the names of this host's network interfaces. By default
            the operating system is asked.

    Returns:
        A finding for each wrong variable; if no variable is wrong, one finding without a problem.
    """
    found = [
        *_proxies(environ, cluster),
        *_backend(environ),
        *_legacy_keras(environ),
        *_numbers(environ),
        *_misspelled(environ),
        *_nccl_interface(environ, interfaces or _interfaces),
    ]
    return found or [Finding("environment", True, "no variable that is known to break training")]


def _problem(variable: str, text: str, fix: str) -> Finding:
    return Finding("environment", False, text, fix, about=variable)


def _proxies(environ: Environ, cluster: Cluster | None) -> Iterator[Finding]:
    """Finds out whether TensorFlow's gRPC would connect to the other tasks through a proxy.

    If the proxy does not make these connections, TensorFlow may wait for ever.

    Yields:
        A finding if a proxy would be used.
    """
    if cluster is None or cluster.is_evaluator:
        return
    name = next((name for name in _PROXIES if environ.get(name)), None)
    if name is None:
        return
    spared = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    endings = [part.strip() for part in spared.split(",") if part.strip()]
    # No task connects to an evaluator, nor does an evaluator connect to others.
    hosts = {
        split_address(address)[0]
        for task_type, addresses in cluster.addresses.items()
        for index, address in enumerate(addresses)
        if task_type != "evaluator" and Task(task_type, index) != cluster.task
    }
    through = sorted(host for host in hosts if not any(host.endswith(end) for end in endings))
    if through:
        shown = ", ".join(through[:3]) + (", ..." if len(through) > 3 else "")
        yield _problem(
            name,
            f"`{name}` is set, so TensorFlow calls {shown} through a proxy and may wait for ever",
            f"unset {name} for training, or list the hosts of all tasks in no_proxy",
        )


def _backend(environ: Environ) -> Iterator[Finding]:
    backend, where = environ.get("KERAS_BACKEND", ""), "`KERAS_BACKEND`"
    if not backend:
        home = environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
        where = os.path.join(home, "keras.json")
        try:
            with open(where, encoding="utf-8") as file:
                backend = json.load(file).get("backend", "")
        except (OSError, ValueError, AttributeError):
            return
    if backend not in ("", "tensorflow"):
        yield _problem(
            "KERAS_BACKEND",
            f"{where} says that Keras computes with {backend!r}; kfit trains with TensorFlow",
            "set KERAS_BACKEND=tensorflow",
        )


def _legacy_keras(environ: Environ) -> Iterator[Finding]:
    if environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        yield _problem(
            "TF_USE_LEGACY_KERAS",
            "`TF_USE_LEGACY_KERAS` makes `tf.keras` Keras 2, whose models kfit cannot train",
            "unset it, and import `keras`",
        )


def _numbers(environ: Environ) -> Iterator[Finding]:
    for name, expected in _NUMBERS.items():
        text = environ.get(name)
        if text is None:
            continue
        # OpenMP takes a list with one number for each level of nested parallelism.
        first = text.split(",")[0] if name == "OMP_NUM_THREADS" else text
        try:
            number = float(first) if name == "KFIT_START_TIMEOUT" else int(first)
        except ValueError:
            number = -1
        lowest = 0 if expected.endswith("0 up") else 1 if "whole" in expected else math.ulp(0.0)
        if not (number >= lowest and math.isfinite(number)):
            yield _problem(
                name, f"`{name}` is {text!r}; expected {expected}", "correct or unset it"
            )


def _misspelled(environ: Environ) -> Iterator[Finding]:
    for name, meant in misspelled_variables(environ):
        text = f"`{name}` is no variable of kfit, which ignores it"
        yield _problem(name, text, f"did you mean `{meant}`? If not, give it another name")


def _nccl_interface(environ: Environ, interfaces: Callable[[], Sequence[str]]) -> Iterator[Finding]:
    """Checks that NCCL_SOCKET_IFNAME selects at least one of this host's network interfaces.

    NCCL, which connects GPUs, reads this variable: a list of prefixes of interface names. With "="
    in front, it is a list of whole names. With "^" in front, the listed interfaces are excluded.

    Yields:
        A finding if no interface is selected.
    """
    text = environ.get("NCCL_SOCKET_IFNAME", "")
    if not text:
        return
    names = interfaces()
    exactly, excluded = text.lstrip("^").startswith("="), text.startswith("^")
    listed = text.lstrip("^=").split(",")

    def is_listed(name: str) -> bool:
        return any(name == each if exactly else name.startswith(each) for each in listed)

    if not any(is_listed(name) != excluded for name in names):
        yield _problem(
            "NCCL_SOCKET_IFNAME",
            f"`NCCL_SOCKET_IFNAME` is {text!r}, which fits none of this host's network "
            f"interfaces, {', '.join(names)}",
            "name the interface by which the hosts of the cluster reach each other, or unset it",
        )


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]
