"""Kills that no hook knows of: at a moment that a clock decides."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.programs.generated.place import Place

MAIN = Path(__file__).parent / "clock_main.py"
DEADLINE = 600.0
"""Seconds for a process to begin its program and to be killed; not a few, on a busy machine."""


@contextlib.contextmanager
def killed_after(seconds: float) -> Iterator[None]:
    """Has the system end this process after some seconds, unless it is left before.

    SIGALRM that nobody handles ends a process as SIGKILL does, whatever it is doing; and no other
    process is needed, which might outlive this one.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_and_kill(
    program: dict[str, Any], place: Place, folder: Path, seconds: float, devices: int
) -> bool:
    """Runs a program in a process of its own and kills it.

    Args:
        program: The program.
        place: Where it runs.
        folder: As for `run`.
        seconds: From the first line of the program to the kill.
        devices: Logical devices of that process.

    Returns:
        Whether it was killed before it came to its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = folder / "plan.json"
    about = {"program": program, "place": asdict(place), "seconds": seconds, "devices": devices}
    plan.write_text(json.dumps(about))
    command = [sys.executable, str(MAIN), str(folder)]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if process.returncode not in (0, -signal.SIGALRM):
        raise RuntimeError(f"exit code {process.returncode}: {process.stderr[-2000:]}")
    return process.returncode != 0
