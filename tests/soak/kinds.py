"""The kinds of trainings that are soaked: how each is started, and which faults can hit it."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.runs import PROGRAM, kfit_run

STEP_SECONDS = 0.1
"""What a step takes: most of it is a wait, as for an accelerator."""

STEPS_PER_EPOCH, BATCH_SIZE = 150, 16
EXAMPLES = STEPS_PER_EPOCH * BATCH_SIZE - 5
"""The last batch of an epoch is a partial one."""

WIDTH = 30_000
"""Units of the hidden layer: with Adam and the best weights, snapshots have about 5 MB."""

RUN = ("--workers", "2", "--max-restarts", "100", "--grace", "30")
"""Options of `kfit run`; restarts are counted as long as there is no progress."""

ON_RAY = Path(__file__).with_name("on_ray.py")


@dataclass(frozen=True)
class Kind:
    """A kind of training.

    Attributes:
        name: Its name on the command line.
        strategy: The strategy of the program.
        tasks: How many tasks print a digest at the end.
        at_once: How many steps its workers take at the same time.
        cards: The faults, and how often each is dealt in comparison to the others.
    """

    name: str
    strategy: str
    tasks: int
    at_once: int
    cards: Mapping[str, int]

    @property
    def is_exact(self) -> bool:
        """Whether training must end with the bits of one that nobody touched."""
        return self.strategy != "parameter_server"

    def command(self, folder: Path, *options: str) -> list[str]:
        """The command that trains in a folder.

        Args:
            folder: The folder.
            *options: Further options of `programs/everything.py`.
        """
        if self.name == "ray":
            return [
                *(sys.executable, str(ON_RAY), str(PROGRAM), self.strategy, str(folder)),
                *options,
            ]
        run = RUN if self.is_exact else (*RUN, "--ps", "1")
        return kfit_run(self.strategy, folder, *options, run=run)


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "workers",
            "multi_worker",
            tasks=2,
            at_once=1,
            cards={
                "kill one": 3,
                "kill all workers": 1,
                "kill in a save": 2,
                "preempt one": 2,
                "preempt the run": 1,
                "suspend one": 1,
                "kill the run": 1,
                "damage a snapshot": 1,
            },
        ),
        # What a suspended server means for asynchronous training is not promised.
        Kind(
            "ps",
            "parameter_server",
            tasks=1,
            at_once=2,
            cards={
                "kill one": 4,
                "kill all workers": 1,
                "kill in a save": 1,
                "preempt the run": 1,
                "kill the run": 1,
                "damage a snapshot": 1,
            },
        ),
        Kind(
            "ray",
            "multi_worker",
            tasks=2,
            at_once=1,
            cards={
                "kill one": 3,
                "kill all workers": 1,
                "kill in a save": 1,
                "preempt one": 1,
                "suspend one": 1,
                "kill the run": 1,
                "damage a snapshot": 1,
            },
        ),
    )
}


def installed() -> list[str]:
    """The names of the kinds that can run here: Ray is not installed everywhere."""
    has_ray = importlib.util.find_spec("ray") is not None
    return [name for name in KINDS if name != "ray" or has_ray]


def options(epochs: int, step_seconds: float = STEP_SECONDS) -> list[str]:
    """The options of `programs/everything.py`."""
    return [
        *("--epochs", str(epochs), "--examples", str(EXAMPLES), "--width", str(WIDTH)),
        *("--save-freq", "auto", "--step-seconds", str(step_seconds)),
    ]
