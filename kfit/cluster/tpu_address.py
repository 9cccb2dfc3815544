"""Finds the TPU that this process is to use, without a long wait for a TPU that does not exist.

A TPU is given by an address or by a name. For an address, this module checks that the TPU accepts a
connection. For a name, TensorFlow asks Google's metadata server for the address of the TPU. Outside
of Google Cloud there is no such server, and TensorFlow waits a minute or more for an answer. So for
a name, this module first checks that the metadata server accepts a connection. The module does not
import TensorFlow.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

_PORT = 8470
_RETRY_SECONDS = 0.5
_DEVICE_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
_LIBRARIES = ("/lib/libtpu.so", "/usr/lib/libtpu.so")


class TPUNotFoundError(RuntimeError):
    """An error that is raised if there is no TPU, or the TPU does not answer.

    The message says where kfit looked for the TPU.
    """


class TPUAddress(NamedTuple):
    """The address or name of a TPU, and where kfit has found this address or name.

    Attributes:
        tpu: "local" for the TPU of this host, an address such as "grpc://host:8470", or the TPU's
            name in Google Cloud.
        source: The argument, environment variable or device file from which the address or name
            comes. It is used in messages.
    """

    tpu: str
    source: str


def find_tpu(environment: Mapping[str, str] | None = None) -> TPUAddress | None:
    """Returns the TPU to use by default.

    It is the TPU that an environment variable names or, if there is no such variable, the TPU of
    this host. No connection to the TPU is opened.

    Args:
        environment: The environment variables to read; None for those of this process.

    Returns:
        The TPU's address or name; None if there is no TPU.
    """
    environment = os.environ if environment is None else environment
    for variable in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR"):
        value = environment.get(variable, "").strip()
        if value:
            is_address = variable != "TPU_NAME" and "://" not in value
            return TPUAddress(f"grpc://{value}" if is_address else value, variable)
    files = _device_files()
    if files and has_libtpu(environment):
        return TPUAddress("local", files[0])
    return None


def has_libtpu(environment: Mapping[str, str]) -> bool:
    """Returns whether libtpu, the driver library of a TPU on this host, is installed.

    Args:
        environment: The environment variables. If TPU_LIBRARY_PATH is set, libtpu is taken to be
            installed there.
    """
    return (
        bool(environment.get("TPU_LIBRARY_PATH"))
        or any(map(os.path.exists, _LIBRARIES))
        or importlib.util.find_spec("libtpu") is not None
    )


def wait_for_tpu(address: TPUAddress, timeout: float, *, asks_metadata: bool = True) -> None:
    """Checks that TensorFlow will find a TPU, and waits for the TPU if needed.

    What the function does depends on how the TPU is given:

    - by an address: the function waits until the TPU accepts a connection;
    - by a name in Google Cloud: the function waits until Google's metadata server accepts a
      connection, since TensorFlow asks that server for the TPU's address;
    - as the TPU of this host: the function checks that this host has a TPU, and does not wait.

    Args:
        address: The TPU's address or name.
        timeout: How many seconds to wait for a connection.
        asks_metadata: Whether TensorFlow will ask the metadata server about a TPU that is given by
            a name. If False, the function does not wait for the server.

    Raises:
        TPUNotFoundError: If there is no connection in time, this host has no TPU, or a Python
            package that TensorFlow needs to find a TPU by its name is not installed.
    """
    tpu, source = address
    if tpu == "local":
        if not (_device_files() and has_libtpu(os.environ)):
            raise TPUNotFoundError(
                f"`tpu='local'` (from {source}) is a TPU of this host, which has none: there is no "
                f"{' or '.join(_DEVICE_FILES)} together with libtpu. Run on a Cloud TPU VM with "
                "`pip install tensorflow-tpu`, or pass the address of a TPU, 'grpc://host:8470'."
            )
        return
    if tpu.startswith("grpc://"):
        host, port = _host_and_port(tpu)
        reason = _asked(host, port, timeout)
        if reason is not None:
            raise TPUNotFoundError(
                f"`tpu={tpu!r}` (from {source}) does not answer at {host}:{port}: {reason}. Look "
                "whether the TPU is up and its address is right; with a longer `timeout` (seconds) "
                "kfit waits for one that is still starting."
            )
        return
    _check_client(tpu, source)
    server = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP")
    host, port = _host_and_port(server or "metadata.google.internal", 80)
    reason = _asked(host, port, timeout) if asks_metadata else None
    if reason is not None:
        raise TPUNotFoundError(
            f"`tpu={tpu!r}` (from {source}) is the name of a TPU in Google Cloud, and the metadata "
            f"server that knows it, {host}:{port}, does not answer: {reason}. Run in Google Cloud, "
            "pass `project` and `zone`, or pass an address, 'grpc://host:8470', or 'local'."
        )


def no_tpu() -> TPUNotFoundError:
    """Returns the error to raise if no TPU is named and this host has none."""
    return TPUNotFoundError(
        "strategy 'tpu' found no TPU: neither TPU_NAME, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS nor "
        f"COLAB_TPU_ADDR is set, and this host has no {' or '.join(_DEVICE_FILES)} together with "
        "libtpu. Pass kfit.distribute.TPU(tpu='grpc://host:8470'), run on a Cloud TPU VM, or "
        "choose another `strategy`."
    )


def _device_files() -> list[str]:
    return sorted(path for pattern in _DEVICE_FILES for path in glob.glob(pattern))


def _check_client(tpu: str, source: str) -> None:
    missing = [n for n in ("googleapiclient", "oauth2client") if not importlib.util.find_spec(n)]
    if missing:
        raise TPUNotFoundError(
            f"`tpu={tpu!r}` (from {source}) is the name of a TPU in Google Cloud, and TensorFlow "
            f"needs {' and '.join(missing)} to look it up. Run `pip install cloud-tpu-client`, or "
            "pass an address, 'grpc://host:8470', or 'local'."
        )


def _host_and_port(address: str, port: int = _PORT) -> tuple[str, int]:
    """Splits the address of a TPU, or of the metadata server, into host and port.

    Args:
        address: The address, such as "grpc://host:8470". If it is a list of addresses with commas
            between them, the first one is used.
        port: The port to return if the address contains none.

    Raises:
        TPUNotFoundError: If the port in the address is not a number.
    """
    first = address.removeprefix("grpc://").split(",")[0]
    host, _, text = first.partition(":")
    if text and not text.isdecimal():
        raise TPUNotFoundError(
            f"`tpu` must be an address such as 'grpc://host:8470'. Received: {address!r}"
        )
    return host, int(text) if text else port


def _asked(host: str, port: int, timeout: float) -> str | None:
    """Tries to connect to a server, again and again until `timeout` seconds have passed.

    The connection is closed at once: this only tests whether the server is up.

    Returns:
        None if a connection has succeeded; otherwise the reason why the last attempt has failed.
    """
    end = time.monotonic() + timeout
    while True:
        reason = _connected(host, port, max(0.1, end - time.monotonic()))
        if reason is None or time.monotonic() + _RETRY_SECONDS > end:
            return reason
        time.sleep(_RETRY_SECONDS)


def _connected(host: str, port: int, timeout: float) -> str | None:
    """Tries once to connect to a server, for at most `timeout` seconds.

    It does so in another thread, since looking up a host name cannot be limited in time.

    Returns:
        None if the connection has succeeded; otherwise the reason why it has failed.
    """
    answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout).close()
        except (OSError, UnicodeError) as error:  # the host may be a text that is no name
            answer.put(str(error))
        else:
            answer.put(None)

    threading.Thread(target=connect, daemon=True).start()
    try:
        return answer.get(timeout=timeout)
    except queue.Empty:
        return f"no answer within {timeout:.1f} s"
