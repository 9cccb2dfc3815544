"""The times that kfit promises, measured on machines that may be busy with something else."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

SLOW_MACHINE = 6.0
"""How many times longer it may take where programs wait for the cores of a busy machine."""
_IDLE = 25.0
"""The share of the cores, in percent, that others use at most on a machine that counts as idle."""


@dataclass
class Deadline:
    """A promised time.

    Attributes:
        promised: The seconds that kfit promises.
        is_idle: Whether the machine had nothing else to do.
    """

    promised: float
    is_idle: bool = False

    @property
    def seconds(self) -> float:
        """The seconds that a test allows."""
        return self.promised if self.is_idle else self.promised * SLOW_MACHINE

    def check(self, what: str, taken: float) -> None:
        """Prints how long something took, and checks that it was not too long."""
        machine = "idle" if self.is_idle else "busy"
        print(f"\n{what} after {taken:.1f} s ({machine} machine)", end="")
        assert taken <= self.seconds, f"{what} after {taken:.1f} s, not {self.seconds:.0f} s"


@contextlib.contextmanager
def deadline(promised: float) -> Iterator[Deadline]:
    """Context of what is measured: looks before and after it whether the machine is idle.

    Args:
        promised: The seconds that kfit promises on an idle machine.
    """
    made = Deadline(promised)
    before = _is_idle()
    yield made
    made.is_idle = before and _is_idle()


def _is_idle() -> bool:
    return psutil.cpu_percent(0.5) < _IDLE
