"""Two hosts on one: network namespaces, with a wire between them that tests can disturb.

Each host has a TUN device. The packets that one host sends are read by a thread of the tests, which
delivers them to the other host, unless a test has cut the wire, or delays or loses packets. So the
programs use the real TCP of the operating system. The hosts share files and cores.
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_SET_DEVICE = 0x400454CA  # TUNSETIFF of linux/if_tun.h
_TUN, _NO_HEADER = 0x0001, 0x1000
_LONGEST_PACKET = 1 << 16
_NETWORK = 0x40000000  # CLONE_NEWNET of linux/sched.h
ADDRESSES = ("10.213.77.1", "10.213.77.2")


class Wire:
    """The wire between the two devices: a thread that reads packets and delivers them.

    Args:
        devices: The file descriptors of the devices of host 0 and host 1.

    Attributes:
        passes: For each host, whether what it sends arrives.
        delay: Seconds that each packet takes.
        loss: The share of packets, in each direction, that is lost.
        delivered: How many packets were delivered so far.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = devices
        self._closed, self._close = os.pipe()
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self.passes = [True, True]
        self.delay = 0.0
        self.loss = 0.0
        self.delivered = 0
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        os.write(self._close, b".")
        self._thread.join(10)
        os.close(self._closed)
        os.close(self._close)

    def _deliver(self) -> None:
        draw = random.Random(0)
        under_way: list[tuple[float, int, int, bytes]] = []
        number = 0
        while True:
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            readable, _, _ = select.select([*self._devices, self._closed], [], [], wait)
            if self._closed in readable:
                return
            for sender, device in enumerate(self._devices):
                if device not in readable:
                    continue
                packet = os.read(device, _LONGEST_PACKET)
                if draw.random() >= self.loss:
                    number += 1
                    due = time.monotonic() + self.delay
                    heapq.heappush(under_way, (due, number, sender, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, sender, packet = heapq.heappop(under_way)
                if self.passes[sender]:
                    # A device that is down, or full, loses what it is given, as a network does.
                    with contextlib.suppress(OSError):
                        os.write(self._devices[1 - sender], packet)
                        self.delivered += 1


class TwoHosts:
    """Two network namespaces and the wire between them; see `two_hosts`.

    Args:
        names: The names of the namespaces.
        devices: The names of their devices.
        wire: The wire.
    """

    def __init__(self, names: Sequence[str], devices: Sequence[str], wire: Wire) -> None:
        self._names = names
        self._devices = devices
        self.wire = wire

    def command(self, host: int, *command: str) -> list[str]:
        """The command that runs another one on a host."""
        return ["ip", "netns", "exec", self._names[host], *command]

    @contextlib.contextmanager
    def entered(self, host: int) -> Iterator[None]:
        """Context in which this thread is on a host: the sockets that it makes there stay there."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self._names[host]}", os.O_RDONLY)
        try:
            _enter(there)
            yield
        finally:
            _enter(here)
            os.close(here)
            os.close(there)

    def processes(self, host: int) -> list[int]:
        """The ids of the processes of a host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self._names[host]).split()]

    def set_link(self, host: int, state: str) -> None:
        """Sets the device of a host `up` or `down`."""
        _run("ip", "-n", self._names[host], "link", "set", self._devices[host], state)

    def reset_connections(self, host: int) -> int:
        """Resets all connections of a host with the other one; returns how many there were."""
        other = ADDRESSES[1 - host]
        where = ["dst", other, "or", "dst", f"[::ffff:{other}]"]
        killed = _run(*self.command(host, "ss", "-HKnt", *where))
        return len(killed.splitlines())


def why_not() -> str:
    """Why this machine cannot emulate two hosts; empty if it can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "needs Linux and `ip` of iproute2"
    try:
        with two_hosts():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"this user cannot make network namespaces here: {error}"


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Context with two hosts, which are removed at its end.

    Raises:
        OSError: If this user cannot make devices.
        CalledProcessError: If this user cannot make namespaces.
    """
    with contextlib.ExitStack() as stack:
        names, devices, files = [], [], []
        for host, address in enumerate(ADDRESSES):
            name = f"kfit-tests-{os.getpid()}-{host}"
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            file = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, file)
            request = struct.pack("16sH22x", b"kfit%d", _TUN | _NO_HEADER)
            device = fcntl.ioctl(file, _SET_DEVICE, request)[:16].rstrip(b"\0").decode()
            _run("ip", "link", "set", device, "netns", name)
            for change in (
                f"addr add {address}/30 dev {device}",
                f"link set {device} txqueuelen 10000 up",
                "link set lo up",
            ):
                _run("ip", "-n", name, *change.split())
            # Else connections begin with what earlier ones, of another test, learned of the wire.
            save = "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save"
            _run("ip", "netns", "exec", name, "sh", "-c", save)
            names.append(name)
            devices.append(device)
            files.append(file)
        wire = Wire(files)
        stack.callback(wire.close)
        yield TwoHosts(names, devices, wire)


def _enter(namespace: int) -> None:
    # `os.setns` needs Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Training:
    """A training on both hosts, each of which runs `kfit run`; see `training`.

    Args:
        folder: The folder of the training, with the output of each host.
        processes: The processes of `kfit run`, by host.
    """

    def __init__(self, folder: Path, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.folder = folder
        self.processes = processes

    def output(self, host: int) -> str:
        """What a host has printed so far."""
        return (self.folder / f"output-{host}").read_text(errors="replace")

    def outputs(self) -> str:
        """What both hosts have printed lately, for the message of a test that fails."""
        return "\n".join(f"host {host}:\n{self.output(host)[-6000:]}" for host in (0, 1))

    def wait_until(self, is_so: Any, seconds: float) -> None:
        """Waits until a function returns something true; an error tells what was printed."""
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self.outputs()
            time.sleep(0.02)

    def codes(self, seconds: float) -> list[int | None]:
        """Waits for both hosts to end, and returns their exit codes."""
        self.wait_until(lambda: None not in [each.poll() for each in self.processes], seconds)
        return [each.returncode for each in self.processes]


@contextlib.contextmanager
def training(
    hosts: TwoHosts, folder: Path, program: Path, *arguments: str, restarts: int = 0
) -> Iterator[Training]:
    """Context in which `kfit run` runs a program on each host, as a worker of one cluster.

    Args:
        hosts: The hosts.
        folder: A folder for the output; what is there stays, and is added to.
        program: The program.
        *arguments: Its arguments.
        restarts: How often `kfit run` may start it again.
    """
    folder.mkdir(exist_ok=True)
    addresses = [f"{address}:2222" for address in ADDRESSES]
    command = [sys.executable, "-m", "kfit", "run", "--max-restarts", str(restarts)]
    inherited = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PYTHONSAFEPATH")}
    with contextlib.ExitStack() as stack:
        processes = []
        for host in (0, 1):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": host}}
            output = stack.enter_context(open(folder / f"output-{host}", "ab"))
            process = subprocess.Popen(
                hosts.command(host, *command, str(program), *arguments),
                cwd=folder,
                env={
                    **inherited,
                    "TF_CONFIG": json.dumps(task),
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "TF_NUM_INTRAOP_THREADS": "1",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield Training(folder, processes)
