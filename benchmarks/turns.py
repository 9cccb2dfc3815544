"""Runs the contestants alternately, each in new processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

from benchmarks.contests import Contest, Contestant
from kfit.supervisor.local import free_ports

_DEADLINE = 600.0


class Result(NamedTuple):
    """The result of a contestant in one round.

    Attributes:
        value: What the contest measures: the time of the slowest process, in seconds per unit of
            work; or MB of the largest process, in a contest of memory.
        memory: The peak memory of the largest process, in MB.
    """

    value: float
    memory: float


Results = dict[str, list[Result]]
"""The results of a contest, by the names of its contestants."""
Measured = dict[str, Results]
"""The results of several contests, by their keys."""


def measure(contest: Contest, rounds: int, quick: bool) -> Results:
    """Runs each contestant once in every round."""
    results: Results = {name: [] for name in contest.contestants}
    for _ in range(min(rounds, contest.most_rounds)):
        for name, contestant in contest.contestants.items():
            results[name].append(run(contestant, quick))
    return results


def run(contestant: Contestant, quick: bool) -> Result:
    """Runs one contestant once.

    Raises:
        RuntimeError: If it fails; the message has the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        ports = free_ports(contestant.processes)
        tasks = [
            _Task(contestant, index, ports, Path(folder), quick)
            for index in range(contestant.processes)
        ]
        try:
            told = [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.process.kill()
                task.process.wait()
    return Result(*(max(values) for values in zip(*told, strict=True)))


class _Task:
    """A process whose output goes to a pseudo-terminal, as if a person had started it.

    Libraries write their progress bars differently to a terminal, which takes time.
    """

    def __init__(
        self, contestant: Contestant, index: int, ports: tuple[int, ...], folder: Path, quick: bool
    ) -> None:
        self._told = folder / f"result-{index}.json"
        self._said = bytearray()
        screen, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *contestant.command],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            env=_environment(contestant, index, ports)
            | {"RESULT": str(self._told)}
            | ({"QUICK": "1"} if quick else {}),
        )
        os.close(terminal)
        self._reader = threading.Thread(target=self._read, args=(screen,))
        self._reader.start()

    def _read(self, screen: int) -> None:
        # Reading fails when the process has closed the terminal.
        with contextlib.suppress(OSError), os.fdopen(screen, "rb", buffering=0) as file:
            while part := file.read(1 << 16):
                self._said += part

    def result(self) -> Result:
        """Waits for the process and reads the result file that it has written."""
        code = self.process.wait(_DEADLINE)
        self._reader.join()
        if code:
            end = self._said.decode(errors="replace")[-3000:]
            raise RuntimeError(f"{self.process.args!r} failed:\n{end}")
        return Result(**json.loads(self._told.read_text()))


def _environment(contestant: Contestant, index: int, ports: tuple[int, ...]) -> dict[str, str]:
    # Let a checkout write its bytecode in the first round, since installed packages have theirs.
    left_out = ("TF_CONFIG", "PYTHONDONTWRITEBYTECODE")
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    if contestant.processes == 1:
        return environ
    # The variables that `kfit run` sets for the workers of one host, for all libraries.
    environ |= {
        "OMP_NUM_THREADS": str(contestant.threads),
        "TF_NUM_INTRAOP_THREADS": str(contestant.threads),
        "TF_NUM_INTEROP_THREADS": "2",
    }
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    return environ | {
        "TF_CONFIG": json.dumps(config),
        "RANK": str(index),
        "WORLD_SIZE": str(contestant.processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(ports[0]),
    }
